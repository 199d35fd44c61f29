package memstore

import (
	"maps"
	"slices"
	"strings"

	"github.com/dipwell/dipwell"
)

// What a store needs that decides here and keeps the rows elsewhere: Row, Put,
// Install, and the reservations.

// Row returns a key's row as it is held, full or not. Not held: the bucket is
// full, or the limit is gone.
func (s *Store) Row(d *dipwell.Definition, key string) (row dipwell.State, held bool) {
	op := dipwell.Op{Def: d, Key: key}
	var p place
	if s.place(&p, &op) != nil {
		return row, false
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i, held := sh.find(p.id, p.tag)
	if held {
		row = s.state(sh.at(i), &p)
	}
	return row, held
}

// Install puts definitions in force that were made elsewhere, in place of all
// that there are. The rows of a name that is not among them are void,
// and reservations that have a part in one are forgotten.
func (s *Store) Install(defs []*dipwell.Definition) error {
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
		s.held.drop(name)
	}
	if s.limits.crowded() {
		s.collect()
	}
	return nil
}

// Held is a reservation.
type Held struct {
	ID    dipwell.Reservation
	Due   int64 // µs on the store's clock
	Parts []HeldPart
}

// HeldPart is what a reservation charged to one key.
type HeldPart struct {
	Limit, Key string
	Units      int64
	Version    uint32 // of the limit, under which it was charged
}

// Reservation returns a reservation that the store holds, due or not.
func (s *Store) Reservation(id dipwell.Reservation) (h Held, held bool) {
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
		h.Parts = append(h.Parts, HeldPart{p.name, p.key, p.units, p.version})
	}
	return h, true
}

// Hold takes over a reservation that was made elsewhere, as long as its limits
// are there and there is room.
func (s *Store) Hold(h Held) error {
	v := &reservation{id: h.ID, due: h.Due, parts: make([]part, len(h.Parts))}
	for i, of := range h.Parts {
		d := s.reg.Lookup(of.Limit)
		if d == nil {
			return &dipwell.UnknownLimitError{Limit: of.Limit}
		}
		op := dipwell.Op{Def: d, Key: of.Key}
		var p place
		if err := s.place(&p, &op); err != nil {
			return err
		}
		v.parts[i] = part{limit: p.limit, of: v, identity: p.identity(), key: strings.Clone(of.Key), units: of.Units, version: of.Version}
	}
	r := &s.held
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.hold(v) {
		return s.fullError()
	}
	return nil
}

// WatchReservations begins to note which reservations come and go.
func (s *Store) WatchReservations() {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	s.held.touched = map[dipwell.Reservation]struct{}{}
}

// TouchedReservations returns those that came or went since it was asked last.
func (s *Store) TouchedReservations() []dipwell.Reservation {
	r := &s.held
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := slices.Collect(maps.Keys(r.touched))
	clear(r.touched)
	return ids
}

// touch notes that a reservation came or went, where somebody wants to know.
func (r *reservations) touch(id dipwell.Reservation) {
	if r.touched != nil {
		r.touched[id] = struct{}{}
	}
}
