package coalesce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Bounds of the quarantine.
const (
	maxKeys     = 4096 // most keys; a batch that met a lock adds all of its keys for a moment
	maxWaiting  = 4096 // queued groups
	maxPerKey   = 1024 // most queued groups of one key, so that it cannot fill the queue
	maxSuspects = 30   // suspects in one statement: the largest number of locked rows that a store can tell apart

	maxLockWait = 50 * time.Millisecond // longest wait for a lock, divided by the number of locked keys: while one has its turn, the others wait
	minLockWait = 10 * time.Millisecond // lower bound of a wait for a lock
	minStay     = time.Second           // after this time without meeting a lock, a key returns to its lane
	forgetAfter = 10 * time.Second      // after this time without a call, a key is removed
)

// errQuarantined is the error of a group that was not sent to its lane.
var errQuarantined = fmt.Errorf("%w: other calls already wait for it", store.ErrLocked)

// quarantine decides calls for keys whose row another transaction has locked, so
// that no lane waits for them.
//
// When a lane's statement meets a lock, all keys of the statement are added as
// suspects. The Sorter decides their calls together and hardly waits for locks:
// keys that are not locked get their answer. The locked keys take turns on a
// separate connection, one call each, so that no key waits long for the lock of
// another one. When such a call is answered, its key is a suspect again. A key
// returns to its lane after minStay without meeting a lock; otherwise a lock that
// is taken again and again would block the lane each time.
type quarantine struct {
	*settings
	refused atomic.Uint64 // calls refused because of a bound
	size    atomic.Int32  // len(entries), read without mu
	locked  atomic.Int32  // entries that are locked

	mu              sync.Mutex
	entries         map[keyID]*entry
	waiting         int
	turns           uint64
	suspectsRunning bool // the goroutine of suspects runs
	lockedRunning   bool // the goroutine of locked keys runs
	closed          bool
	runners         sync.WaitGroup
	sweepTimer      *time.Timer
}

// A keyID is a limit and key, or the id of a reservation that is cancelled or of a hold
// that is settled or extended.
type keyID struct{ limit, key string }

// entry is a key in quarantine, with the queue of its groups.
type entry struct {
	keyID
	queue
	locked      bool      // the key's last call met a lock; otherwise it is a suspect
	answered    bool      // the key's last call was answered
	lastRefusal time.Time // when a call last met a lock
	refusals    int       // number of calls that met a lock since the last answer
	lastTurn    uint64    // number of the key's last turn
	lastCall    time.Time // when a call was last queued
}

// newQuarantine returns nil if none is configured. The methods that lanes call do
// nothing on nil.
func newQuarantine(s *settings) *quarantine {
	if s.Quarantine == nil {
		return nil
	}
	return &quarantine{settings: s, entries: map[keyID]*entry{}}
}

// contains reports whether a group has a key in quarantine. Checks take no locks.
func (q *quarantine) contains(g *store.Group) bool {
	if q == nil || q.size.Load() == 0 {
		return false
	}
	if g.Cancel || g.Settles() { // only the store knows the keys of these groups
		return q.locked.Load() > 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range g.Ops {
		if g.Ops[i].Verb != store.VerbCheck && q.entries[keyOf(&g.Ops[i])] != nil {
			return true
		}
	}
	return false
}

func keyOf(op *store.Op) keyID { return keyID{op.Def.Name, op.Key} }

// eachKey calls f for each key of a group.
func eachKey(g *store.Group, f func(keyID)) {
	switch {
	case g.Cancel:
		f(keyID{key: string(g.ID[:])})
		return
	case g.Settles():
		f(keyID{key: g.Hold.ID})
		return
	}
	for i := range g.Ops {
		f(keyOf(&g.Ops[i]))
	}
}

// addLocked adds the keys of groups that met a lock, except for groups that have a
// key in quarantine already.
func (q *quarantine) addLocked(groups []store.Group) {
	if q == nil {
		return
	}
	for i := range groups {
		g := &groups[i]
		if errors.Is(g.Err, store.ErrLocked) {
			q.mu.Lock()
			if q.entryOf(g) == nil {
				eachKey(g, q.add)
			}
			q.mu.Unlock()
		}
	}
}

// entryOf returns the entry at which a group queues, that of its key most likely to
// be locked, or nil if none of its keys is in quarantine.
func (q *quarantine) entryOf(g *store.Group) (w *entry) {
	eachKey(g, func(n keyID) {
		if other := q.entries[n]; other != nil && (w == nil || other.refusals >= w.refusals) {
			w = other
		}
	})
	return w
}

// entryFor is entryOf, after it has added the keys of a group that has none in quarantine.
// entryFor returns nil if there is no room.
func (q *quarantine) entryFor(g *store.Group) *entry {
	if e := q.entryOf(g); e != nil {
		return e
	}
	eachKey(g, q.add)
	return q.entryOf(g)
}

func (q *quarantine) add(n keyID) {
	if q.entries[n] != nil || q.closed || len(q.entries) >= maxKeys {
		return
	}
	q.entries[n] = &entry{keyID: n, lastCall: time.Now()}
	q.size.Store(int32(len(q.entries)))
	if q.sweepTimer == nil {
		q.sweepTimer = time.AfterFunc(forgetAfter, q.sweep)
	}
}

func (q *quarantine) remove(w *entry) {
	q.setLocked(w, false)
	delete(q.entries, w.keyID)
	q.size.Store(int32(len(q.entries)))
}

func (q *quarantine) setLocked(w *entry, locked bool) {
	if w.locked != locked {
		w.locked = locked
		q.locked.Add(map[bool]int32{true: 1, false: -1}[locked])
	}
}

// sweep removes keys without recent calls.
func (q *quarantine) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.entries {
		if w.len == 0 && time.Since(w.lastCall) >= forgetAfter {
			q.remove(w)
		}
	}
	if q.sweepTimer = nil; len(q.entries) > 0 && !q.closed {
		q.sweepTimer = time.AfterFunc(forgetAfter, q.sweep)
	}
}

// admit queues the groups of a batch that were not decided because of a lock, and
// waits for their answers.
func (q *quarantine) admit(c *call, b *store.Batch) {
	if q == nil {
		return
	}
	var first [1]*waiter
	waiters := first[:0]
	var ctx context.Context
	for i := range b.Groups {
		g := &b.Groups[i]
		if !errors.Is(g.Err, store.ErrLocked) || g.NoWait && q.forget(g) {
			continue
		}
		if ctx == nil {
			var done context.CancelFunc
			ctx, done = q.withDeadline(c)
			defer done()
		}
		if w := q.enqueue(c, g); w != nil {
			waiters = append(waiters, w)
		}
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; len(waiters) > 0 && waiters[0].caller == g {
			q.wait(ctx, waiters[0], g)
			waiters = waiters[1:]
		}
	}
}

// forget removes the keys of a group that does not wait, if no call has met a lock there
// for minStay and no call waits: the group's calls would never find out that the row is
// free. forget returns true.
func (q *quarantine) forget(g *store.Group) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	eachKey(g, func(n keyID) {
		if e := q.entries[n]; e != nil && e.len == 0 && time.Since(e.lastCall) > minStay {
			q.remove(e)
		}
	})
	return true
}

// enqueue queues a group, or sets its error and returns nil.
func (q *quarantine) enqueue(c *call, g *store.Group) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entryFor(g)
	switch {
	case q.closed:
		g.Err = ErrClosed
		return nil
	case e == nil || e.len >= maxPerKey || q.waiting >= maxWaiting:
		q.refused.Add(1)
		g.Err = fmt.Errorf("%w, and too many calls wait for locked rows", store.ErrLocked)
		return nil
	}
	w := &waiter{ready: make(chan bool, 1), caller: g}
	w.copy(c.deadline, g)
	q.addWaiter(e, w)
	return w
}

// addWaiter queues w at an entry and starts a runner for it.
func (q *quarantine) addWaiter(e *entry, w *waiter) {
	w.state.Store(queued)
	w.entry = e
	e.push(w)
	e.lastCall = time.Now()
	q.waiting++
	q.start(e)
}

// start starts the runner for an entry's queue, unless it is active.
func (q *quarantine) start(e *entry) {
	switch {
	case e.len == 0:
	case e.locked && !q.lockedRunning:
		q.lockedRunning = true
		q.runners.Go(func() { q.run(&q.lockedRunning, q.nextLocked, q.Quarantine) })
	case !e.locked && !q.suspectsRunning:
		q.suspectsRunning = true
		q.runners.Go(func() { q.run(&q.suspectsRunning, q.nextSuspects, q.sort) })
	}
}

// dequeue removes w from its queue, to be sent.
func (q *quarantine) dequeue(w *waiter) {
	w.entry.unlink(w)
	w.state.Store(sent)
	q.waiting--
}

// wait waits for the answer of w or the end of ctx, and sets g accordingly.
func (q *quarantine) wait(ctx context.Context, w *waiter, g *store.Group) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		if g.Err = q.abandon(w, ctx.Err()); g.Err != nil {
			return
		}
		<-w.ready
	}
	w.answer(g)
}

// abandon gives up w and returns the error of the call, or returns nil if the
// answer has arrived meanwhile.
func (q *quarantine) abandon(w *waiter, why error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch w.state.Load() {
	case queued:
		q.dequeue(w)
		return fmt.Errorf("%w: %w", store.ErrLocked, why)
	case sent:
		w.state.Store(abandoned)
		return fmt.Errorf("%w: %w: %w", store.ErrOutcomeUnknown, errRowLocked, why)
	}
	return nil
}

var errRowLocked = errors.New("another transaction has locked the row")

// close makes queued and new calls fail with ErrClosed.
func (q *quarantine) close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.sweepTimer != nil {
		q.sweepTimer.Stop()
	}
	for _, e := range q.entries {
		for e.head != nil {
			w := e.head
			q.dequeue(w)
			w.finish(&store.Group{Err: ErrClosed})
		}
	}
}

// waitIdle waits until no statement is in flight.
func (q *quarantine) waitIdle() {
	if q != nil {
		q.runners.Wait()
	}
}
