package storetest_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// refStore is a reference store of maps and a mutex, with hooks for deliberate
// mistakes.
type refStore struct {
	mu      sync.Mutex
	reg     store.Registry
	rows    map[refKey]store.State
	pending map[store.Reservation]pending
	recs    map[refKey][]store.Record
	now     func() int64
	bug     bug

	extra map[refKey]int64 // state of a mutant
}

type refKey struct{ limit, key string }

// pending is a reservation that is not yet due.
type pending struct {
	ends  int64
	parts []pendingPart
}

type pendingPart struct {
	refKey
	number, mark int64
}

var _ store.Store = (*refStore)(nil)

func openRef(b bug) func(testing.TB, func() int64) store.Store {
	return func(_ testing.TB, now func() int64) store.Store {
		return &refStore{rows: map[refKey]store.State{}, pending: map[store.Reservation]pending{}, recs: map[refKey][]store.Record{}, now: now, bug: b, extra: map[refKey]int64{}}
	}
}

func (s *refStore) Abilities() store.Abilities {
	return store.Abilities{Limits: s, Keys: s.Keys, Sweep: s.Sweep, Now: s.Now}
}

func (s *refStore) Registry() *store.Registry { return &s.reg }

func (s *refStore) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	d, err := s.reg.Define(s.now(), l, owner)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.pending { // now, because the next call converts the row
		if slices.ContainsFunc(h.parts, func(p pendingPart) bool { return p.limit == l.Name && s.wasReset(p, s.now()) }) {
			delete(s.pending, id)
		}
	}
	return d, err
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

func (s *refStore) Apply(_ context.Context, b *store.Batch) error {
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

func (s *refStore) group(g *store.Group) error {
	if s.bug.group != nil {
		return s.bug.group(s, g)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decide(g, s.now())
}

// decide decides a group and stores the result. The caller holds the lock.
func (s *refStore) decide(g *store.Group, now int64) error {
	var rows, old [store.MaxTakes]store.State
	var recs [store.MaxTakes][]store.Record
	var write [store.MaxTakes]bool
	for i := range g.Ops {
		if d := s.reg.Lookup(g.Ops[i].Def.Name); d != nil && d.Base().Number > g.Ops[i].Def.Base().Number {
			g.Ops[i].Def = d.WithPlan(g.Ops[i].Def.Plan) // the limit changed while the call waited for the lock
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
		if rows[i], recs[i], err = s.advance(op.Def, s.keyOf(op), rows[i], now); err != nil {
			return err
		}
	}
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	for i := range g.Ops {
		waiting := 0
		for _, r := range recs[i] {
			if r.Slack >= 0 {
				waiting++
			}
		}
		if g.Reserved && g.Ops[i].Delay > 0 && waiting >= terms.MaxWaiting {
			return &store.FieldError{Field: "key", Reason: "has too many reservations"}
		}
	}
	s.store(g, now, &old, &rows, &recs, &write)
	if s.bug.answer != nil {
		for i := range g.Ops {
			s.bug.answer(s, g, &g.Ops[i], now)
		}
	}
	return nil
}

// advance calls core.Advance, which prepares a row and its records for a write.
func (s *refStore) advance(def *store.Definition, k refKey, row store.State, now int64) (store.State, []store.Record, error) {
	recs := slices.Clone(s.recs[k])
	if row.Lows == nil {
		return row, recs, nil
	}
	if s.bug.advance != nil {
		s.bug.advance(def, &row, recs, now)
	}
	return def.Own(row, max(now, row.TS)).Advance(row, k.key, now, recs) // the row stays under its own until it is written
}

func (s *refStore) store(g *store.Group, now int64, old, rows *[store.MaxTakes]store.State, recs *[store.MaxTakes][]store.Record, write *[store.MaxTakes]bool) {
	for i := range g.Ops {
		op, k := &g.Ops[i], s.keyOf(&g.Ops[i])
		if s.bug.write != nil {
			write[i] = s.bug.write(s, g, op, old[i], &rows[i], write[i], now)
		}
		switch {
		case op.Verb == store.VerbReset && g.Allowed:
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
		s.addPending(g, rows, now)
	}
}

func (s *refStore) keyOf(op *store.Op) refKey {
	k := refKey{op.Def.Name, op.Key}
	if s.bug.key != nil {
		k = s.bug.key(k)
	}
	return k
}

func (s *refStore) put(k refKey, row store.State) {
	if s.rows[k] = row; row.Used == 0 { // a full row is the same as none
		delete(s.rows, k)
	}
}

func (s *refStore) addPending(g *store.Group, rows *[store.MaxTakes]store.State, now int64) {
	h := pending{ends: now + g.Due()}
	for i := range g.Ops {
		op, k := &g.Ops[i], s.keyOf(&g.Ops[i])
		if op.Took() == 0 {
			continue
		}
		r := op.Record(&rows[i], g.ID, now, h.ends)
		if s.bug.record != nil {
			s.bug.record(&rows[i], &r)
		}
		s.put(k, rows[i])
		s.recs[k] = append(s.recs[k], r)
		h.parts = append(h.parts, pendingPart{k, r.Number, r.Mark})
	}
	s.pending[g.ID] = h
}

// forget deletes the records of some keys and the reservations that have a part
// in them. Records of these reservations on other keys stay until they are due.
func (s *refStore) forget(of func(refKey) bool) {
	maps.DeleteFunc(s.recs, func(k refKey, _ []store.Record) bool { return of(k) })
	maps.DeleteFunc(s.pending, func(_ store.Reservation, h pending) bool {
		gone := slices.ContainsFunc(h.parts, func(p pendingPart) bool { return of(p.refKey) })
		for _, p := range h.parts {
			if gone && s.bug.forgetsWhole {
				s.recs[p.refKey] = slices.DeleteFunc(s.recs[p.refKey], p.is)
			}
		}
		return gone
	})
}

func (p pendingPart) is(r store.Record) bool { return r.Number == p.number && r.Mark == p.mark }

func (s *refStore) cancel(id store.Reservation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.pending[id]
	now := s.now()
	if !ok || now >= h.ends && !s.bug.cancelsDue {
		return store.ErrReservation
	}
	if s.bug.cancelsNothing {
		return nil
	}
	if slices.ContainsFunc(h.parts, func(p pendingPart) bool { return s.wasReset(p, now) }) {
		return store.ErrReservation
	}
	if !s.bug.cancelsTwice {
		delete(s.pending, id)
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

// wasReset reports whether a change of the limit ends the records of a part.
func (s *refStore) wasReset(p pendingPart, now int64) bool {
	def, row := s.reg.Lookup(p.limit), s.rows[p.refKey]
	if def == nil || row.Version == 0 || row.Version == def.Number {
		return false
	}
	_, recs, err := def.Own(row, max(now, row.TS)).Advance(row, p.key, now, slices.Clone(s.recs[p.refKey]))
	return err == nil && !slices.ContainsFunc(recs, p.is)
}

func (s *refStore) giveBack(def *store.Definition, p pendingPart, now int64) error {
	row, recs, before := s.rows[p.refKey], slices.Clone(s.recs[p.refKey]), slices.Clone(s.recs[p.refKey])
	if s.bug.advance != nil {
		s.bug.advance(def, &row, recs, now)
	}
	if s.bug.cancels != nil {
		row, recs = s.bug.cancels(def, p, row, recs, now)
	} else {
		var err error
		if row, recs, err = def.Own(row, max(now, row.TS)).GiveBack(row, p.key, now, recs, p.number, p.mark); err != nil {
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
		row, recs, err := s.advance(s.reg.Lookup(k.limit), k, s.rows[k], now)
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

func (s *refStore) usedNow(def *store.Definition, k refKey, row store.State, now int64) int64 {
	row, ok := def.Carry(row, k.key, now)
	if !ok {
		return 1
	}
	var scratch store.Rule
	return def.RuleFor(k.key, &scratch).Used(row, now)
}

func (s *refStore) Keys(_ context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.KeyState
	for k, row := range s.rows {
		if k.limit == d.Name && strings.HasPrefix(k.key, prefix) && (k.key > after || after == "" && k.key == "") {
			out = append(out, store.KeyState{Key: k.key, State: row})
		}
	}
	if s.bug.unsorted {
		return out[:min(n, len(out))], nil
	}
	slices.SortFunc(out, func(a, b store.KeyState) int { return strings.Compare(a.Key, b.Key) })
	return out[:min(n, len(out))], nil
}
