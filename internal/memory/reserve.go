package memory

import (
	"container/heap"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// reservations indexes the reservations that are not yet due by id, by the keys
// they have records of, and by due time. The shards have the records; their locks
// are taken before this one.
type reservations struct {
	mu    sync.Mutex
	max   int // parts
	parts int
	byID  map[store.Reservation]*reservation
	byKey map[identity]*part
	due   dueHeap

	touched map[store.Reservation]struct{} // see WatchReservations
}

// A reservation ends when it is due, is cancelled, one of its keys is reset, or
// one of its limits is dropped.
type reservation struct {
	id    store.Reservation
	due   int64 // µs on the store's clock
	index int   // in the heap
	parts []part
}

// A part is a record of one key.
type part struct {
	*limit
	of         *reservation
	identity   identity
	key        string
	record     recordID
	prev, next *part // others of the same key
}

type identity struct {
	id         uint64
	tag, shard uint32
}

func (p *place) identity() identity { return identity{p.id, p.tag, p.shard} }

func (r *reservations) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.byID)
}

// reserve makes the record of each op of a group, adds it to the lows of the op's
// row, and adds the reservation. It returns nil if there is no room.
func (s *Store) reserve(g *store.Group, places []place, rows []store.State, locks uint64, now int64) []store.Record {
	v := &reservation{id: g.ID, due: now + g.Due(), parts: make([]part, 0, len(places))}
	made := make([]store.Record, len(places))
	for i := range places {
		op, p := &g.Ops[i], &places[i]
		if op.Granted == 0 {
			continue
		}
		made[i] = op.Record(&rows[i], g.ID, now, v.due)
		v.parts = append(v.parts, part{limit: p.limit, of: v, identity: p.identity(), key: strings.Clone(op.Key), record: recordID{made[i].Mark, made[i].Number}})
	}
	if !s.recordRoom(int64(len(v.parts)), locks, now) {
		return nil
	}
	if !s.reservations.add(v, now) {
		s.records.Add(-int64(len(v.parts)))
		return nil
	}
	return made
}

// advancePerReserve is how many keys with due records a new record brings up to
// date in its shard, so that records of keys that are no longer used are removed.
const advancePerReserve = 4

// recordRoom counts n more records, and reports whether they fit. At the bound it
// first removes records that have ended, in the shards that the caller has locked
// and in those whose lock is free.
func (s *Store) recordRoom(n int64, locks uint64, now int64) bool {
	for i := -1; i < len(s.shards); i++ {
		if i >= 0 {
			s.advanceShard(i, locks&(1<<i) != 0, now)
		}
		if s.records.Add(n) <= int64(s.reservations.max) {
			return true
		}
		s.records.Add(-n)
	}
	return false
}

func (s *Store) advanceShard(i int, locked bool, now int64) {
	sh := &s.shards[i]
	if !locked {
		if !sh.mu.TryLock() {
			return
		}
		defer sh.mu.Unlock()
	}
	sh.advanceDue(now, advanceWork)
}

// add removes the reservations that are due and adds one. It returns false if
// there is no room.
func (r *reservations) add(v *reservation, now int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.due) > 0 && r.due[0].due <= now {
		r.forget(r.due[0])
	}
	if !r.insert(v) {
		return false
	}
	r.markChanged(v.id)
	return true
}

// insert stores a reservation, if its id is new and there is room for its parts.
func (r *reservations) insert(v *reservation) bool {
	if r.parts+len(v.parts) > r.max || r.byID[v.id] != nil {
		return false
	}
	if r.byID == nil {
		r.byID, r.byKey = map[store.Reservation]*reservation{}, map[identity]*part{}
	}
	for i := range v.parts {
		r.link(&v.parts[i])
	}
	r.byID[v.id] = v
	r.parts += len(v.parts)
	heap.Push(&r.due, v)
	return true
}

func (r *reservations) link(p *part) {
	if p.next = r.byKey[p.identity]; p.next != nil {
		p.next.prev = p
	}
	r.byKey[p.identity] = p
}

func (r *reservations) unlink(p *part) {
	switch {
	case p.prev != nil:
		p.prev.next = p.next
	case p.next != nil:
		r.byKey[p.identity] = p.next
	default:
		delete(r.byKey, p.identity)
	}
	if p.next != nil {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
}

func (r *reservations) forget(v *reservation) {
	for i := range v.parts {
		r.unlink(&v.parts[i])
	}
	delete(r.byID, v.id)
	r.parts -= len(v.parts)
	heap.Remove(&r.due, v.index)
	r.markChanged(v.id)
}

// reset removes each reservation with tokens of the key, with all its parts.
func (r *reservations) reset(place *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := r.byKey[place.identity()]; p != nil; p = r.byKey[place.identity()] {
		r.forget(p.of)
	}
}

// drop removes each reservation with tokens of the limit, with all its parts.
func (r *reservations) drop(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.byID {
		if slices.ContainsFunc(v.parts, func(p part) bool { return p.name == name }) {
			r.forget(v)
		}
	}
}

// find returns the reservation and the set of its shards, or nil if the
// reservation is due or unknown.
func (r *reservations) find(id store.Reservation, now int64) (v *reservation, shards uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v = r.byID[id]; v == nil || v.due <= now {
		return nil, 0
	}
	for i := range v.parts {
		shards |= 1 << v.parts[i].identity.shard
	}
	return v, shards
}

// take removes a reservation. It returns false if another call has removed it.
func (r *reservations) take(v *reservation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[v.id] != v {
		return false
	}
	r.forget(v)
	return true
}

// cancel gives a reservation's tokens back and forgets it, in one step.
func (s *Store) cancel(g *store.Group, now int64) error {
	v, locks := s.reservations.find(g.ID, now)
	if v == nil {
		return store.ErrReservation
	}
	for left := locks; left != 0; left &= left - 1 {
		s.shards[bits.TrailingZeros64(left)].mu.Lock()
	}
	defer s.release(locks)
	if !s.reservations.take(v) {
		return store.ErrReservation
	}
	for i := range v.parts {
		s.giveBack(&v.parts[i], now)
	}
	g.Allowed = true
	return nil
}

// giveBack cancels the record of one part.
func (s *Store) giveBack(p *part, now int64) {
	sh, b := &s.shards[p.identity.shard], p.current.Load()
	k := sh.records[rowID{p.identity.id, p.identity.tag}]
	if k == nil || b == nil { // an old file has no record of it, or the limit is gone
		return
	}
	at := place{binding: b, id: p.identity.id, tag: p.identity.tag, shard: p.identity.shard}
	var row store.State
	i, found := sh.find(at.id, at.tag)
	if found {
		row = sh.state(sh.at(i), &at)
	}
	row, records, err := b.def.GiveBack(row, p.key, now, slices.Clone(k.records), p.record.number, p.record.mark)
	if err != nil { // a row of a later version than the limit's: not possible here
		return
	}
	sh.set(k, records)
	if found {
		sh.rewrite(i, &at, p.key, row)
	}
	sh.dropIfEmpty(k)
}

// dueHeap is a heap with the reservation that is due first on top.
type dueHeap []*reservation

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *dueHeap) Push(x any) {
	v := x.(*reservation)
	v.index = len(*h)
	*h = append(*h, v)
}
func (h *dueHeap) Pop() any {
	old := *h
	v := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return v
}
