package dipwell

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// Wait reserves n tokens and sleeps until they are due; its Decision then has no Delay
// and no Reservation. If the tokens would be due only after the context's deadline, or
// the limit refuses, Wait returns a refusal at once and takes nothing. If the context
// ends during the sleep, Wait gives the tokens back and returns the context's error, with
// a Decision that is not Allowed. If the context is cancelled while the store decides,
// Wait gives the store up to a second to answer: it is allowed if the tokens were there.
//
// The error is a *FieldError for a bad key or cost, and for a limit with shards or of the
// algorithm Concurrency, on which Wait is not possible; ErrUnknownLimit; or it wraps
// ErrStore: then the failure mode of the limit decides, at once. If the answer of the
// store is lost, Wait gives back, in the background, what it may have reserved; tokens
// that were free at once may stay taken.
//
// A limit without debt cannot reserve. Callers that wait there for the same key, in this
// process, queue in the order of their arrival, at most 65,536 of them; one more gets
// store.ErrFull. Only the first of the queue calls the store, again after each
// RetryAfter. If the context of a caller in the queue ends, Wait returns the context's
// error and has taken nothing.
func (l *Limiter) Wait(ctx context.Context, limit, key string, n int64) (d Decision, err error) {
	err = l.DoWait(ctx, &d, []Take{{Limit: limit, Key: key, Cost: n}}, math.MaxInt64)
	return
}

// DoWait is Wait for 1 to 16 takes, all or nothing, that waits no longer than within,
// even if the context has no deadline: if the tokens would be due later, it sets *d to a
// refusal, without an error, whose RetryAfter is when an equally long wait would be
// allowed if nobody else came. DoWait reserves if all limits of the takes and all their
// parents have debt. Otherwise the caller queues for the key of each take.
// Decision.Limits is set if there are several takes or parents.
func (l *Limiter) DoWait(ctx context.Context, d *Decision, takes []Take, within time.Duration) error {
	*d = Decision{}
	if err := ctx.Err(); err != nil {
		return err
	}
	c := call{ops: newOps(), alone: len(takes) == 1, waits: true}
	if err := l.prepare(ctx, &c, store.VerbTake, takes); err != nil {
		return err
	}
	w := wait{l, d, takes, &c, time.Now().Add(max(within, 0))}
	if deadline, ok := ctx.Deadline(); within == math.MaxInt64 || ok && deadline.Before(w.until) {
		w.until = deadline // zero if ctx has no deadline
	}
	if slices.ContainsFunc(c.ops, func(op store.Op) bool { return op.Def.Rule.Debt == 0 }) {
		return w.takeInTurn(ctx)
	}
	return w.reserve(ctx)
}

type wait struct {
	*Limiter
	d     *Decision
	takes []Take
	c     *call
	until time.Time // end of the wait; zero: no bound
}

func (w *wait) left() time.Duration {
	if w.until.IsZero() {
		return math.MaxInt64
	}
	return time.Until(w.until)
}

// reserve reserves tokens that are due in time, and waits until they are.
func (w *wait) reserve(ctx context.Context) error {
	for i := range w.c.ops {
		op := &w.c.ops[i]
		if op.Floor != 0 {
			return w.c.inList(badField("floor", "limit %s has debt: a wait there is a reservation, which has none", op.Def.Name), bits.TrailingZeros16(op.Takes))
		}
		op.Verb, op.MaxDelay = store.VerbReserve, max(0, min(w.left().Microseconds(), store.MaxInt))
	}
	g := w.c.group()
	g.ID = w.c.newID()
	calls, end := outlast(ctx)
	err := w.decide(calls, w.c)
	end()
	w.fill(g)
	switch {
	case err != nil:
		w.cancelLost(ctx, g.ID, err)
		return err
	case w.d.Allowed:
		return w.awaitDelay(ctx)
	case !w.d.Never && slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.Rule.Debt == 0 }):
		return w.takeInTurn(ctx) // take, because an override of the key has no debt
	}
	return nil
}

func (w *wait) fill(g *store.Group) {
	w.d.fillAll(g, w.takes, w.c.own[:], w.c.named)
	w.d.setReservation(g, nil)
	if len(w.d.Limits) == 1 {
		w.d.Limits = nil
	}
}

// cancelLost cancels, in the background, what a call without an answer may have reserved.
func (w *wait) cancelLost(ctx context.Context, id Reservation, err error) {
	if id != (Reservation{}) && errors.Is(err, store.ErrOutcomeUnknown) {
		go undo(ctx, func(ctx context.Context) error { return w.Cancel(ctx, id) })
	}
}

// awaitDelay waits until a reservation is due, or cancels it if that is too late or ctx ends.
func (w *wait) awaitDelay(ctx context.Context) (err error) {
	d := w.d
	if d.Delay <= 0 {
		return nil
	}
	left := w.left()
	if d.Delay <= left {
		if err = background.Sleep(ctx, d.Delay); err == nil {
			d.waited(d.Delay)
			return nil
		}
	}
	w.cancelWait(ctx, d.Reservation)
	if d.givenBack(); err == nil {
		d.retryWait(left)
	}
	return err
}

// givenBack turns a cancelled reservation into a refusal by the limits that had a delay.
func (d *Decision) givenBack() {
	if d.Delay > 0 {
		d.Allowed, d.RetryAfter = false, d.Delay
	} else if d.Remaining < store.MaxInt { // an unlimited plan took nothing
		d.Remaining += d.Granted
	}
	d.Granted, d.Delay, d.Reservation = 0, 0, Reservation{}
	for i := range d.Limits {
		d.Limits[i].givenBack()
	}
}

// retryWait turns the refusal of a take into that of a wait of the length left: the same
// wait would be allowed that much earlier. A limit whose tokens come back within left
// does not refuse it.
func (d *Decision) retryWait(left time.Duration) {
	for i := range d.Limits {
		d.Limits[i].retryWait(left)
	}
	if d.Allowed || d.Never {
		return
	}
	d.RetryAfter = max(0, d.RetryAfter-max(0, left.Truncate(time.Microsecond)))
	d.Allowed = d.RetryAfter == 0
}

// waited turns a decision with a delay into one that allows the caller to act now.
func (d *Decision) waited(delay time.Duration) {
	d.Delay, d.Reservation = 0, Reservation{}
	d.ResetAfter = max(0, d.ResetAfter-delay)
	for i := range d.Limits {
		d.Limits[i].waited(delay)
	}
}

// When a wait is cancelled, a call that the store is deciding gets cancelWaitTimeout to
// end, and then the caller waits at most cancelWaitTimeout for the cancellation of its
// reservation. The cancellation continues in the background, up to cancelTimeout, because
// many of them may queue for one bucket.
const (
	cancelWaitTimeout = time.Second
	cancelTimeout     = 10 * time.Second
)

// outlast returns the context for the store's calls of a wait with ctx. It ends at ctx's
// deadline, but if ctx is cancelled, only cancelWaitTimeout later: a call that is cut off
// may have taken tokens, and would be answered as if the store had failed.
func outlast(ctx context.Context) (calls context.Context, end func()) {
	var cancel func()
	if deadline, ok := ctx.Deadline(); ok {
		calls, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	} else {
		calls, cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(cancelWaitTimeout, cancel) })
	return calls, func() { stop(); cancel() }
}

// cancelWait cancels the reservation of a wait, and tries again while the store fails.
// cancelWait ignores the last error: the caller gets the context's error.
func (l *Limiter) cancelWait(ctx context.Context, id Reservation) {
	background.Briefly(cancelWaitTimeout, func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer stop()
		_ = background.WhileStoreFails(ctx, func() error { return l.Cancel(ctx, id) })
	})
}

// takeInTurn waits until the caller is the first in the queues of its keys, and then
// takes, again after each RetryAfter, until the call is allowed or the next attempt would
// be too late. A cost that can never be granted is refused at once.
func (w *wait) takeInTurn(ctx context.Context) error {
	first := &w.c.ops[w.c.own[0]]
	w.d.reset()
	w.d.setCall(first.Def, first.Key, w.takes[0].Cost)
	if !slices.ContainsFunc(w.c.ops, tooMuch) {
		leave, err := w.join(ctx)
		if err != nil {
			return w.tooLate(ctx, err)
		}
		defer leave()
	}
	for {
		if err := ctx.Err(); err != nil { // check it here: if the wait ends at the same time, select picks one at random
			return err
		}
		if err := w.ask(ctx, store.VerbTake); err != nil {
			return err
		}
		if w.d.Allowed {
			return w.awaitDelay(ctx) // there is a delay, because one of the limits is a leaky bucket
		}
		if left := w.left(); w.d.Never || left < w.d.RetryAfter {
			w.d.retryWait(left)
			return nil
		}
		if err := background.Sleep(ctx, max(w.d.RetryAfter, time.Microsecond)); err != nil {
			return err
		}
	}
}

// tooMuch reports whether a Take costs more than its limit can grant a key without an override.
func tooMuch(op store.Op) bool {
	r := &op.Def.Rule
	most := r.Burst - op.Floor
	if r.Leaky { // a Take of a leaky bucket reserves
		most += r.Debt / r.Unit
	}
	return op.Cost > most && !op.Def.Overridden
}

// ask asks the store for the takes with the present definitions of their limits.
func (w *wait) ask(ctx context.Context, verb store.Verb) (err error) {
	calls, end := outlast(ctx)
	defer end()
	if err = w.doGroup(calls, w.d, verb, w.takes, w.c.alone, true); w.c.alone && len(w.d.Limits) == 1 {
		w.d.Limits = nil
	}
	if err != nil { // one of the limits may be a leaky bucket, which may have reserved
		w.cancelLost(ctx, w.d.Reservation, err)
		w.d.Reservation = Reservation{}
	}
	return err
}

// join joins the queues of all keys, in one order, so that no two callers wait for each other.
func (w *wait) join(ctx context.Context) (leave func(), err error) {
	if deadline, ok := ctx.Deadline(); !w.until.IsZero() && (!ok || w.until.Before(deadline)) {
		var stop func()
		ctx, stop = context.WithDeadline(ctx, w.until)
		defer stop()
	}
	keys := make([]queueKey, len(w.takes))
	for i := range keys {
		op := &w.c.ops[w.c.own[i]]
		keys[i] = queueKey{op.Def.Name, op.Key}
	}
	slices.SortFunc(keys, func(a, b queueKey) int { return cmp.Or(cmp.Compare(a.limit, b.limit), cmp.Compare(a.key, b.key)) })
	var places []func()
	leave = func() {
		for _, f := range places {
			f()
		}
	}
	for _, k := range slices.Compact(keys) {
		place, err := w.queues.join(ctx, k)
		if err != nil {
			leave()
			return nil, err
		}
		places = append(places, place)
	}
	return leave, nil
}

// tooLate makes the refusal of a caller whose time ends while it is in the queue.
func (w *wait) tooLate(ctx context.Context, err error) error {
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = w.ask(ctx, store.VerbCheck)
	w.d.Allowed = false
	return err
}
