// Package front has what the front ends share. It takes tokens for requests and calls: it
// bounds how long they wait, extends and settles their holds, and says how long a refused
// client has to wait. It reads the addresses of peers, and says whose bucket they use and
// which are trusted proxies.
package front

import (
	"context"
	"math"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// Forever is a bound that means no bound.
const Forever time.Duration = math.MaxInt64

// Left returns how long a caller may wait: until ctx's deadline, but at most bound.
func Left(ctx context.Context, bound time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	return bound
}

// Ask returns what a request takes from a limit: name and floor, and the results of those
// functions that are not nil. If choose returns "", it takes nothing, and the result's Limit is "".
func Ask[R any](r R, name string, floor int64, choose, plan func(R) string, key func(R) (string, error), cost func(R) (int64, error)) (t dipwell.Take, err error) {
	t = dipwell.Take{Limit: name, Key: dipwell.Shared, Cost: 1, Floor: floor}
	if choose != nil {
		if t.Limit = choose(r); t.Limit == "" {
			return t, nil
		}
	}
	if plan != nil {
		t.Plan = plan(r)
	}
	if key != nil {
		if t.Key, err = key(r); err != nil {
			return t, err
		}
		if t.Key == dipwell.Shared { // only a limit without a key function may use the shared bucket
			return t, &dipwell.FieldError{Field: "key", Reason: "has a NUL byte"}
		}
	}
	if cost != nil {
		t.Cost, err = cost(r)
	}
	return t, err
}

// AskAll appends to list what a request takes from several limits. ask is Ask for one limit.
func AskAll[L any](list []dipwell.Take, limits []L, ask func(*L) (dipwell.Take, error)) ([]dipwell.Take, error) {
	for i := range limits {
		t, err := ask(&limits[i])
		if err != nil {
			return nil, err
		}
		if t.Limit != "" {
			list = append(list, t)
		}
	}
	return list, nil
}

// NoWait is the bound of a call that waits only for a leaky bucket, as long as that says.
// With a bound of 0, a call that has a delay is refused.
const NoWait time.Duration = -1

// Decide takes from the limits, all or nothing, waiting at most bound, and sets d. If ttl is
// not 0 and one of the limits is a concurrency limit, it holds them, and returns how long the
// hold lives. observe may be nil. Decide does not allocate for a single limit.
func Decide(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take, bound, ttl time.Duration, observe func(*dipwell.Decision, error, time.Duration)) (lives time.Duration, err error) {
	start := time.Time{}
	if observe != nil {
		start = time.Now()
	}
	switch {
	case ttl > 0 && held(l, takes):
		lives, err = hold(ctx, l, d, takes, ttl)
	case bound != NoWait:
		err = l.DoWait(ctx, d, takes, bound)
	case len(takes) > 1:
		err = l.DoAll(ctx, d, store.VerbTake, takes)
	default:
		err = l.Do(ctx, d, store.VerbTake, takes[0])
	}
	if observe != nil {
		observe(d, err, time.Since(start))
	}
	if err == nil {
		err = due(ctx, l, d)
	}
	return lives, err
}

// cancelTimeout bounds the attempts to cancel what a request has reserved and does not use.
const cancelTimeout = 10 * time.Second

// due waits until a call that a leaky bucket allowed with a delay is due, so that its
// caller may act. due does not wait for a limit in shadow mode. If ctx ends first, the
// tokens are given back, and the error is the context's, or that of the Waiter of Proxied.
func due(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision) error {
	id, delay := d.Reservation, enforced(d)
	if !d.Allowed || delay <= 0 {
		return nil
	}
	began := time.Now()
	err := waiter(ctx)(ctx, func(ctx context.Context) error { return background.Sleep(ctx, delay) })
	if err != nil {
		background.Briefly(releaseWait, func() {
			ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
			defer stop()
			_ = background.WhileStoreFails(ctx, func() error { return l.Cancel(ctx, id) })
		})
		*d = dipwell.Decision{}
		return err
	}
	after := time.Since(began)
	waited(d, after)
	for i := range d.Limits {
		waited(&d.Limits[i], after)
	}
	return nil
}

// enforced returns the longest delay of the limits that are not in shadow mode.
func enforced(d *dipwell.Decision) (delay time.Duration) {
	if d.Limits == nil && (d.Definition == nil || d.Definition.Mode != store.Shadow) {
		return d.Delay
	}
	for i := range d.Limits {
		delay = max(delay, enforced(&d.Limits[i]))
	}
	return delay
}

// waited makes d a decision that is as old as after, and whose caller may act now.
func waited(d *dipwell.Decision, after time.Duration) {
	d.Delay, d.Reservation, d.ResetAfter = 0, dipwell.Reservation{}, max(0, d.ResetAfter-after)
}

// A Waiter calls wait, which waits until a request is due or ctx ends, or returns an error.
type Waiter func(ctx context.Context, wait func(ctx context.Context) error) error

type ofProxied struct{}

// Proxied returns a context for a request whose handler passes it on. Due waits by waiter.
// The handler returns only once a connection that it hijacks is closed, so a hold of the
// request lives as long.
func Proxied(ctx context.Context, waiter Waiter) context.Context {
	return context.WithValue(ctx, ofProxied{}, waiter)
}

// IsProxied reports whether ctx comes from Proxied.
func IsProxied(ctx context.Context) bool { return ctx.Value(ofProxied{}) != nil }

func waiter(ctx context.Context) Waiter {
	if w, ok := ctx.Value(ofProxied{}).(Waiter); ok {
		return w
	}
	return func(ctx context.Context, wait func(ctx context.Context) error) error { return wait(ctx) }
}
