// Package pace makes callers wait for tokens, on behalf of the client packages.
package pace

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/store"
)

// Forever is a bound that bounds nothing.
const Forever time.Duration = math.MaxInt64

// Left is how long a caller may wait: until the context's deadline, and no
// longer than bound.
func Left(ctx context.Context, bound time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	return bound
}

// Take takes from the limits, all or nothing. It fills d and allocates nothing
// for one limit.
func Take(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take) error {
	if len(takes) > 1 {
		return l.DoAll(ctx, d, store.VerbTake, takes)
	}
	t := &takes[0]
	return l.Do(ctx, d, store.VerbTake, t.Limit, t.Key, t.Cost)
}

// Wait takes from the limits, and waits for them at most bound and never past
// the context's deadline. What cannot be had in that time is a refusal at once,
// with nothing taken. Callers of one limit that has debt are served in turn;
// several limits are asked again at each retry time.
func Wait(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take, bound time.Duration) error {
	if err := Take(ctx, l, d, takes); err != nil {
		return err
	}
	if d.Allowed {
		return settle(ctx, l, d, bound)
	}
	if d.Never || d.RetryAfter > Left(ctx, bound) {
		return nil
	}
	caller := ctx
	if bound < Forever {
		// Wait refuses at once what is due after the deadline, so this one
		// never cuts a sleep short.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	if len(takes) == 1 {
		t := &takes[0]
		var err error
		*d, err = l.Wait(ctx, t.Limit, t.Key, t.Cost)
		return ownBound(caller, d, err)
	}
	for !d.Allowed && !d.Never && d.RetryAfter <= Left(ctx, Forever) {
		if err := await.Sleep(ctx, max(d.RetryAfter, time.Microsecond)); err != nil {
			return ownBound(caller, d, err)
		}
		if err := Take(ctx, l, d, takes); err != nil {
			return err
		}
	}
	if d.Allowed {
		return settle(ctx, l, d, bound)
	}
	return nil
}

// ownBound makes the end of our own bound what it is to the caller, a refusal.
func ownBound(caller context.Context, d *dipwell.Decision, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, dipwell.ErrStore) && caller.Err() == nil {
		d.Allowed, d.Granted = false, 0
		return nil
	}
	return err
}

// cancelTimeout bounds how long a caller who has already given up is kept.
const cancelTimeout = time.Second

// settle waits until a take of a leaky bucket is due: such a take is a reservation.
func settle(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, bound time.Duration) error {
	if d.Delay <= 0 {
		return nil
	}
	err := error(nil)
	if d.Delay <= Left(ctx, bound) {
		if err = await.Sleep(ctx, d.Delay); err == nil {
			return nil
		}
	} else {
		d.Allowed, d.Granted, d.RetryAfter = false, 0, d.Delay
	}
	give, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	_ = l.Cancel(give, d.Reservation) // due by now, or lost with the store: the caller's answer says more
	d.Reservation = dipwell.Reservation{}
	return err
}
