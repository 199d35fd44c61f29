package pgstore

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/store"
)

const (
	gateSlots = 1 << 10

	// A row is locked until its commit has reached the disk. While one call holds the
	// lock, the other three are on their way to the server, so that the row is never idle
	// for a round trip. More calls at once are merged, one statement after the other: with
	// eight clients that takes a third of the processor time of two statements at a time.
	rowSeats = 4

	// How long a call waits for a seat before it goes on without one. The wait for a
	// shard is short: if round trips take long, more calls than there are shards have to
	// be in flight.
	rowWait   = 100 * time.Millisecond
	shardWait = 5 * time.Millisecond
)

// gates make calls of one store that write the same row wait here instead of all waiting
// for the row's lock. A backend that waits for a lock goes to sleep, is woken, starts the
// subplans of its statement a second time and reads the row again. With many such
// backends that costs several times as much as the statement itself. Calls of a key with
// shards that have different seats take from different shards.
//
// More calls of a row than there are seats are merged: while a statement is in flight the
// others wait, and the next statement decides all of them and pays for one commit. A call
// that nobody is in the way of never waits. Only calls on a pool are merged: the statement
// outlives callers who give up, and a connection of the caller's must not be in use then.
// Of a key with shards the calls that wait for a seat are merged when one is free, while
// other shards are charged.
//
// Gates only reduce contention; the row locks keep the counts right, between programs
// too. So a key has no gate while another key uses its slot of the table, and a call that
// has waited long goes on without a seat. Otherwise a call could wait forever for a seat
// whose holder waits for a row that the same caller has locked in a transaction.
//
// Stores of lanes have none (nil), because there a waiting call holds up the other keys
// of the lane. Rows of unlogged tables have none either: their locks are held so briefly
// that most of a call is its round trip.
type gates struct {
	seed  maphash.Seed
	most  time.Duration // for tests: replaces the longest wait
	slots [gateSlots]gate
}

func newGates() *gates { return &gates{seed: maphash.MakeSeed()} }

// A gate has seats for the calls of one key that may be in flight at the same time. The
// others wait in the order in which they came.
type gate struct {
	mu      sync.Mutex
	limit   int32
	key     string
	taken   uint64    // a bit for each seat; 0: any key may use the gate
	stuck   uint64    // taken seats that calls have waited for as long as they may
	crowded bool      // there are more calls than seats: those that can be merged use one seat
	waiting list.List // of *waiter
	full    []int64   // for a key with shards: when each shard would be full if nobody took from it, as last seen
}

// A seat is one of a gate's seats, counted from 0. Its gate is nil if the call goes on
// without one.
type seat struct {
	*gate
	n       int
	calls   int  // that its statement decides, if it is more than one
	decided bool // the call is answered: another one's statement has decided it
}

// enter takes one of the n seats (at most 64) of a key. If w may not have one yet, it
// waits, at most for the time most. Its error is that of the context, or of the call if it
// was decided together with others.
func (t *gates) enter(ctx context.Context, limit int32, key string, n int, most time.Duration, w waiter) (seat, error) {
	if t == nil {
		return seat{}, nil
	}
	h := maphash.String(t.seed, key) ^ uint64(uint32(limit))*0x9e3779b97f4a7c15
	g := &t.slots[h%gateSlots]
	g.mu.Lock()
	if g.taken == 0 && (g.limit != limit || g.key != key) {
		g.limit, g.key, g.full, g.crowded = limit, key, nil, false
	}
	switch full := bits.OnesCount64(g.taken) >= n; {
	case g.limit != limit || g.key != key:
		g.mu.Unlock()
		return seat{}, nil
	case !full && g.waiting.Len() == 0 && !g.defers(&w):
		at := g.choose(n)
		g.mu.Unlock()
		return seat{gate: g, n: at}, nil
	case full && w.store != nil && !w.shard:
		g.crowded = true
	}
	w.seats, w.ready = n, make(chan seat, 1)
	w.place = g.waiting.PushBack(&w)
	g.mu.Unlock()
	return g.wait(ctx, &w, cmp.Or(t.most, most))
}

// enterRow takes a seat of a row for a group, or none if its table is not logged. e is the
// entry of the group's only key, or nil if it has several.
func (s *Store) enterRow(ctx context.Context, limit int32, key string, g *store.Group, e *entry) (seat, error) {
	if !s.limits.logged.Load() {
		return seat{}, nil
	}
	return s.gates.enter(ctx, limit, key, rowSeats, rowWait, s.newWaiter(g, e))
}

// newWaiter returns a call that can be merged with others if the store has a pool.
func (s *Store) newWaiter(g *store.Group, e *entry) (w waiter) {
	if _, ok := s.db.(*pgxpool.Pool); ok {
		w.store, w.group, w.entry = s, g, e
	}
	return w
}

// choose returns the better of two free seats: the one whose shard is full earlier.
func (g *gate) choose(n int) int {
	free := ^g.taken & (1<<n - 1)
	at := anyOf(free, rand.IntN(n))
	if other := anyOf(free, rand.IntN(n)); len(g.full) == n && g.full[other] < g.full[at] {
		at = other
	}
	g.taken |= 1 << at
	return at
}

// anyOf returns the number of the first bit that is set, starting at bit at and wrapping
// around.
func anyOf(set uint64, at int) int {
	if later := set >> at << at; later != 0 {
		set = later
	}
	return bits.TrailingZeros64(set)
}

// note remembers when the shard of a seat is full.
func (s seat) note(full int64, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.full) != n {
		s.full = make([]int64, n)
	}
	s.full[s.n] = full
}

func (g *gate) wait(ctx context.Context, w *waiter, most time.Duration) (seat, error) {
	late := time.NewTimer(most)
	defer late.Stop()
	for {
		select {
		case at := <-w.ready:
			return at, w.err
		case <-ctx.Done():
		case <-late.C:
		}
		if at, goes, err := g.endWait(w, ctx.Err()); goes {
			return at, err
		}
	}
}

// endWait ends the wait of a call whose context has ended, for the reason why, or that has
// waited long (why is nil). goes is false if the call has to wait for its statement, which
// is in flight.
func (g *gate) endWait(w *waiter, why error) (at seat, goes bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case w.sent != nil && why == nil:
		w.late = true
		return seat{}, false, nil
	case w.sent != nil:
		w.sent.abandon(w)
		return seat{}, true, fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, why)
	case w.place != nil:
		g.waiting.Remove(w.place)
		w.place = nil
		if why == nil {
			g.stuck |= g.taken
		}
		g.admit()
	default: // meanwhile it got a seat or its answer
		if at = <-w.ready; why == nil || at.decided {
			return at, true, w.err
		}
		at.free()
	}
	if why != nil {
		err = fmt.Errorf("%w: not sent and not charged: %w", store.ErrStore, why)
	}
	return seat{}, true, err
}

// leave frees the seat.
func (s seat) leave() {
	if s.gate == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free()
}

// free is leave under the gate's lock.
func (s seat) free() {
	if s.gate == nil {
		return
	}
	s.taken &^= 1 << s.n
	s.stuck &^= 1 << s.n
	s.crowded = s.crowded && max(s.calls, 1)+bits.OnesCount64(s.taken)+s.waiting.Len() > rowSeats
	s.admit()
}

// defers reports whether a call has to wait until no other is in flight, to be merged
// with those that wait meanwhile.
func (g *gate) defers(w *waiter) bool {
	return g.crowded && w.store != nil && !w.shard && g.taken != g.stuck
}

// admit gives free seats to the calls that have waited longest. While the gate is crowded
// it merges the calls that wait, once no other call is in flight.
func (g *gate) admit() {
	for first := g.waiting.Front(); first != nil; first = g.waiting.Front() {
		w := first.Value.(*waiter)
		if bits.OnesCount64(g.taken) >= w.seats || g.defers(w) {
			return
		}
		at := seat{gate: g, n: g.choose(w.seats)}
		if some := g.mergeable(); (g.crowded || w.shard) && len(some) > 1 {
			at.calls = len(some)
			go g.newMerged(some).run(at)
			return
		}
		g.waiting.Remove(first)
		w.place = nil
		w.ready <- at
	}
}
