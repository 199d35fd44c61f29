// Package pace waits for tokens, for the client packages.
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

// Forever is a bound for no bound.
const Forever time.Duration = math.MaxInt64

// Left returns how long a caller may wait: until the context's deadline, but at most
// bound.
func Left(ctx context.Context, bound time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	return bound
}

// Take takes from the limits, all or nothing, and sets d. It does not allocate for
// one limit.
func Take(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take) error {
	if len(takes) > 1 {
		return l.DoAll(ctx, d, store.VerbTake, takes)
	}
	t := &takes[0]
	return l.Do(ctx, d, store.VerbTake, t.Limit, t.Key, t.Cost)
}

// Wait takes from the limits, and waits for their tokens until the context's
// deadline, but at most bound. If that is too short it refuses at once and takes
// nothing. Callers of one limit with debt are served in order; several limits are
// tried again at each retry time.
func Wait(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, takes []dipwell.Take, bound time.Duration) error {
	if err := Take(ctx, l, d, takes); err != nil {
		return err
	}
	if d.Allowed {
		return awaitDelay(ctx, l, d, bound)
	}
	if d.Never || d.RetryAfter > Left(ctx, bound) {
		return nil
	}
	caller := ctx
	if bound < Forever {
		// Limiter.Wait fails at once if the tokens are due after the deadline, so
		// that this timeout does not interrupt a sleep.
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
		return awaitDelay(ctx, l, d, bound)
	}
	return nil
}

// ownBound turns the end of bound, as opposed to the caller's deadline, into a
// refusal.
func ownBound(caller context.Context, d *dipwell.Decision, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, dipwell.ErrStore) && caller.Err() == nil {
		d.Allowed, d.Granted = false, 0
		return nil
	}
	return err
}

// cancelTimeout is how long a caller that has given up waits for Cancel.
const cancelTimeout = time.Second

// awaitDelay waits until a take of a leaky bucket, which is a reservation, is due.
// If that would take too long it cancels the reservation and refuses.
func awaitDelay(ctx context.Context, l *dipwell.Limiter, d *dipwell.Decision, bound time.Duration) error {
	if d.Delay <= 0 {
		return nil
	}
	var err error
	if d.Delay <= Left(ctx, bound) {
		if err = await.Sleep(ctx, d.Delay); err == nil {
			return nil
		}
	} else {
		d.Allowed, d.Granted, d.RetryAfter = false, 0, d.Delay
	}
	cancelCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	_ = l.Cancel(cancelCtx, d.Reservation) // an error does not change the caller's result
	d.Reservation = dipwell.Reservation{}
	return err
}
