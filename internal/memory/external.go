package memory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// This file is for stores that decide in memory and also keep the rows elsewhere.

// Changes is the present row of a key, and what has happened to its records since
// the last call.
type Changes struct {
	Row     store.State
	Found   bool           // false if the table has no row: the bucket is full, or the limit is gone
	Records []store.Record // made or changed
	Ended   [][2]int64     // marks and numbers of records that are gone
}

// Changes returns the row of a key, and those of its records that changed since
// the last call, or all of them if all is set.
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
	if i, c.Found = sh.find(p.id, p.tag); c.Found {
		c.Row = sh.state(sh.at(i), &p)
	}
	if k := sh.records[rowID{p.id, p.tag}]; k != nil {
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

// HasRecords reports whether a key has records or lows.
func (s *Store) HasRecords(d *store.Definition, key string) bool {
	op := store.Op{Def: d, Key: key}
	var p place
	if s.place(&p, &op) != nil {
		return false
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.records[rowID{p.id, p.tag}] != nil
}

// PutRecords sets all records of a key, in the order of their numbers. Put the
// row of the key first, with its lows, if it has one. The error is
// store.ErrFull if there is no room.
func (s *Store) PutRecords(d *store.Definition, key string, records []store.Record) error {
	op := store.Op{Def: d, Key: key}
	var p place
	if err := s.place(&p, &op); err != nil {
		return err
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.recordsOf(&p, key)
	if sh.set(k, records); s.records.Load() > int64(s.reservations.max) {
		sh.dropRecords(k)
		return s.fullError()
	}
	return nil
}

// Install replaces all definitions. Rows of a limit that is not among the new
// ones no longer count, and reservations with tokens of such a limit are dropped.
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

// Pending is a reservation that is not yet due.
type Pending struct {
	ID    store.Reservation
	Due   int64 // µs on the store's clock
	Parts []PendingPart
}

// PendingPart names the record of one key that a reservation took tokens of.
type PendingPart struct {
	Limit, Key   string
	Mark, Number int64
}

// Reservation returns a reservation. One that is due is found until it is removed.
func (s *Store) Reservation(id store.Reservation) (h Pending, found bool) {
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.byID[id]
	if v == nil {
		return h, false
	}
	h = Pending{ID: id, Due: v.due}
	for i := range v.parts {
		p := &v.parts[i]
		h.Parts = append(h.Parts, PendingPart{p.name, p.key, p.record.mark, p.record.number})
	}
	return h, true
}

// PutReservation adds a reservation that another store made. PutRecords adds its
// records; a part without a record gives nothing back. The error wraps
// store.ErrUnknownLimit if one of its limits does not exist, and is store.ErrFull
// if there is no room.
func (s *Store) PutReservation(h Pending) error {
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
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.insert(v) {
		return s.fullError()
	}
	return nil
}

// WatchReservations starts to record which reservations and records change, for
// TouchedReservations and Changes.
func (s *Store) WatchReservations() {
	s.watched.Store(true)
	s.reservations.mu.Lock()
	defer s.reservations.mu.Unlock()
	s.reservations.touched = map[store.Reservation]struct{}{}
}

// TouchedReservations returns the reservations that were added or removed since
// the previous call.
func (s *Store) TouchedReservations() []store.Reservation {
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := slices.Collect(maps.Keys(r.touched))
	clear(r.touched)
	return ids
}

// markChanged records that a reservation was added or removed, if WatchReservations
// was called.
func (r *reservations) markChanged(id store.Reservation) {
	if r.touched != nil {
		r.touched[id] = struct{}{}
	}
}
