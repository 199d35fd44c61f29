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
	maxWards   = 4096 // keys; a batch that met a lock makes each of its keys one for a moment
	maxPatient = 4096 // groups waiting there
	maxPerWard = 1024 // of one key, so that it cannot have the whole queue
	maxSorted  = 30   // keys that the sorter asks about at one time: so many locked ones a store can tell apart

	longWait  = 200 * time.Millisecond // for a lock, shared by the locked keys
	shortWait = 10 * time.Millisecond  // for a lock, at least
	stay      = time.Second            // without a refusal, until a key goes back to its lane
	forget    = 10 * time.Second       // without a call, after which a key is a stranger again
)

// errHeld stands for ErrLocked where nobody had to be asked.
var errHeld = fmt.Errorf("%w: others wait for it already", store.ErrLocked)

// quarantine asks about keys whose row another transaction has locked, so that
// no lane has to wait for them.
//
// When a lane's statement meets a lock, all keys of the statement come here as
// suspects. The sorter asks about them together and hardly waits: those that are
// not locked get their answer and go back to their lanes. The locked ones take
// turns on a connection of their own, one call each, so that no key waits for
// another key's lock for long. An answer there makes a key a suspect again, and
// it goes back to its lane once it has met no lock for a second: a lock that
// comes and goes would hold up its lane each time.
type quarantine struct {
	*settings
	refused atomic.Uint64 // calls that found no room
	count   atomic.Int32  // len(wards), for calls of other keys
	stuck   atomic.Int32  // wards that are locked

	mu      sync.Mutex
	wards   map[name]*ward
	waiting int
	turn    uint64
	sorting bool // the sorter runs
	turning bool // somebody asks about locked keys
	closed  bool
	runners sync.WaitGroup
	sweeper *time.Timer
}

// name is a key of a limit, or a reservation to cancel.
type name struct{ limit, key string }

// ward is a key in quarantine. Its queue has the groups that wait for it.
type ward struct {
	name
	queue
	locked  bool      // it was refused and not answered since; otherwise a suspect
	proven  bool      // it was answered and not refused since
	refusal time.Time // the last one
	refuses int       // in a row
	asked   uint64    // the turn it was asked in last
	called  time.Time // for the last time
}

// newQuarantine returns nil if none is configured: its methods that lanes
// call then do nothing.
func newQuarantine(s *settings) *quarantine {
	if s.Quarantine == nil {
		return nil
	}
	return &quarantine{settings: s, wards: map[name]*ward{}}
}

// holds reports whether a group has a key in quarantine. Checks lock nothing.
func (q *quarantine) holds(g *store.Group) bool {
	if q == nil || q.count.Load() == 0 {
		return false
	}
	if g.Cancel { // of which key, only the store knows
		return q.stuck.Load() > 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range g.Ops {
		if g.Ops[i].Verb != store.VerbCheck && q.wards[nameOf(&g.Ops[i])] != nil {
			return true
		}
	}
	return false
}

func nameOf(op *store.Op) name { return name{op.Def.Name, op.Key} }

// names calls f for each name of a group.
func names(g *store.Group, f func(name)) {
	if g.Cancel {
		f(name{key: string(g.ID[:])})
		return
	}
	for i := range g.Ops {
		f(nameOf(&g.Ops[i]))
	}
}

// suspect makes wards of the keys of groups that met a lock. A group of several
// keys with one in quarantine already needs no more. err speaks for all groups.
func (q *quarantine) suspect(groups []store.Group, err error) {
	if q == nil {
		return
	}
	for i := range groups {
		g := &groups[i]
		if errors.Is(g.Err, store.ErrLocked) || errors.Is(err, store.ErrLocked) {
			q.mu.Lock()
			if q.wardOf(g) == nil {
				names(g, q.add)
			}
			q.mu.Unlock()
		}
	}
}

// wardOf is the ward that a group waits in: of its keys the one most likely to
// be locked, or nil.
func (q *quarantine) wardOf(g *store.Group) (w *ward) {
	names(g, func(n name) {
		if other := q.wards[n]; other != nil && (w == nil || other.refuses >= w.refuses) {
			w = other
		}
	})
	return w
}

func (q *quarantine) add(n name) {
	if q.wards[n] != nil || q.closed || len(q.wards) >= maxWards {
		return
	}
	q.wards[n] = &ward{name: n, called: time.Now()}
	q.count.Store(int32(len(q.wards)))
	if q.sweeper == nil {
		q.sweeper = time.AfterFunc(forget, q.sweep)
	}
}

func (q *quarantine) remove(w *ward) {
	q.mark(w, false)
	delete(q.wards, w.name)
	q.count.Store(int32(len(q.wards)))
}

func (q *quarantine) mark(w *ward, locked bool) {
	if w.locked != locked {
		w.locked = locked
		q.stuck.Add(map[bool]int32{true: 1, false: -1}[locked])
	}
}

// sweep forgets keys that nobody calls any more.
func (q *quarantine) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.wards {
		if w.len == 0 && time.Since(w.called) >= forget {
			q.remove(w)
		}
	}
	if q.sweeper = nil; len(q.wards) > 0 && !q.closed {
		q.sweeper = time.AfterFunc(forget, q.sweep)
	}
}

// admit asks about the groups of a batch that a lane could not decide because of
// a lock, and waits for their answers.
func (q *quarantine) admit(bounds *bounds, c *call, b *store.Batch, err error) error {
	if err != nil && !errors.Is(err, store.ErrLocked) {
		return err
	}
	var first [1]*waiter
	waiters := first[:0]
	var ctx context.Context
	for i := range b.Groups {
		g := &b.Groups[i]
		if err != nil {
			g.Err = err
		}
		if !errors.Is(g.Err, store.ErrLocked) {
			continue
		}
		if ctx == nil {
			var done context.CancelFunc
			ctx, done = bounds.bound(c)
			defer done()
		}
		if w := q.join(c, g); w != nil {
			waiters = append(waiters, w)
		}
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; len(waiters) > 0 && waiters[0].asker == g {
			q.wait(ctx, waiters[0], g)
			waiters = waiters[1:]
		}
	}
	return nil
}

// join queues a group, or says in it why not.
func (q *quarantine) join(c *call, g *store.Group) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	in := q.wardOf(g)
	if in == nil {
		names(g, q.add)
		in = q.wardOf(g)
	}
	switch {
	case q.closed:
		g.Err = ErrClosed
		return nil
	case in == nil || in.len >= maxPerWard || q.waiting >= maxPatient:
		q.refused.Add(1)
		g.Err = fmt.Errorf("%w, and too many calls wait for such rows", store.ErrLocked)
		return nil
	}
	w := &waiter{ready: make(chan bool, 1), asker: g}
	w.copy(c.deadline, g)
	q.put(in, w)
	return w
}

// put queues w in a ward, and makes sure that somebody asks.
func (q *quarantine) put(in *ward, w *waiter) {
	w.state.Store(queued)
	w.ward = in
	in.push(w)
	in.called = time.Now()
	q.waiting++
	q.start(in)
}

// start makes sure that somebody asks about those who wait in a ward.
func (q *quarantine) start(in *ward) {
	switch {
	case in.len == 0:
	case in.locked && !q.turning:
		q.turning = true
		q.runners.Go(q.takeTurns)
	case !in.locked && !q.sorting:
		q.sorting = true
		q.runners.Go(q.sort)
	}
}

// draw takes w out of its ward's queue to be sent.
func (q *quarantine) draw(w *waiter) {
	w.ward.unlink(w)
	w.state.Store(sent)
	q.waiting--
}

// wait returns with the answer of w in g, or when the caller's context ends.
func (q *quarantine) wait(ctx context.Context, w *waiter, g *store.Group) {
	select {
	case <-w.ready:
	case <-ctx.Done():
		if g.Err = q.leave(w, ctx.Err()); g.Err != nil {
			return
		}
		<-w.ready
	}
	w.answer(g)
}

// leave gives up on w and says what became of it, or returns nil when its
// answer is there after all.
func (q *quarantine) leave(w *waiter, why error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch w.state.Load() {
	case queued:
		q.draw(w)
		return fmt.Errorf("%w: %w", store.ErrLocked, why)
	case sent:
		w.state.Store(left)
		return fmt.Errorf("%w: %w: %w", store.ErrOutcomeUnknown, errSlow, why)
	}
	return nil
}

var errSlow = errors.New("another transaction holds the row")

// close refuses those who wait and all who come.
func (q *quarantine) close() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.sweeper != nil {
		q.sweeper.Stop()
	}
	for _, in := range q.wards {
		for in.head != nil {
			w := in.head
			q.draw(w)
			w.finish(&store.Group{Err: ErrClosed})
		}
	}
}

// drained returns when no statement is in flight.
func (q *quarantine) drained() {
	if q != nil {
		q.runners.Wait()
	}
}

// Stats describes the quarantine of a Store.
type Stats struct {
	Quarantined int    // keys whose calls go to the quarantine
	Refused     uint64 // calls that found no room there
}

// Stats returns the present numbers.
func (s *Store) Stats() (out Stats) {
	if q := s.quarantine; q != nil {
		out = Stats{int(q.count.Load()), q.refused.Load()}
	}
	return out
}
