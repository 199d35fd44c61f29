package coalesce

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A call is a caller's context and when the call ends at the latest. Only a call
// that is sent or quarantined by itself needs a context that ends then: for
// those in a queue the lane looks at their deadlines, with one timer for all.
type call struct {
	ctx      context.Context // the caller's own
	ours     bool            // ctx has no deadline, or a later one than Timeout
	deadline time.Time       // zero while it is ours and nobody needed it
}

// bounds gives calls that have no deadline, or a late one, a deadline at most
// Timeout after they came.
type bounds struct{ timeout time.Duration }

// call reads no clock for a ctx without a deadline: that would be a tenth of
// what a call in a large batch costs.
func (b *bounds) call(ctx context.Context) call {
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= b.timeout {
		return call{ctx: ctx, deadline: until}
	}
	return call{ctx: ctx, ours: true}
}

// bound returns the call's context with its deadline. done releases it.
func (b *bounds) bound(c *call) (ctx context.Context, done context.CancelFunc) {
	if !c.ours {
		return c.ctx, func() {}
	}
	if c.deadline.IsZero() {
		c.deadline = time.Now().Add(b.timeout)
	}
	return context.WithDeadline(c.ctx, c.deadline)
}

// A lane reads the clock each tenth of Timeout while there are calls whose end is
// for it to notice. Their deadlines are counted from the last reading, so that a
// call ends between nine tenths of Timeout and Timeout after it came.

// watch makes sure that the end of w is noticed. The lock is held.
func (l *lane) watch(w *waiter) {
	if !l.watching {
		l.watching, l.now = true, time.Now()
		l.tick()
	}
	if w.deadline.IsZero() {
		w.deadline = l.now.Add(l.Timeout)
	}
}

func (l *lane) tick() {
	if l.watcher == nil {
		l.watcher = time.AfterFunc(l.Timeout/10, l.expire)
	} else {
		l.watcher.Reset(l.Timeout / 10)
	}
}

// expire ends the calls whose deadline has passed: those in the queue were not
// charged; of those that were sent nobody knows.
func (l *lane) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.watching = time.Now(), false
	for w := l.queue.head; w != nil; {
		late := w
		if w = w.next; l.due(late) {
			l.queue.unlink(late)
			late.state.Store(sent)
			late.finish(&store.Group{Err: notSent(context.DeadlineExceeded)})
		}
	}
	for _, w := range l.inFlight {
		if l.due(w) && w.state.CompareAndSwap(sent, expired) {
			w.ready <- false
		}
	}
	if l.watching {
		l.tick()
	}
}

// due reports whether the lane is to end w now; if it is to do so later, the
// watch goes on.
func (l *lane) due(w *waiter) bool {
	if w.ours && w.deadline.After(l.now) {
		l.watching = true
		return false
	}
	return w.ours
}
