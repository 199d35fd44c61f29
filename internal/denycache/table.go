package denycache

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
)

// A table maps hashes of keys to slots, eight to a set. It has a fixed number of
// sets, each with slots from its first refusal on: most keys are never refused,
// and four megabytes for them would be half of a small service.
type table struct {
	seed [2]maphash.Seed
	sets []set
	keys atomic.Int64 // slots in use
}

const ways = 8

// A set is the slots that share a part of their hash.
type set struct {
	mu    sync.Mutex
	seen  uint64      // grows with everything that happens to a key of the set, but refusals
	slots *[ways]slot // nil: no key was refused yet
}

// A slot is one refused key: its row, and when that was learnt.
type slot struct {
	id      hash
	used    int64  // units, at ts
	ts      int64  // µs on the store's clock
	at      int64  // µs on the store's clock, when the request was answered
	sent    int64  // µs on this process's clock, when it was sent
	epoch   uint64 // of the store when it was sent: an older one is void
	version uint32 // of the definition
	trip    uint32 // µs from sending to the answer; less than an hour, as MaxAge is
}

// full reports whether the slot is in use. No key's hash is zero, but one in 2^128.
func (e *slot) full() bool { return e.id != hash{} }

// hash is the identity of a limit and key. Seeded, so that nobody can make two
// keys meet on purpose; 128 bits, so that none meet by accident.
type hash [2]uint64

// A mark is a key as it was when a request about it was sent.
type mark struct {
	id   hash
	seen uint64
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

// look returns what is kept of a key, and a mark for the request that may follow.
func (t *table) look(limit, key string) (slot, mark) {
	id := t.hash(limit, key)
	s := t.set(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := mark{id, s.seen}
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
		if e := &s.slots[i]; e.id == id && e.full() {
			return e
		}
	}
	return nil
}

// forget drops a key to which something happened, and with it every refusal
// that is still on its way.
func (t *table) forget(m mark) {
	s := t.set(m.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen++
	if e := s.find(m.id); e != nil {
		*e = slot{}
		t.keys.Add(-1)
	}
}

// put keeps a refusal, unless something happened to the key since the mark, or
// a later answer is kept already.
func (t *table) put(m mark, e slot) {
	s := t.set(m.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen != m.seen {
		return
	}
	if s.slots == nil {
		s.slots = new([ways]slot)
	}
	to := s.find(m.id)
	switch {
	case to == nil:
		to = s.oldest()
	case to.at > e.at && to.version == e.version && to.epoch == e.epoch:
		return
	}
	if !to.full() {
		t.keys.Add(1)
	}
	e.id = m.id
	*to = e
}

// oldest is a free slot, or the one that will be of use for the shortest time.
func (s *set) oldest() *slot {
	least := &s.slots[0]
	for i := range s.slots {
		e := &s.slots[i]
		if !e.full() {
			return e
		}
		if e.sent < least.sent {
			least = e
		}
	}
	return least
}
