package grpclimit

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pace"
	"github.com/dipwell/dipwell/store"
)

// Limit is one limit that a call or a message is held to.
type Limit struct {
	Name string   // of a limit that the Limiter knows
	Key  KeyFunc  // default: the limit's one shared bucket
	Cost CostFunc // default: 1
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
			return fmt.Errorf("grpclimit: %s: %w", field, &dipwell.UnknownLimitError{Limit: l.Name})
		}
	}
	return nil
}

// taker asks the limiter for servers and clients alike.
type taker struct {
	limiter *dipwell.Limiter
	failed  func(context.Context, error) error
	refused func(context.Context, *dipwell.Decision) error
	observe func(*dipwell.Decision, error, time.Duration)
}

// noWait is the bound of a caller who takes what is there. With 0 and more a
// caller waits, and one who may not is refused where a leaky bucket has a delay.
const noWait time.Duration = -1

// take takes from the limits, waiting at most bound; the error is what the call
// is to end with.
func (t *taker) take(ctx context.Context, d *dipwell.Decision, limits []Limit, c *Call, bound time.Duration) error {
	err := t.ask(ctx, d, limits, c, bound)
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

func (t *taker) ask(ctx context.Context, d *dipwell.Decision, limits []Limit, c *Call, bound time.Duration) error {
	var buf [1]dipwell.Take
	takes := buf[:0]
	for i := range limits {
		take, err := limits[i].of(ctx, c)
		if err != nil {
			return err
		}
		takes = append(takes, take)
	}
	if t.observe == nil {
		return t.decide(ctx, d, takes, bound)
	}
	start := time.Now()
	err := t.decide(ctx, d, takes, bound)
	t.observe(d, err, time.Since(start))
	return err
}

func (t *taker) decide(ctx context.Context, d *dipwell.Decision, takes []dipwell.Take, bound time.Duration) error {
	if bound != noWait {
		return pace.Wait(ctx, t.limiter, d, takes, bound)
	}
	return pace.Take(ctx, t.limiter, d, takes)
}

// of is what a call takes from a limit.
func (l *Limit) of(ctx context.Context, c *Call) (t dipwell.Take, err error) {
	t = dipwell.Take{Limit: l.Name, Key: dipwell.Shared, Cost: 1}
	if l.Key != nil {
		if t.Key, err = l.Key(ctx, c); err != nil {
			return t, err
		}
		if t.Key == dipwell.Shared { // only the limit's own configuration says that
			return t, bad("key", "has a NUL byte")
		}
	}
	if l.Cost != nil {
		t.Cost, err = l.Cost(ctx, c)
	}
	return t, err
}
