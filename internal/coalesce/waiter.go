package coalesce

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A waiter is a queued or sent group. It has a copy of the caller's group, because
// the caller may return and reuse its batch while the statement still runs.
type waiter struct {
	lane       *lane
	prev, next *waiter // neighbours in the queue of its lane or entry
	state      atomic.Uint32
	ready      chan bool       // true when answered, false when expired; buffered, so that sending never blocks
	ctx        context.Context // the caller's
	deadline   time.Time       // when the call ends
	timed      bool            // the lane ends the call at the deadline, not the caller's context

	gate Gate // opened when ready has a value; nil: none

	entry  *entry       // in quarantine: the entry at which it is queued
	caller *store.Group // in quarantine: the caller's group

	group store.Group
	one   [1]store.Op
	many  []store.Op
}

const (
	queued    uint32 = iota // changes only under the lock of the lane or quarantine
	sent                    // a runner has the waiter
	done                    // answered
	abandoned               // the caller has returned; the runner recycles the waiter
	expired                 // the deadline has passed and the caller was told; the waiter is not recycled
)

func (l *lane) waiter(c *call, g *store.Group) *waiter {
	w, _ := l.free.Get().(*waiter)
	if w == nil {
		w = &waiter{lane: l, ready: make(chan bool, 1)}
	}
	w.copy(c.deadline, g)
	w.ctx, w.timed = c.ctx, c.timed
	if l.Gate != nil {
		w.gate = l.Gate()
	}
	return w
}

// copy copies the group of a caller.
func (w *waiter) copy(deadline time.Time, g *store.Group) {
	w.state.Store(queued)
	w.deadline = deadline
	w.group = *g
	w.group.Err = nil
	switch {
	case g.Settles():
		w.group.Ops = nil // the caller keeps the ops that the store sets
	case len(g.Ops) == 1:
		w.one[0] = g.Ops[0]
		w.group.Ops = w.one[:]
	default:
		w.many = append(w.many[:0], g.Ops...)
		w.group.Ops = w.many
	}
	if g.Hold != nil {
		h := *g.Hold
		h.Costs = slices.Clone(h.Costs)
		w.group.Hold = &h
	}
}

// recycle returns a lane's waiter to its pool, once nothing refers to it.
func (w *waiter) recycle() {
	if w.lane == nil { // the waiter belongs to the quarantine
		return
	}
	clear(w.many)
	w.many = w.many[:0]
	w.one[0], w.group = store.Op{}, store.Group{}
	w.prev, w.next, w.ctx = nil, nil, nil
	w.lane.free.Put(w)
}

// answer copies the result into the caller's group.
func (w *waiter) answer(g *store.Group) {
	g.Err, g.Allowed, g.Reserved = w.group.Err, w.group.Allowed, w.group.Reserved
	if g.Hold != nil {
		h := w.group.Hold
		g.Hold.ID, g.Hold.Expires, g.Hold.Repeated = h.ID, h.Expires, h.Repeated
		if g.Settles() {
			g.Ops = w.group.Ops
			return
		}
	}
	for i := range g.Ops {
		g.Ops[i].CopyAnswer(&w.group.Ops[i])
		g.Ops[i].Takes = w.group.Ops[i].Takes // the store sets Takes for a hold
	}
}

// tell reports that the waiter was answered or has expired. The caller may recycle the
// waiter from then on.
func (w *waiter) tell(answered bool) {
	gate := w.gate
	if w.ready <- answered; gate != nil {
		gate.Open()
	}
}

// finish gives the result g to the caller, or recycles the waiter if the caller has
// returned.
func (w *waiter) finish(g *store.Group) {
	w.group.Err, w.group.Allowed, w.group.Reserved = g.Err, g.Allowed, g.Reserved
	if g.Settles() {
		w.group.Ops = g.Ops // the store has set the ops
	}
	if w.state.CompareAndSwap(sent, done) {
		w.tell(true)
		return
	}
	if w.state.Load() == abandoned {
		w.recycle()
	}
}
