package memory

import (
	"container/heap"
	"maps"
	"slices"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// A ledger keeps reservations or holds under their ids until they may be deleted. Its
// lock is taken after those of the shards.
type ledger[K comparable, V any] struct {
	measure func(*V) (parts int, until int64) // until is in µs; parts 0 means that there is no value
	max     int                               // parts of all values

	mu      sync.Mutex
	parts   int
	entries map[K]*entry[K, V]
	due     entryHeap[K, V]
	touched map[K]struct{} // ids that were set, changed or deleted; nil: not watched
}

type entry[K, V any] struct {
	id    K
	value V
	parts int
	until int64
	index int // in the heap
}

func measurePending(h *store.Pending) (int, int64) { return len(h.Parts), h.Due }
func measureHold(h *store.Hold) (int, int64)       { return len(h.Parts), h.Forget }

func (l *ledger[K, V]) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

func (l *ledger[K, V]) get(id K) (v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e != nil {
		v = e.value
	}
	return v
}

// set stores a value, or deletes it if it has no parts. It returns false if the id
// is new and there is no room. The ledger is locked.
func (l *ledger[K, V]) set(id K, v V, now int64) bool {
	parts, until := l.measure(&v)
	e := l.entries[id]
	switch {
	case parts == 0:
		if e != nil {
			l.remove(e)
		}
	case e != nil:
		l.parts += parts - e.parts
		e.value, e.parts, e.until = v, parts, until
		heap.Fix(&l.due, e.index)
	default:
		for len(l.due) > 0 && l.due[0].until <= now {
			l.remove(l.due[0])
		}
		if l.parts+parts > l.max {
			return false
		}
		if l.entries == nil {
			l.entries = map[K]*entry[K, V]{}
		}
		e = &entry[K, V]{id: id, value: v, parts: parts, until: until}
		l.entries[id] = e
		l.parts += parts
		heap.Push(&l.due, e)
	}
	l.markChanged(id)
	return true
}

func (l *ledger[K, V]) remove(e *entry[K, V]) {
	delete(l.entries, e.id)
	l.parts -= e.parts
	heap.Remove(&l.due, e.index)
	l.markChanged(e.id)
}

func (l *ledger[K, V]) markChanged(id K) {
	if l.touched != nil {
		l.touched[id] = struct{}{}
	}
}

// sweep deletes the values that may be deleted at now.
func (l *ledger[K, V]) sweep(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.due) > 0 && l.due[0].until <= now {
		l.remove(l.due[0])
	}
}

func (l *ledger[K, V]) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.touched = map[K]struct{}{}
}

// changed returns the ids that were set or deleted since the previous call.
func (l *ledger[K, V]) changed() []K {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Collect(maps.Keys(l.touched))
	clear(l.touched)
	return ids
}

// entryHeap is a heap with the entry that may be deleted first on top.
type entryHeap[K comparable, V any] []*entry[K, V]

func (h entryHeap[K, V]) Len() int           { return len(h) }
func (h entryHeap[K, V]) Less(i, j int) bool { return h[i].until < h[j].until }
func (h entryHeap[K, V]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *entryHeap[K, V]) Push(x any) {
	e := x.(*entry[K, V])
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *entryHeap[K, V]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
