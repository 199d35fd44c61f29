package coalesce

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// A call is a caller's context and the time when the call ends. Only a call in
// quarantine needs a context with that deadline. For the others the lane checks the
// deadlines, with one timer for all of them.
type call struct {
	ctx      context.Context // the caller's
	timed    bool            // the Timeout ends the call: ctx has no deadline or a later one
	deadline time.Time       // zero if timed is set and the deadline not computed yet
}

// newCall does not read the clock if ctx has no deadline: that would be a tenth
// of the cost of a call in a large batch.
func (s *settings) newCall(ctx context.Context) call {
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= s.Timeout {
		return call{ctx: ctx, deadline: until}
	}
	return call{ctx: ctx, timed: true}
}

// withDeadline returns the call's context with the call's deadline.
func (s *settings) withDeadline(c *call) (context.Context, context.CancelFunc) {
	if !c.timed {
		return c.ctx, func() {}
	}
	if c.deadline.IsZero() {
		c.deadline = s.now().Add(s.Timeout)
	}
	return context.WithDeadline(c.ctx, c.deadline)
}

// now reads the clock.
func (s *settings) now() time.Time {
	if s.Clock != nil {
		return s.Clock()
	}
	return time.Now()
}

// While a lane has timed calls, it reads the clock every tenth of Timeout. A
// deadline is counted from the last reading, so a call ends between 0.9 × Timeout
// and Timeout after it arrived.

// setDeadline sets the deadline of w and starts the timer. l.mu is held.
func (l *lane) setDeadline(w *waiter) {
	if !l.timerSet {
		l.timerSet, l.lastTick = true, l.now()
		l.resetTimer()
	}
	if w.deadline.IsZero() {
		w.deadline = l.lastTick.Add(l.Timeout)
	}
}

func (l *lane) resetTimer() {
	if l.After != nil {
		l.After(l.Timeout/10, l.expire)
	} else if l.timer == nil {
		l.timer = time.AfterFunc(l.Timeout/10, l.expire)
	} else {
		l.timer.Reset(l.Timeout / 10)
	}
}

// expire ends the timed calls whose deadline has passed. Queued calls were
// not charged. The outcome of calls in flight is unknown.
func (l *lane) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastTick, l.timerSet = l.now(), false
	for w := l.queue.head; w != nil; {
		next := w.next
		if l.overdue(w) {
			l.queue.unlink(w)
			w.state.Store(sent)
			w.finish(&store.Group{Err: background.NotSent(context.DeadlineExceeded)})
		}
		w = next
	}
	for _, w := range l.inFlight {
		if l.overdue(w) && w.state.CompareAndSwap(sent, expired) {
			w.tell(false)
		}
	}
	if l.timerSet {
		l.resetTimer()
	}
}

// overdue reports whether a timed call has to end. If the call has to end
// later, overdue keeps the timer running.
func (l *lane) overdue(w *waiter) bool {
	if w.timed && w.deadline.After(l.lastTick) {
		l.timerSet = true
		return false
	}
	return w.timed
}
