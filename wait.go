package dipwell

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Wait reserves n tokens and sleeps until they are due. It returns a refusal at
// once, and takes nothing, if they would be due only after the context's deadline
// or the limit refuses. If the context ends during the sleep, Wait gives the tokens
// back and returns the context's error, with a Decision that is not Allowed.
//
// A limit without debt cannot reserve. Callers that wait there for the same key, in
// this process, queue in the order of their arrival, at most 65,536 of them; one more
// gets ErrFull. Only the first of the queue asks the store, again after each
// RetryAfter. A caller whose context ends in the queue gets the context's error and
// took nothing.
func (l *Limiter) Wait(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	if err = ctx.Err(); err != nil {
		return d, err
	}
	def := l.registry.Lookup(limit)
	if def == nil {
		return d, l.registry.Missing(limit)
	}
	if def.Rule.Debt == 0 {
		return l.takeInTurn(ctx, def, key, n)
	}
	if err = l.reserveWithin(ctx, &d, def, key, n); err != nil || !d.Allowed || d.Delay <= 0 {
		return d, err
	}
	if err = sleep(ctx, d.Delay); err != nil {
		l.cancelWait(ctx, d.Reservation)
		d.Allowed, d.Granted, d.Reservation = false, 0, Reservation{}
		return d, err
	}
	return d, nil
}

// When a wait ends early, its caller waits at most cancelWaitTimeout for the
// cancellation. That continues in the background, up to cancelTimeout, because many
// cancellations may queue for one bucket.
const (
	cancelWaitTimeout = time.Second
	cancelTimeout     = 10 * time.Second
)

// cancelWait cancels the reservation of a wait. It ignores the error, which is that
// the reservation is due or the store fails: the caller gets the context's error.
func (l *Limiter) cancelWait(ctx context.Context, id Reservation) {
	timer := time.NewTimer(cancelWaitTimeout)
	defer timer.Stop()
	cancelled := make(chan struct{})
	go func() {
		defer close(cancelled)
		cancelCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer stop()
		_ = l.Cancel(cancelCtx, id)
	}()
	select {
	case <-cancelled:
	case <-timer.C:
	}
}

// reserveWithin reserves n tokens that are due before the deadline of ctx.
func (l *Limiter) reserveWithin(ctx context.Context, d *Decision, def *Definition, key string, n int64) error {
	if err := checkCost(def, store.VerbReserve, n); err != nil {
		return err
	}
	key, err := checkKey(key)
	if err != nil {
		return err
	}
	b := new(store.Batch) // not pooled: a wait is slow anyway
	g, op := b.Single()
	op.Def, op.Key, op.Verb, op.Cost = def, key, store.VerbReserve, n
	if deadline, ok := ctx.Deadline(); ok {
		op.Bounded, op.MaxDelay = true, max(0, time.Until(deadline).Microseconds())
	}
	g.ID = newReservation()
	err = l.decide(ctx, b, def.Timeout)
	d.Fill(op)
	if g.Reserved {
		d.Reservation = g.ID
	}
	return err
}

// takeInTurn calls Take when the callers of the key that came before have left the
// queue, and again after each RetryAfter, until it is allowed or the next time is
// after the deadline. A cost that is never granted is refused without a place in
// the queue.
func (l *Limiter) takeInTurn(ctx context.Context, def *Definition, key string, n int64) (d Decision, err error) {
	d.setCall(def, key, n)
	if n >= 0 && n <= def.Rule.Burst {
		leave, err := l.queues.join(ctx, queueKey{def.Name, key})
		if err != nil {
			return d, err
		}
		defer leave()
	}
	deadline, hasDeadline := ctx.Deadline()
	for {
		if err = ctx.Err(); err != nil { // a select picks at random if the wait ends at the same time
			return d, err
		}
		d, err = l.Take(ctx, def.Name, key, n)
		if err != nil || d.Allowed || d.Never || hasDeadline && time.Until(deadline) < d.RetryAfter {
			return d, err
		}
		if err = sleep(ctx, max(d.RetryAfter, time.Microsecond)); err != nil {
			return d, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
