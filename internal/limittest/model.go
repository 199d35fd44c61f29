package limittest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// A Model is a store that decides everything by Group.DecideIn over maps, with
// overrides and holds. Tests compare other stores with a Model.
type Model struct {
	now func() int64
	reg store.Registry

	mu sync.Mutex
	table
}

// table is a store.Table over maps.
type table struct {
	rows      map[at]store.State
	records   map[at][]store.Record
	overrides map[at]*store.Override
	pending   map[store.Reservation]store.Pending
	holds     map[string]store.Hold
	lent      []lent
}

// lent has the records that Records has returned, and copies of them, to check that nobody
// changes them in place.
type lent struct{ records, were []store.Record }

func (t *table) returned() {
	for _, l := range t.lent {
		if !slices.Equal(l.records, l.were) {
			panic(fmt.Sprintf("records of a table were changed in place: %+v, before %+v", l.records, l.were))
		}
	}
	t.lent = nil
}

type at struct{ limit, key string }

// NewModel returns an empty Model with the clock now, in µs.
func NewModel(now func() int64) *Model {
	return &Model{now: now, table: table{map[at]store.State{}, map[at][]store.Record{}, map[at]*store.Override{}, map[store.Reservation]store.Pending{}, map[string]store.Hold{}, nil}}
}

func (t *table) Row(limit, key string) (store.State, error) {
	row := t.rows[at{limit, key}]
	row.Override = t.overrides[at{limit, key}]
	return row, nil
}

func (t *table) SetRow(limit, key string, row store.State) error {
	t.rows[at{limit, key}] = row
	return nil
}

func (t *table) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.records[at{limit, key}], id), nil
}

func (t *table) Records(limit, key string) ([]store.Record, error) {
	records := t.records[at{limit, key}]
	t.lent = append(t.lent, lent{records, slices.Clone(records)})
	return records, nil
}

func (t *table) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	t.records[at{limit, key}] = store.ReplaceRecord(t.records[at{limit, key}], id, r)
	return nil
}

func (t *table) Pending(id store.Reservation) (store.Pending, error) { return t.pending[id], nil }

func (t *table) SetPending(id store.Reservation, h store.Pending) error {
	t.pending[id] = h
	return nil
}

func (t *table) SetOverride(limit, key string, o *store.Override) error {
	t.overrides[at{limit, key}] = o
	return nil
}

func (t *table) Hold(id string) (store.Hold, error) { return t.holds[id], nil }

func (t *table) SetHold(id string, h store.Hold) error {
	t.holds[id] = h
	return nil
}

func (t *table) Live(limit, key string, now int64) (int, error) {
	return len(t.records[at{limit, key}]) + store.CountFree(t.holds, limit, key, now), nil
}

func (t *table) clone() table {
	return table{maps.Clone(t.rows), maps.Clone(t.records), maps.Clone(t.overrides), maps.Clone(t.pending), maps.Clone(t.holds), nil}
}

// Apply implements store.Store.
func (m *Model) Apply(_ context.Context, b *store.Batch) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range b.Groups {
		g, before := &b.Groups[i], m.clone()
		g.Err = g.DecideIn(&m.table, &m.reg, m.now())
		if m.returned(); g.Err != nil {
			m.table = before
		}
	}
	return nil
}

// Abilities returns all abilities except those for speed.
func (m *Model) Abilities() store.Abilities {
	return store.Abilities{Store: m, Limits: m, Overrides: m, Holds: m.holdsOf,
		Sweep: func(context.Context, int) (int, error) { m.Sweep(); return 0, nil },
		Now:   func(context.Context) (int64, error) { return m.now(), nil }}
}

// Registry implements store.Definer.
func (m *Model) Registry() *store.Registry { return &m.reg }

// Define implements store.Definer.
func (m *Model) Define(_ context.Context, l store.Limit, owner string) (*store.Definition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reg.EachOverride = func(limit string, check func(o *store.Override)) error {
		for k, o := range m.overrides {
			if k.limit == limit {
				check(o)
			}
		}
		return nil
	}
	return m.reg.Define(m.now(), l, owner)
}

// Drop implements store.Definer.
func (m *Model) Drop(_ context.Context, name, owner string) error { return m.reg.Drop(name, owner) }

// SetOverride implements store.Overrider.
func (m *Model) SetOverride(_ context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.returned()
	return m.reg.Lookup(d.Name).SetOverrideIn(&m.table, o.Key, o, m.now())
}

// EndOverride implements store.Overrider.
func (m *Model) EndOverride(_ context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.returned()
	return m.reg.Lookup(d.Name).EndOverrideIn(&m.table, key, kind, m.now())
}

func (m *Model) lives(o *store.Override) bool {
	return o != nil && (o.Until == 0 || o.Until > m.now())
}

// Overrides implements store.Overrider.
func (m *Model) Overrides(_ context.Context, d *store.Definition, prefix, after string, n int) (list []store.Override, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, o := range m.overrides {
		if k.limit == d.Name && m.lives(o) && strings.HasPrefix(k.key, prefix) && (after == "" || after == store.Shared && k.key != "" || after != store.Shared && k.key > after) {
			list = append(list, *o)
		}
	}
	slices.SortFunc(list, func(a, b store.Override) int { return strings.Compare(a.Key, b.Key) })
	return list[:min(n, len(list))], nil
}

func (m *Model) holdsOf(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return store.KeyHolds(m.records[at{d.Name, key}], m.now()), nil
}

// Sweep sweeps all rows.
func (m *Model) Sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range maps.Clone(m.rows) {
		_, _ = store.SweepRow(&m.table, &m.reg, k.limit, k.key, m.now())
		m.returned()
	}
}
