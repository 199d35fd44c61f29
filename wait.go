package dipwell

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Wait reserves n tokens and sleeps until they are due. If they would be due
// only after the context's deadline, or the limit refuses, it returns the
// refusal at once and nothing is taken. A limit without debt is asked again at
// each retry time instead. When the context ends during the sleep the tokens
// are given back, the error is the context's and the decision allows nothing.
func (l *Limiter) Wait(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	if err = ctx.Err(); err != nil {
		return d, err
	}
	def := l.reg.Lookup(limit)
	if def == nil {
		return d, l.reg.Missing(limit)
	}
	if def.Rule.Debt == 0 {
		return l.retry(ctx, limit, key, n)
	}
	if err = l.reserveBefore(ctx, &d, def, key, n); err != nil || !d.Allowed || d.Delay <= 0 {
		return d, err
	}
	if err = sleep(ctx, d.Delay); err != nil {
		l.giveUp(ctx, d.Reservation)
		d.Allowed, d.Granted, d.Reservation = false, 0, Reservation{}
		return d, err
	}
	return d, nil
}

// A caller who has given up waits at most giveUpTimeout for its cancellation,
// which goes on for at most cancelTimeout: many may queue for one bucket.
const (
	giveUpTimeout = time.Second
	cancelTimeout = 10 * time.Second
)

// giveUp cancels the reservation of a wait. It returns no error: the
// reservation is due by now, or lost with the store, and the caller's own error
// says more.
func (l *Limiter) giveUp(ctx context.Context, id Reservation) {
	patience := time.NewTimer(giveUpTimeout)
	defer patience.Stop()
	cancelled := make(chan struct{})
	go func() {
		defer close(cancelled)
		give, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer stop()
		_ = l.Cancel(give, id)
	}()
	select {
	case <-cancelled:
	case <-patience.C:
	}
}

func (l *Limiter) reserveBefore(ctx context.Context, d *Decision, def *Definition, key string, n int64) error {
	if err := checkCost(def, store.VerbReserve, n); err != nil {
		return err
	}
	key, err := checkKey(key)
	if err != nil {
		return err
	}
	b := new(store.Batch) // a wait can afford one
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

// retry asks for tokens at each retry time until the deadline.
func (l *Limiter) retry(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	deadline, bounded := ctx.Deadline()
	for {
		d, err = l.Take(ctx, limit, key, n)
		if err != nil || d.Allowed || d.Never {
			return d, err
		}
		if bounded && time.Until(deadline) < d.RetryAfter {
			return d, nil
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
