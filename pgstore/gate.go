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

	"github.com/dipwell/dipwell/store"
)

const (
	gateSlots = 1 << 10

	// A row is locked until its commit has reached the disk. While one call holds the
	// lock, the other three are on their way to the server, so that the row is never idle
	// for a round trip.
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
	waiting list.List // of chan int, which receives the seat
	full    []int64   // for a key with shards: when each shard would be full if nobody took from it, as last seen
}

// A seat is one of a gate's seats, counted from 0. Its gate is nil if the call goes on
// without one.
type seat struct {
	*gate
	n int
}

// enter takes one of the n seats (at most 64) of a key. If all are taken, it waits for
// one, at most for the time most. Its error is that of the context; in that case nothing
// was sent.
func (t *gates) enter(ctx context.Context, limit int32, key string, n int, most time.Duration) (seat, error) {
	if t == nil {
		return seat{}, nil
	}
	h := maphash.String(t.seed, key) ^ uint64(uint32(limit))*0x9e3779b97f4a7c15
	g := &t.slots[h%gateSlots]
	g.mu.Lock()
	if g.taken == 0 && (g.limit != limit || g.key != key) {
		g.limit, g.key, g.full = limit, key, nil
	}
	switch {
	case g.limit != limit || g.key != key:
		g.mu.Unlock()
		return seat{}, nil
	case bits.OnesCount64(g.taken) < n:
		at := g.choose(n)
		g.mu.Unlock()
		return seat{g, at}, nil
	}
	ready := make(chan int, 1)
	place := g.waiting.PushBack(ready)
	g.mu.Unlock()
	return g.wait(ctx, ready, place, cmp.Or(t.most, most))
}

// enterRow takes a seat of a row, or none if its table is not logged.
func (s *Store) enterRow(ctx context.Context, limit int32, key string) (seat, error) {
	if !s.limits.logged.Load() {
		return seat{}, nil
	}
	return s.gates.enter(ctx, limit, key, rowSeats, rowWait)
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

func (g *gate) wait(ctx context.Context, ready chan int, place *list.Element, most time.Duration) (seat, error) {
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case at := <-ready:
		return seat{g, at}, nil
	case <-ctx.Done():
	case <-late.C:
	}
	g.mu.Lock()
	g.waiting.Remove(place) // does nothing if it was removed
	g.mu.Unlock()
	var got seat
	select {
	case at := <-ready:
		got = seat{g, at}
	default:
	}
	if err := ctx.Err(); err != nil {
		got.leave()
		return seat{}, fmt.Errorf("%w: not sent and not charged: %w", store.ErrStore, err)
	}
	return got, nil
}

// leave gives the seat to the call that has waited longest, if any waits.
func (s seat) leave() {
	if s.gate == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.waiting.Front(); first != nil {
		s.waiting.Remove(first).(chan int) <- s.n
		return
	}
	s.taken &^= 1 << s.n
}
