package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// A table finds keys of limits. It has a fixed number of sets of four, each for the
// keys whose hashes share their low bits. A reader takes no lock.
type table struct {
	seed maphash.Seed
	sets []set
}

type set struct {
	ways [4]atomic.Pointer[key]
	mu   sync.Mutex // locked by writers
	_    [24]byte
}

const keys = 1 << 14 // keys that are measured at the same time

func newTable() table { return table{maphash.MakeSeed(), make([]set, keys/4)} }

func (t *table) set(limit, name string) *set {
	h := maphash.String(t.seed, name) + uint64(len(limit)) + 3*uint64(limit[0]) + 5*uint64(limit[len(limit)-1])
	return &t.sets[h&uint64(len(t.sets)-1)]
}

// find returns a key, or nil.
func (t *table) find(limit, name string) *key { return t.set(limit, name).find(limit, name) }

func (s *set) find(limit, name string) *key {
	for i := range s.ways {
		if k := s.ways[i].Load(); k != nil && k.name == name && k.limit == limit {
			return k
		}
	}
	return nil
}

// findOrAdd returns a key, and adds it if it is new, in place of the key of the same set
// that was idle longest. findOrAdd returns nil if all keys of the set hold tokens.
func (t *table) findOrAdd(d *store.Definition, name string, now int64) *key {
	s := t.set(d.Name, name)
	if k := s.find(d.Name, name); k != nil {
		return k
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.find(d.Name, name); k != nil {
		return k
	}
	var to *atomic.Pointer[key]
	oldest := now
	for i := range s.ways {
		old := s.ways[i].Load()
		if old == nil {
			to = &s.ways[i]
			break
		}
		if last, idle := old.idle(); idle && last <= oldest {
			to, oldest = &s.ways[i], last
		}
	}
	if to == nil {
		return nil
	}
	k := &key{limit: d.Name, name: name, mean: 1, demand: demand{began: now, last: now}}
	to.Store(k)
	return k
}

// each calls f for all keys.
func (t *table) each(f func(k *key)) {
	for i := range t.sets {
		for w := range t.sets[i].ways {
			if k := t.sets[i].ways[w].Load(); k != nil {
				f(k)
			}
		}
	}
}
