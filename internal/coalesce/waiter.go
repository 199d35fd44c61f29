package coalesce

import (
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A waiter is one group on its way. It holds copies, because a caller that
// leaves takes its batch along while the statement still runs.
type waiter struct {
	lane       *lane
	prev, next *waiter // in the lane's queue
	state      atomic.Uint32
	ready      chan bool // true: the answer is there; has room for it, so that nobody waits for a caller
	deadline   time.Time // when the call ends
	ours       bool      // the caller's own context does not end then: the lane must

	ward  *ward        // in whose queue it is, in quarantine
	asker *store.Group // the caller's own, in quarantine

	group store.Group
	one   [1]store.Op
	many  []store.Op
}

const (
	queued  uint32 = iota // in the queue; moves on only under the lane's lock
	sent                  // the lane's runner has it
	done                  // the answer is there
	left                  // the caller is gone; the runner frees the waiter
	expired               // the caller was told that its time is over; the waiter is not used again
)

func (l *lane) waiter(c *call, g *store.Group) *waiter {
	w, _ := l.free.Get().(*waiter)
	if w == nil {
		w = &waiter{lane: l, ready: make(chan bool, 1)}
	}
	w.copy(c.deadline, g)
	w.ours = c.ours
	return w
}

// copy takes over the group of a caller.
func (w *waiter) copy(deadline time.Time, g *store.Group) {
	w.state.Store(queued)
	w.deadline = deadline
	w.group = *g
	w.group.Err = nil
	if len(g.Ops) == 1 {
		w.one[0] = g.Ops[0]
		w.group.Ops = w.one[:]
	} else {
		w.many = append(w.many[:0], g.Ops...)
		w.group.Ops = w.many
	}
}

// free gives the waiter back once nobody else knows it.
func (w *waiter) free() {
	if w.lane == nil { // it was in quarantine
		return
	}
	clear(w.many)
	w.many = w.many[:0]
	w.one[0], w.group = store.Op{}, store.Group{}
	w.prev, w.next = nil, nil
	w.lane.free.Put(w)
}

// answer copies the outcome into the caller's group.
func (w *waiter) answer(g *store.Group) {
	g.Err, g.Allowed, g.Reserved = w.group.Err, w.group.Allowed, w.group.Reserved
	for i := range g.Ops {
		g.Ops[i].Answer = w.group.Ops[i].Answer
	}
}

// finish hands the outcome to the caller, or frees the waiter of one that left.
func (w *waiter) finish(g *store.Group) {
	w.group.Err, w.group.Allowed, w.group.Reserved = g.Err, g.Allowed, g.Reserved
	if w.state.CompareAndSwap(sent, done) {
		w.ready <- true
		return
	}
	if w.state.Load() == left {
		w.free()
	}
}
