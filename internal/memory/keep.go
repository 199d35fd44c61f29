package memory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// What a store needs that decides here and keeps the rows elsewhere: Changes,
// Put, PutRecords, Install, and the reservations.

// Changes is a key's row as it is held, full or not, and what has happened to its
// records since the last call. Not held: the bucket is full, or the limit is gone.
type Changes struct {
	Row     store.State
	Held    bool
	Records []store.Record // made or changed
	Ended   [][2]int64     // marks and numbers of records that are gone
}

// Changes returns what a key is, and which records of it changed. With all set
// it returns all records that there are.
func (s *Store) Changes(d *store.Definition, key string, all bool) (c Changes) {
	op := store.Op{Def: d, Key: key}
	var p place
	if s.place(&p, &op) != nil {
		return c
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var i int
	if i, c.Held = sh.find(p.id, p.tag); c.Held {
		c.Row = sh.state(sh.at(i), &p)
	}
	if k := sh.kept[rowID{p.id, p.tag}]; k != nil {
		for j := range k.records {
			id := recordID{k.records[j].Mark, k.records[j].Number}
			if _, changed := k.changed[id]; changed || all {
				c.Records = append(c.Records, k.records[j])
				delete(k.changed, id)
			}
		}
		for id := range k.changed {
			c.Ended = append(c.Ended, [2]int64{id.mark, id.number})
		}
		clear(k.changed)
	}
	return c
}

// Kept reports whether there are records of a key, or lows.
func (s *Store) Kept(d *store.Definition, key string) bool {
	op := store.Op{Def: d, Key: key}
	var p place
	if s.place(&p, &op) != nil {
		return false
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.kept[rowID{p.id, p.tag}] != nil
}

// PutRecords takes over all records of a key, in the order of their numbers, as
// long as there is room. Its row, if it has one, comes first, with its lows.
func (s *Store) PutRecords(d *store.Definition, key string, records []store.Record) error {
	op := store.Op{Def: d, Key: key}
	var p place
	if err := s.place(&p, &op); err != nil {
		return err
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.keep(&p, key)
	if sh.set(k, records); s.records.Load() > int64(s.held.max) {
		sh.unkeep(k)
		return s.fullError()
	}
	return nil
}

// Install replaces all definitions by others that were made elsewhere. Rows of a
// limit that is not among them no longer count, and reservations that hold
// tokens of such a limit are dropped.
func (s *Store) Install(defs []*store.Definition) error {
	gone := map[string]bool{}
	for _, d := range s.reg.All() {
		gone[d.Name] = true
	}
	s.reg.Install(defs)
	for _, d := range defs {
		delete(gone, d.Name)
		if _, err := s.limits.add(d); err != nil {
			return err
		}
	}
	for name := range gone {
		s.limits.drop(name)
		s.ForgetReservations(name)
	}
	if s.limits.crowded() {
		s.collect()
	}
	return nil
}

// Held is a reservation.
type Held struct {
	ID    store.Reservation
	Due   int64 // µs on the store's clock
	Parts []HeldPart
}

// HeldPart is a record of one key.
type HeldPart struct {
	Limit, Key   string
	Mark, Number int64
}

// Reservation returns a reservation that the store holds, due or not.
func (s *Store) Reservation(id store.Reservation) (h Held, held bool) {
	r := &s.held
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.byID[id]
	if v == nil {
		return h, false
	}
	h = Held{ID: id, Due: v.due}
	for i := range v.parts {
		p := &v.parts[i]
		h.Parts = append(h.Parts, HeldPart{p.name, p.key, p.record.mark, p.record.number})
	}
	return h, true
}

// Hold takes over a reservation that was made elsewhere, as long as its limits
// are there and there is room. PutRecords takes over its records; of a part
// without one, nothing is given back.
func (s *Store) Hold(h Held) error {
	v := &reservation{id: h.ID, due: h.Due, parts: make([]part, len(h.Parts))}
	for i, of := range h.Parts {
		d := s.reg.Lookup(of.Limit)
		if d == nil {
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, of.Limit)
		}
		op := store.Op{Def: d, Key: of.Key}
		var p place
		if err := s.place(&p, &op); err != nil {
			return err
		}
		v.parts[i] = part{limit: p.limit, of: v, identity: p.identity(), key: strings.Clone(of.Key), record: recordID{of.Mark, of.Number}}
	}
	r := &s.held
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.hold(v) {
		return s.fullError()
	}
	return nil
}

// WatchReservations begins to note which reservations and records come and go.
func (s *Store) WatchReservations() {
	s.watched.Store(true)
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	s.held.touched = map[store.Reservation]struct{}{}
}

// TouchedReservations returns the reservations that were added or removed since
// the previous call.
func (s *Store) TouchedReservations() []store.Reservation {
	r := &s.held
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := slices.Collect(maps.Keys(r.touched))
	clear(r.touched)
	return ids
}

// touch records that a reservation was added or removed, if WatchReservations
// was called.
func (r *reservations) touch(id store.Reservation) {
	if r.touched != nil {
		r.touched[id] = struct{}{}
	}
}
