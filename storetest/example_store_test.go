package storetest_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// mapStore is a complete store: a map of rows and one lock.
type mapStore struct {
	now    func() int64   // the store's clock, in µs since the Unix epoch
	limits store.Registry // safe for concurrent use

	mu      sync.Mutex // guards what follows
	rows    map[rowKey]row
	pending map[store.Reservation]store.Pending

	overrides map[rowKey]*store.Override
	holds     map[string]store.Hold
	free      map[rowKey]map[string]bool // ids of holds with a part that took nothing from the key
}

type rowKey struct{ limit, key string }

type row struct {
	state   store.State
	records []store.Record
}

func newMapStore(now func() int64) *mapStore {
	s := &mapStore{now: now, rows: map[rowKey]row{}, pending: map[store.Reservation]store.Pending{}, overrides: map[rowKey]*store.Override{}, holds: map[string]store.Hold{}, free: map[rowKey]map[string]bool{}}
	s.limits.EachOverride = func(limit string, check func(o *store.Override)) error { // s.mu is held, by Define
		for k, o := range s.overrides {
			if k.limit == limit {
				check(o)
			}
		}
		return nil
	}
	return s
}

// Apply is the only required method.
func (s *mapStore) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range b.Groups {
		g := &b.Groups[i]
		g.Err = g.DecideIn(mapTable{s}, &s.limits, s.now()) // reads the clock under the lock
	}
	return nil
}

// mapTable implements store.Table for a mapStore whose lock is held.
type mapTable struct{ *mapStore }

func (t mapTable) Row(limit, key string) (store.State, error) {
	r := t.rows[rowKey{limit, key}]
	r.state.Override = t.overrides[rowKey{limit, key}]
	return r.state, nil
}

func (t mapTable) SetRow(limit, key string, state store.State) error {
	return t.set(limit, key, row{state, t.rows[rowKey{limit, key}].records})
}

func (t mapTable) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.rows[rowKey{limit, key}].records, id), nil
}

func (t mapTable) Records(limit, key string) ([]store.Record, error) {
	return t.rows[rowKey{limit, key}].records, nil
}

func (t mapTable) SetRecord(limit, key string, id store.RecordID, record store.Record) error {
	r := t.rows[rowKey{limit, key}]
	return t.set(limit, key, row{r.state, store.ReplaceRecord(r.records, id, record)})
}

func (t mapTable) set(limit, key string, r row) error {
	if r.state == (store.State{}) && len(r.records) == 0 {
		delete(t.rows, rowKey{limit, key})
	} else {
		t.rows[rowKey{strings.Clone(limit), strings.Clone(key)}] = r
	}
	return nil
}

func (t mapTable) Pending(id store.Reservation) (store.Pending, error) { return t.pending[id], nil }

func (t mapTable) SetPending(id store.Reservation, h store.Pending) error {
	if len(h.Parts) == 0 {
		delete(t.pending, id)
	} else {
		t.pending[id] = h
	}
	return nil
}

func (t mapTable) SetOverride(limit, key string, o *store.Override) error {
	if o == nil {
		delete(t.overrides, rowKey{limit, key})
	} else {
		t.overrides[rowKey{strings.Clone(limit), strings.Clone(key)}] = o
	}
	return nil
}

func (t mapTable) Hold(id string) (store.Hold, error) { return t.holds[id], nil }

func (t mapTable) SetHold(id string, h store.Hold) error {
	for _, p := range h.Parts {
		switch k := (rowKey{p.Limit, p.Key}); {
		case h.Settled:
			delete(t.free[k], id)
		case p.Free && t.free[k] == nil:
			t.free[k] = map[string]bool{id: true}
		case p.Free:
			t.free[k][id] = true
		}
	}
	if len(h.Parts) == 0 {
		delete(t.holds, id)
	} else {
		t.holds[strings.Clone(id)] = h
	}
	return nil
}

func (t mapTable) Live(limit, key string, now int64) (n int, err error) {
	n = len(t.rows[rowKey{limit, key}].records)
	for id := range t.free[rowKey{limit, key}] {
		if t.holds[id].Expires > now {
			n++
		}
	}
	return n, nil
}

// Abilities is optional. This store keeps limits, lists keys, deletes full rows
// and has a clock.
func (s *mapStore) Abilities() store.Abilities {
	return store.Abilities{
		Store: s, Limits: s, Keys: s.keys, Sweep: s.sweep,
		Overrides: s, Holds: s.keyHolds,
		Now: func(context.Context) (int64, error) { return s.now(), nil },
	}
}

// Registry, Define and Drop make the store a store.Definer.

func (s *mapStore) Registry() *store.Registry { return &s.limits }

func (s *mapStore) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits.Define(s.now(), l, owner)
}

func (s *mapStore) Drop(_ context.Context, name, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.limits.Drop(name, owner); err != nil {
		return err
	}
	for k := range s.rows {
		if k.limit == name {
			if _, err := store.SweepRow(mapTable{s}, &s.limits, k.limit, k.key, s.now()); err != nil { // which ends its holds
				return err
			}
		}
	}
	maps.DeleteFunc(s.overrides, func(k rowKey, _ *store.Override) bool { return k.limit == name })
	return nil
}

// SetOverride, EndOverride and Overrides make the store a store.Overrider.

func (s *mapStore) SetOverride(_ context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d = s.limits.Lookup(d.Name); d == nil {
		return o, store.ErrUnknownLimit
	}
	return d.SetOverrideIn(mapTable{s}, o.Key, o, s.now())
}

func (s *mapStore) EndOverride(_ context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d = s.limits.Lookup(d.Name); d == nil {
		return nil, store.ErrUnknownLimit
	}
	return d.EndOverrideIn(mapTable{s}, key, kind, s.now())
}

func (s *mapStore) Overrides(_ context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []store.Override
	for k, o := range s.overrides {
		if k.limit == d.Name && strings.HasPrefix(k.key, prefix) && (k.key > after || after == "") && (o.Until == 0 || o.Until > s.now()) {
			list = append(list, *o)
		}
	}
	slices.SortFunc(list, func(a, b store.Override) int { return cmp.Compare(a.Key, b.Key) })
	return list[:min(n, len(list))], nil
}

// keyHolds returns the live holds of a key.
func (s *mapStore) keyHolds(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.KeyHolds(s.rows[rowKey{d.Name, key}].records, s.now()), nil
}

// sweep deletes at most n full rows, and reservations that are due.
func (s *mapStore) sweep(_ context.Context, n int) (swept int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	maps.DeleteFunc(s.pending, func(_ store.Reservation, h store.Pending) bool { return h.Due <= now })
	maps.DeleteFunc(s.holds, func(_ string, h store.Hold) bool { return h.Forget <= now })
	for _, ids := range s.free {
		maps.DeleteFunc(ids, func(id string, _ bool) bool { return s.holds[id].Expires <= now })
	}
	for k := range s.rows {
		if swept == n {
			break
		}
		gone, err := store.SweepRow(mapTable{s}, &s.limits, k.limit, k.key, now)
		if err != nil {
			return swept, err
		}
		if gone {
			swept++
		}
	}
	return swept, nil
}

// keys returns at most n live keys of a limit.
func (s *mapStore) keys(_ context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []store.KeyState
	for k, r := range s.rows {
		if k.limit == d.Name && r.state != (store.State{}) && strings.HasPrefix(k.key, prefix) && (k.key > after || after == "") {
			list = append(list, store.KeyState{Key: k.key, State: r.state})
		}
	}
	slices.SortFunc(list, func(a, b store.KeyState) int { return cmp.Compare(a.Key, b.Key) })
	return list[:min(n, len(list))], nil
}

// A complete store. Its test is one call:
//
//	func TestMapStore(t *testing.T) {
//		storetest.Run(t, func(_ testing.TB, now func() int64) store.Store { return newMapStore(now) }, storetest.Options{})
//	}
func Example() {
	st := newMapStore(func() int64 { return time.Now().UnixMicro() })
	limiter, err := dipwell.New(st, store.Limit{Name: "login", Rate: 5, Period: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 6 {
		d, err := limiter.Take(context.Background(), "login", "user:7", 1)
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 4 <nil>
	// true 3 <nil>
	// true 2 <nil>
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}
