package storetest_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dipwell/dipwell"
)

// refStore is the smallest store there is: two maps and a mutex, with hooks for
// deliberate mistakes.
type refStore struct {
	mu   sync.Mutex
	reg  dipwell.Registry
	rows map[refKey]dipwell.State
	held map[dipwell.Reservation]held
	now  func() int64
	bug  bug

	extra map[refKey]int64 // what a mistake needs to remember
}

type refKey struct{ limit, key string }

// held is a reservation: what it took, in units of the versions it took it under.
type held struct {
	due   int64
	parts []heldPart
}

type heldPart struct {
	limit, key string
	units      int64
	version    uint32
}

var (
	_ dipwell.Store   = (*refStore)(nil)
	_ dipwell.Definer = (*refStore)(nil)
	_ dipwell.Clock   = (*refStore)(nil)
	_ dipwell.Sweeper = (*refStore)(nil)
	_ dipwell.Lister  = (*refStore)(nil)
)

func openRef(b bug) func(testing.TB, func() int64) dipwell.Store {
	return func(_ testing.TB, now func() int64) dipwell.Store {
		return &refStore{rows: map[refKey]dipwell.State{}, held: map[dipwell.Reservation]held{}, now: now, bug: b, extra: map[refKey]int64{}}
	}
}

func (s *refStore) Registry() *dipwell.Registry { return &s.reg }

func (s *refStore) Define(_ context.Context, l dipwell.Limit, owner string) (*dipwell.Definition, error) {
	return s.reg.Define(s.now(), l, owner)
}

func (s *refStore) Drop(_ context.Context, name, owner string) error {
	err := s.reg.Drop(name, owner)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		maps.DeleteFunc(s.held, func(_ dipwell.Reservation, h held) bool {
			return slices.ContainsFunc(h.parts, func(p heldPart) bool { return p.limit == name })
		})
	}
	return err
}

func (s *refStore) Now(context.Context) (int64, error) { return s.now(), nil }

func (s *refStore) Apply(_ context.Context, b *dipwell.Batch) error {
	for i := range b.Groups {
		g := &b.Groups[i]
		if g.Cancel {
			g.Err = s.cancel(g.ID)
		} else {
			g.Err = s.group(g)
		}
	}
	return nil
}

func (s *refStore) group(g *dipwell.Group) error {
	if s.bug.group != nil {
		return s.bug.group(s, g)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decide(g, s.now())
}

// decide is group's inside, under the lock.
func (s *refStore) decide(g *dipwell.Group, now int64) error {
	var rows, old [dipwell.MaxTakes]dipwell.State
	var write [dipwell.MaxTakes]bool
	for i := range g.Ops {
		rows[i] = s.rows[s.keyOf(&g.Ops[i])]
	}
	old = rows
	if s.bug.read != nil {
		for i := range g.Ops {
			s.bug.read(s, &g.Ops[i], &rows[i], now)
		}
	}
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	s.store(g, now, &old, &rows, &write)
	if s.bug.answer != nil {
		for i := range g.Ops {
			s.bug.answer(s, g, &g.Ops[i], now)
		}
	}
	return nil
}

func (s *refStore) store(g *dipwell.Group, now int64, old, rows *[dipwell.MaxTakes]dipwell.State, write *[dipwell.MaxTakes]bool) {
	for i := range g.Ops {
		op := &g.Ops[i]
		if s.bug.write != nil {
			write[i] = s.bug.write(s, g, op, old[i], &rows[i], write[i], now)
		}
		switch {
		case op.Verb == dipwell.VerbReset && g.Allowed:
			delete(s.rows, s.keyOf(op))
			if !s.bug.keepsReservations {
				s.forget(s.keyOf(op))
			}
		case write[i]:
			s.put(s.keyOf(op), rows[i])
		}
	}
	if g.Reserved {
		s.hold(g, now)
	}
}

func (s *refStore) keyOf(op *dipwell.Op) refKey {
	k := refKey{op.Def.Name, op.Key}
	if s.bug.key != nil {
		k = s.bug.key(k)
	}
	return k
}

func (s *refStore) put(k refKey, row dipwell.State) {
	if s.rows[k] = row; row.Used == 0 { // a full row is a missing row
		delete(s.rows, k)
	}
}

func (s *refStore) hold(g *dipwell.Group, now int64) {
	h := held{due: now + g.Due()}
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Granted > 0 {
			h.parts = append(h.parts, heldPart{op.Def.Name, op.Key, op.Granted * op.Def.Rule.Unit, op.Def.Number})
		}
	}
	s.held[g.ID] = h
}

// forget drops the reservations that have a part in a key.
func (s *refStore) forget(k refKey) {
	for id, h := range s.held {
		if slices.ContainsFunc(h.parts, func(p heldPart) bool { return p.limit == k.limit && p.key == k.key }) {
			delete(s.held, id)
		}
	}
}

func (s *refStore) cancel(id dipwell.Reservation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[id]
	now := s.now()
	if !ok || now >= h.due && !s.bug.cancelsDue {
		return dipwell.ErrReservation
	}
	if s.bug.cancelsNothing {
		return nil
	}
	if !s.bug.cancelsTwice {
		delete(s.held, id)
	}
	if s.bug.cancelsFirst {
		h.parts = h.parts[:1]
	}
	for _, p := range h.parts {
		def := s.reg.Lookup(p.limit)
		if def == nil {
			continue
		}
		k := refKey{p.limit, p.key}
		row, ok := def.Carry(s.rows[k], p.key)
		if !ok {
			return dipwell.ErrStaleDefinition
		}
		var scratch dipwell.Rule
		o := def.RuleFor(p.key, &scratch).Apply(row, now, dipwell.VerbCheck, 0)
		used := max(0, o.Before-def.CarryUnits(p.units, p.version))
		if s.bug.cancelsUnstepped {
			used, o.TS = max(0, row.Used-def.CarryUnits(p.units, p.version)), row.TS
		}
		s.put(k, dipwell.State{Used: used, TS: o.TS, Version: def.Number})
	}
	return nil
}

func (s *refStore) Sweep(_ context.Context, n int) (int, error) {
	if s.bug.sweep != nil {
		return s.bug.sweep(s), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, swept := s.now(), 0
	for k, row := range s.rows {
		if swept == n {
			break
		}
		if def := s.reg.Lookup(k.limit); def == nil || s.usedNow(def, k, row, now) == 0 {
			delete(s.rows, k)
			swept++
		}
	}
	return swept, nil
}

func (s *refStore) usedNow(def *dipwell.Definition, k refKey, row dipwell.State, now int64) int64 {
	row, ok := def.Carry(row, k.key)
	if !ok {
		return 1
	}
	var scratch dipwell.Rule
	return def.RuleFor(k.key, &scratch).Apply(row, now, dipwell.VerbCheck, 0).Before
}

func (s *refStore) Keys(_ context.Context, d *dipwell.Definition, prefix, after string, n int) ([]dipwell.KeyState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []dipwell.KeyState
	for k, row := range s.rows {
		if k.limit == d.Name && strings.HasPrefix(k.key, prefix) && (k.key > after || after == "" && k.key == "") {
			out = append(out, dipwell.KeyState{Key: k.key, State: row})
		}
	}
	if s.bug.unsorted {
		return out[:min(n, len(out))], nil
	}
	slices.SortFunc(out, func(a, b dipwell.KeyState) int { return strings.Compare(a.Key, b.Key) })
	return out[:min(n, len(out))], nil
}
