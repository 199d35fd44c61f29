package grpclimit

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// Limit is a limit that a call or a message takes from. A Limit needs a Name or Choose.
type Limit struct {
	// Name is the name of a limit that the Limiter has; New and NewClient check that.
	Name string

	// Key returns the key: whose bucket the call takes from. If it returns an error, the
	// call is not decided. A limit with a Parent needs a path: see dipwell.Key. Default of
	// Key: none, for a limit that is Shared; a call of any other is then InvalidArgument.
	Key KeyFunc

	// Cost returns the cost in tokens, from 0 to 2^53-1, for instance by the size of
	// Call.Message. A cost that the limit can never grant is refused without RetryInfo.
	// Default: 1.
	Cost func(*Call) (int64, error)

	// Choose returns the name of the limit, in place of Name, or "" if the call
	// takes from none. A limit that the Limiter does not have is an error of the
	// call, of status INTERNAL. The name must not be the client's text.
	Choose func(*Call) string

	// Plan returns the plan of the limit that decides, as in httplimit.Limit. A plan that the
	// limit does not have is an error of the call, of status INTERNAL.
	Plan func(*Call) string

	// Floor is how many tokens must stay free after the call, as in httplimit.Limit.
	Floor int64
}

func check(limiter *dipwell.Limiter, field string, limits []Limit, use front.Use) error {
	if len(limits) > store.MaxTakes {
		return fmt.Errorf("grpclimit: %s: %d limits; at most %d", field, len(limits), store.MaxTakes)
	}
	for _, l := range limits {
		if err := front.Check(limiter, l.Name, l.Choose != nil, l.Floor, use); err != nil {
			return fmt.Errorf("grpclimit: %s: %w", field, err)
		}
	}
	return nil
}

type taker struct {
	limiter *dipwell.Limiter
	failed  func(context.Context, error) error
	refused func(context.Context, *dipwell.Decision) error
	observe func(*dipwell.Decision, error, time.Duration)
}

// take takes from the limits, waiting at most bound. take makes a hold if ttl is not 0 and
// one of the limits is a concurrency limit, and returns how long the hold lives. If take
// returns an error, the call must end with it.
func (t *taker) take(d *dipwell.Decision, limits []Limit, c *Call, bound, ttl time.Duration) (time.Duration, error) {
	ttl, err := t.decide(d, limits, c, bound, ttl)
	return ttl, t.answer(c.Context, d, err)
}

func (t *taker) answer(ctx context.Context, d *dipwell.Decision, err error) error {
	switch {
	case err != nil && t.failed != nil:
		return t.failed(ctx, err)
	case err != nil:
		return Fail(ctx, err)
	case d.Allowed || d.Limit == "": // d.Limit is "" if the call took from no limit
		return nil
	case t.refused != nil:
		return t.refused(ctx, d)
	}
	return Refuse(d)
}

func (t *taker) decide(d *dipwell.Decision, limits []Limit, c *Call, bound, ttl time.Duration) (time.Duration, error) {
	var buf [1]dipwell.Take
	takes, err := front.AskAll(buf[:0], limits, func(l *Limit) (dipwell.Take, error) {
		return front.Ask(c, l.Name, l.Floor, l.Choose, l.Plan, l.Key, l.Cost)
	})
	if err != nil || len(takes) == 0 {
		return 0, err
	}
	return front.Decide(c.Context, t.limiter, d, takes, bound, ttl, t.observe)
}
