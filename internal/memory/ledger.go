package memory

import (
	"container/heap"
	"maps"
	"slices"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// A ledger keeps reservations or holds under their ids until they may be deleted. A live entry
// always stays. An ended one stays until then too, to answer repeated calls, unless a new
// one needs its room. The lock of a ledger is taken after the locks of the shards.
type ledger[K comparable, V any] struct {
	measure func(*V) term
	live    func(v *V, by int) // called with 1 when a value begins to live, with -1 when it ends; nil: not needed
	max     int                // most parts that all values may have together

	mu      sync.Mutex
	parts   int
	entries map[K]*entry[K, V]
	due     heapOf[*entry[K, V]] // the live entries; the one that ends first is on top
	ended   entry[K, V]          // beginning and end of the ring of ended entries; the one that ended first is next
	spare   *entry[K, V]         // removed entries, for reuse; nil: none
	sought  K                    // the id that find looked for last
	last    *entry[K, V]         // what find returned then
	touched map[K]struct{}       // ids that were set, changed or deleted; nil: not watched
}

// A term says how long a value stays. Times are in µs.
type term struct {
	parts int   // 0: there is no value
	over  bool  // the value has ended already
	ends  int64 // when it ends, unless it is over
	until int64 // when it may be deleted
}

type entry[K comparable, V any] struct {
	id    K
	value V
	term
	index      int          // index in the heap, if the entry is live
	prev, next *entry[K, V] // neighbours in the ring of ended entries, or nil
}

func measurePending(h *store.Pending) term {
	return term{parts: len(h.Parts), ends: h.Due, until: h.Due}
}

func measureHold(h *store.Hold) term {
	over := h.Settled || !slices.ContainsFunc(h.Parts, func(p store.Part) bool { return !p.Reset })
	return term{len(h.Parts), over, h.Expires, h.Forget}
}

func (l *ledger[K, V]) init(most int, measure func(*V) term) {
	l.max, l.measure, l.entries = most, measure, map[K]*entry[K, V]{}
	l.ended.prev, l.ended.next = &l.ended, &l.ended
	l.due.before = func(a, b *entry[K, V]) bool { return a.ends < b.ends }
	l.due.at = func(e *entry[K, V]) *int { return &e.index }
}

func (l *ledger[K, V]) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

func (l *ledger[K, V]) get(id K) (v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(id); e != nil {
		v = e.value
	}
	return v
}

// find returns an entry, or nil. What was found last is remembered, because a call looks for
// the same id several times. The ledger is locked.
func (l *ledger[K, V]) find(id K) *entry[K, V] {
	if l.sought != id {
		l.sought, l.last = id, l.entries[id]
	}
	return l.last
}

// set stores a value, or deletes it if it has no parts. set returns false if the id is
// new and live values have all the room. The ledger is locked.
func (l *ledger[K, V]) set(id K, v *V, now int64) bool {
	l.advance(now)
	of := l.measure(v)
	e := l.find(id)
	switch {
	case of.parts == 0:
		if e != nil {
			l.remove(e)
		}
		return true
	case e != nil:
		l.unlink(e)
	default:
		for l.parts+of.parts > l.max && l.firstEnded() != nil {
			l.remove(l.firstEnded())
		}
		if l.parts+of.parts > l.max {
			return false
		}
		if e = l.spare; e == nil {
			e = new(entry[K, V])
		}
		l.spare, e.id = nil, id
		l.entries[id], l.sought, l.last = e, id, e
	}
	e.value, e.term = *v, of
	l.link(e)
	l.markChanged(id)
	return true
}

// advance moves entries that have ended at now to the ended ones, and deletes those that may
// be deleted. An entry that may be deleted stays while it is behind one that ended earlier
// and is kept for longer.
func (l *ledger[K, V]) advance(now int64) {
	for l.due.Len() > 0 && l.due.items[0].ends <= now {
		e := l.due.items[0]
		l.unlink(e)
		e.over = true
		l.link(e)
	}
	for e := l.firstEnded(); e != nil && e.until <= now; e = l.firstEnded() {
		l.remove(e)
	}
}

func (l *ledger[K, V]) firstEnded() *entry[K, V] {
	if l.ended.next == &l.ended {
		return nil
	}
	return l.ended.next
}

func (l *ledger[K, V]) link(e *entry[K, V]) {
	l.parts += e.parts
	if e.over {
		e.prev, e.next = l.ended.prev, &l.ended
		e.prev.next, e.next.prev = e, e
		return
	}
	heap.Push(&l.due, e)
	if l.live != nil {
		l.live(&e.value, 1)
	}
}

func (l *ledger[K, V]) unlink(e *entry[K, V]) {
	l.parts -= e.parts
	if e.next != nil {
		e.prev.next, e.next.prev = e.next, e.prev
		e.prev, e.next = nil, nil
		return
	}
	heap.Remove(&l.due, e.index)
	if l.live != nil {
		l.live(&e.value, -1)
	}
}

func (l *ledger[K, V]) remove(e *entry[K, V]) {
	l.unlink(e)
	delete(l.entries, e.id)
	l.markChanged(e.id)
	*e = entry[K, V]{}
	l.spare, l.sought, l.last = e, e.id, nil // e.id is zero, which no value has
}

func (l *ledger[K, V]) markChanged(id K) {
	if l.touched != nil {
		l.touched[id] = struct{}{}
	}
}

func (l *ledger[K, V]) sweep(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now)
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

// A freeParts counts parts of live holds that took nothing. The lock of the holds guards it.
type freeParts map[[2]string]int

func (f freeParts) add(h *store.Hold, by int) {
	for i := range h.Parts {
		p := &h.Parts[i]
		if !p.Free {
			continue
		}
		key := [2]string{p.Limit, p.Key}
		if f[key] += by; f[key] == 0 {
			delete(f, key)
		}
	}
}
