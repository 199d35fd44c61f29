package denycache

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
)

// A table maps hashes of keys to slots. It has a fixed number of sets of eight
// slots. The slots of a set are allocated with its first refusal: most keys are
// never refused, and 4 MB for them would be half of a small service.
type table struct {
	seed [2]maphash.Seed
	sets []set
	keys atomic.Int64 // number of slots in use
}

const ways = 8

// A set is the slots of the hashes that share their low bits.
type set struct {
	mu         sync.Mutex
	generation uint64      // incremented by each call, of a key in the set, that is not refused
	slots      *[ways]slot // nil before the first refusal
}

// A slot is a refused key: its row, and when the row was read.
type slot struct {
	id        hash
	used      int64  // used units at the time ts
	ts        int64  // µs on the store's clock
	room      int64  // if more units than this are in use, the refused call is still refused
	at        int64  // µs on the store's clock, when the request was answered
	sent      int64  // µs on this process's clock, when the request was sent
	epoch     uint64 // Store.epoch when the request was sent; older slots are invalid
	since     int64  // when the definition's version began
	version   uint32
	roundTrip uint32 // µs from sending to answer; less than MaxAge
}

// inUse reports whether the slot is in use. A key's hash is zero with a probability
// of 2^-128.
func (e *slot) inUse() bool { return e.id != hash{} }

// hash identifies a limit and key. It is seeded, so that nobody can construct a
// collision, and has 128 bits, so that none happens by chance.
type hash [2]uint64

// A ref is a key and its set's generation when a request was sent.
type ref struct {
	id         hash
	generation uint64
}

func (t *table) init(keys int) {
	n := 1 << bits.Len(uint(max(keys, ways)-1)) / ways
	t.seed = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	t.sets = make([]set, n)
}

func (t *table) hash(limit, key string) (h hash) {
	for i, seed := range t.seed {
		h[i] = maphash.String(seed, limit)*0x9e3779b97f4a7c15 + maphash.String(seed, key)
	}
	return h
}

func (t *table) set(id hash) *set { return &t.sets[id[0]&uint64(len(t.sets)-1)] }

// lookup returns a copy of the slot of a key, or an empty one, and a ref.
func (t *table) lookup(limit, key string) (slot, ref) {
	id := t.hash(limit, key)
	s := t.set(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := ref{id, s.generation}
	if e := s.find(id); e != nil {
		return *e, m
	}
	return slot{}, m
}

func (s *set) find(id hash) *slot {
	if s.slots == nil {
		return nil
	}
	for i := range s.slots {
		if e := &s.slots[i]; e.id == id && e.inUse() {
			return e
		}
	}
	return nil
}

// forget removes a key, and keeps refusals that are in flight from being stored.
func (t *table) forget(m ref) {
	s := t.set(m.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	if e := s.find(m.id); e != nil {
		*e = slot{}
		t.keys.Add(-1)
	}
}

// put stores a refusal, unless the generation has changed since m or the slot has a
// later answer already.
func (t *table) put(m ref, e slot) {
	s := t.set(m.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != m.generation {
		return
	}
	if s.slots == nil {
		s.slots = new([ways]slot)
	}
	to := s.find(m.id)
	switch {
	case to == nil:
		to = s.oldest()
	case to.at > e.at && to.version == e.version && to.since == e.since && to.epoch == e.epoch:
		return
	}
	if !to.inUse() {
		t.keys.Add(1)
	}
	e.id = m.id
	*to = e
}

// renew replaces the refusal of a key by a later one, and reports whether it did. The
// earlier refusal must still have been usable when the later request was sent. This shows
// that the row had no holds, which may give tokens back at any time.
func (t *table) renew(m ref, e slot, maxAge int64) bool {
	s := t.set(m.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.find(m.id)
	if s.generation != m.generation || to == nil || to.at > e.at || to.version != e.version || to.since != e.since || to.epoch != e.epoch || e.sent-to.sent >= maxAge {
		return false
	}
	e.id = m.id
	*to = e
	return true
}

// oldest returns a free slot, or the one that expires first.
func (s *set) oldest() *slot {
	least := &s.slots[0]
	for i := range s.slots {
		e := &s.slots[i]
		if !e.inUse() {
			return e
		}
		if e.sent < least.sent {
			least = e
		}
	}
	return least
}
