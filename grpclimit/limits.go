package grpclimit

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pace"
	"github.com/dipwell/dipwell/store"
)

// Limit is a limit that a call or a message takes from.
type Limit struct {
	Name string                                      // name of a limit that the Limiter has
	Key  KeyFunc                                     // returns the key; default: the limit's shared bucket
	Cost func(context.Context, *Call) (int64, error) // returns the cost in tokens; default: 1
}

func check(limiter *dipwell.Limiter, field string, limits []Limit) error {
	if len(limits) > store.MaxTakes {
		return fmt.Errorf("grpclimit: %s: %d limits; at most %d", field, len(limits), store.MaxTakes)
	}
	for _, l := range limits {
		if limiter == nil {
			return fmt.Errorf("grpclimit: %s: limit %s without a limiter", field, l.Name)
		}
		if limiter.Limit(l.Name) == nil {
			return fmt.Errorf("grpclimit: %s: %w %q", field, dipwell.ErrUnknownLimit, l.Name)
		}
	}
	return nil
}

// taker takes from limits, for Server and Client.
type taker struct {
	limiter *dipwell.Limiter
	failed  func(context.Context, error) error
	refused func(context.Context, *dipwell.Decision) error
	observe func(*dipwell.Decision, error, time.Duration)
}

// noWait is the bound of a call that never waits; a leaky bucket then allows it
// with a delay. With a bound of 0, a call that has a delay is refused.
const noWait time.Duration = -1

// take takes from the limits, waiting at most bound. If it returns an error, the
// call must end with it.
func (t *taker) take(ctx context.Context, d *dipwell.Decision, limits []Limit, c *Call, bound time.Duration) error {
	err := t.decide(ctx, d, limits, c, bound)
	switch {
	case err != nil && t.failed != nil:
		return t.failed(ctx, err)
	case err != nil:
		return Fail(ctx, err)
	case d.Allowed:
		return nil
	case t.refused != nil:
		return t.refused(ctx, d)
	}
	return Refuse(d)
}

func (t *taker) decide(ctx context.Context, d *dipwell.Decision, limits []Limit, c *Call, bound time.Duration) error {
	var buf [1]dipwell.Take
	takes := buf[:0]
	for i := range limits {
		take, err := limits[i].take(ctx, c)
		if err != nil {
			return err
		}
		takes = append(takes, take)
	}
	if t.observe == nil {
		return t.wait(ctx, d, takes, bound)
	}
	start := time.Now()
	err := t.wait(ctx, d, takes, bound)
	t.observe(d, err, time.Since(start))
	return err
}

func (t *taker) wait(ctx context.Context, d *dipwell.Decision, takes []dipwell.Take, bound time.Duration) error {
	if bound != noWait {
		return t.limiter.DoWait(ctx, d, takes, bound)
	}
	return pace.Take(ctx, t.limiter, d, takes)
}

// take returns what a call takes from the limit.
func (l *Limit) take(ctx context.Context, c *Call) (t dipwell.Take, err error) {
	t = dipwell.Take{Limit: l.Name, Key: dipwell.Shared, Cost: 1}
	if l.Key != nil {
		if t.Key, err = l.Key(ctx, c); err != nil {
			return t, err
		}
		if t.Key == dipwell.Shared { // only a Limit without Key selects the shared bucket
			return t, bad("key", "has a NUL byte")
		}
	}
	if l.Cost != nil {
		t.Cost, err = l.Cost(ctx, c)
	}
	return t, err
}
