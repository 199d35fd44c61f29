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
	recs map[refKey][]dipwell.Record
	now  func() int64
	bug  bug

	extra map[refKey]int64 // what a mistake needs to remember
}

type refKey struct{ limit, key string }

// held is a reservation that can be cancelled, and its records.
type held struct {
	ends  int64
	parts []heldPart
}

type heldPart struct {
	refKey
	number, mark int64
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
		return &refStore{rows: map[refKey]dipwell.State{}, held: map[dipwell.Reservation]held{}, recs: map[refKey][]dipwell.Record{}, now: now, bug: b, extra: map[refKey]int64{}}
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
		s.forget(func(k refKey) bool { return k.limit == name })
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
	var recs [dipwell.MaxTakes][]dipwell.Record
	var write [dipwell.MaxTakes]bool
	for i := range g.Ops {
		if d := s.reg.Lookup(g.Ops[i].Def.Name); d != nil && d.Number > g.Ops[i].Def.Number {
			g.Ops[i].Def = d // it changed while the call waited for the lock
		}
		rows[i] = s.rows[s.keyOf(&g.Ops[i])]
	}
	old = rows
	if s.bug.read != nil {
		for i := range g.Ops {
			s.bug.read(s, &g.Ops[i], &rows[i], now)
		}
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		var err error
		if rows[i], recs[i], err = s.settle(op.Def, s.keyOf(op), rows[i], now); err != nil {
			return err
		}
	}
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	s.store(g, now, &old, &rows, &recs, &write)
	if s.bug.answer != nil {
		for i := range g.Ops {
			s.bug.answer(s, g, &g.Ops[i], now)
		}
	}
	return nil
}

// settle prepares a row and its records for a write.
func (s *refStore) settle(def *dipwell.Definition, k refKey, row dipwell.State, now int64) (dipwell.State, []dipwell.Record, error) {
	recs := slices.Clone(s.recs[k])
	if row.Lows == nil {
		return row, recs, nil
	}
	if s.bug.settle != nil {
		s.bug.settle(def, &row, recs, now)
	}
	return def.Settle(row, k.key, now, recs)
}

func (s *refStore) store(g *dipwell.Group, now int64, old, rows *[dipwell.MaxTakes]dipwell.State, recs *[dipwell.MaxTakes][]dipwell.Record, write *[dipwell.MaxTakes]bool) {
	for i := range g.Ops {
		op, k := &g.Ops[i], s.keyOf(&g.Ops[i])
		if s.bug.write != nil {
			write[i] = s.bug.write(s, g, op, old[i], &rows[i], write[i], now)
		}
		switch {
		case op.Verb == dipwell.VerbReset && g.Allowed:
			delete(s.rows, k)
			if !s.bug.keepsReservations {
				s.forget(func(other refKey) bool { return other == k })
			}
		case write[i]:
			s.put(k, rows[i])
			s.recs[k] = recs[i]
		}
	}
	if g.Reserved {
		s.hold(g, rows, now)
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

func (s *refStore) hold(g *dipwell.Group, rows *[dipwell.MaxTakes]dipwell.State, now int64) {
	h := held{ends: now + g.Due()}
	for i := range g.Ops {
		op, k := &g.Ops[i], s.keyOf(&g.Ops[i])
		if op.Granted == 0 {
			continue
		}
		r := op.Record(&rows[i], g.ID, now, h.ends)
		if s.bug.record != nil {
			s.bug.record(&rows[i], &r)
		}
		s.put(k, rows[i])
		s.recs[k] = append(s.recs[k], r)
		h.parts = append(h.parts, heldPart{k, r.Number, r.Mark})
	}
	s.held[g.ID] = h
}

// forget ends the reservations that have a part in some keys, and the records
// of these keys. Their records on other keys stay until they are due.
func (s *refStore) forget(of func(refKey) bool) {
	maps.DeleteFunc(s.recs, func(k refKey, _ []dipwell.Record) bool { return of(k) })
	maps.DeleteFunc(s.held, func(_ dipwell.Reservation, h held) bool {
		gone := slices.ContainsFunc(h.parts, func(p heldPart) bool { return of(p.refKey) })
		for _, p := range h.parts {
			if gone && s.bug.forgetsWhole {
				s.recs[p.refKey] = slices.DeleteFunc(s.recs[p.refKey], p.is)
			}
		}
		return gone
	})
}

func (p heldPart) is(r dipwell.Record) bool { return r.Number == p.number && r.Mark == p.mark }

func (s *refStore) cancel(id dipwell.Reservation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[id]
	now := s.now()
	if !ok || now >= h.ends && !s.bug.cancelsDue {
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
		if err := s.giveBack(def, p, now); err != nil {
			return err
		}
	}
	return nil
}

func (s *refStore) giveBack(def *dipwell.Definition, p heldPart, now int64) error {
	row, recs, before := s.rows[p.refKey], slices.Clone(s.recs[p.refKey]), slices.Clone(s.recs[p.refKey])
	if s.bug.settle != nil {
		s.bug.settle(def, &row, recs, now)
	}
	if s.bug.cancels != nil {
		row, recs = s.bug.cancels(def, p, row, recs, now)
	} else {
		var err error
		if row, recs, err = def.GiveBack(row, p.key, now, recs, p.number, p.mark); err != nil {
			return err
		}
	}
	s.put(p.refKey, row)
	s.recs[p.refKey] = recs
	if s.bug.cancelsTwice {
		s.recs[p.refKey] = before
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
	for k := range s.recs {
		row, recs, err := s.settle(s.reg.Lookup(k.limit), k, s.rows[k], now)
		if err != nil {
			return swept, err
		}
		if s.rows[k].Lows != nil {
			s.put(k, row)
		}
		s.recs[k] = recs
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
