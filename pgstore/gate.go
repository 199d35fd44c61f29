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

	// A row is locked until its commit has reached the disk. One call holds the lock,
	// and the others are on their way or wait for it, so that a seat is worth its trip.
	rowSeats = 4

	// How long a call waits for a seat before it goes without one. The wait for a shard
	// is short: where the trip to the server takes long, more calls than there are shards
	// must be on their way.
	rowWait   = 100 * time.Millisecond
	shardWait = 5 * time.Millisecond
)

// Gates make calls of one store that write the same row wait here, and not all of them
// for the lock of the row. A backend that waits for a lock goes to sleep, is woken, starts
// the subplans of its statement a second time and looks at the row again: with many of
// them, that costs several times as much as the statement alone. Of a key with shards,
// calls with different seats take from different shards.
//
// A gate is a preference: the rows decide, and other programs meet only there. So a key
// whose slot of the table another key uses has no gate at that moment, and a call that
// has waited long goes on without a seat. Without that, a call could wait for ever for
// another whose statement waits for a lock that a transaction of the first one's caller
// holds.
//
// Stores of lanes have none (nil): there a wait holds up the other keys of the lane. Rows
// of unlogged tables have none either. Their locks are short, and most of the time of a
// call is its trip.
type gates struct {
	seed  maphash.Seed
	most  time.Duration // of tests: the longest wait
	slots [gateSlots]gate
}

func newGates() *gates { return &gates{seed: maphash.MakeSeed()} }

// A gate has seats for the calls of one key that may be in flight at the same time. The
// others wait in the order in which they came.
type gate struct {
	mu      sync.Mutex
	limit   int32
	key     string
	taken   uint64    // a bit for each seat; with none, the gate is any key's
	waiting list.List // of chan int, which get the seat
	full    []int64   // of a key with shards: when a shard is full if nobody takes, as far as is known
}

// A seat in a gate, from 0. The gate is nil if the call goes on without one.
type seat struct {
	*gate
	n int
}

// enter takes one of n seats, at most 64, of a key. If all are taken it waits until one
// is free, at most for most. The error is that of the context; nothing was sent then.
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

// choose takes one of two free seats, the one whose shard is full earlier.
func (g *gate) choose(n int) int {
	free := ^g.taken & (1<<n - 1)
	at := anyOf(free, rand.IntN(n))
	if other := anyOf(free, rand.IntN(n)); len(g.full) == n && g.full[other] < g.full[at] {
		at = other
	}
	g.taken |= 1 << at
	return at
}

// anyOf returns the first bit that is set from at on, or from the beginning.
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
