package lockstep

import (
	"context"
	"maps"
	"slices"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// bucket names a row.
type bucket struct{ limit, key string }

// reference is a minimal implementation of the contract: a table in maps whose rows are
// never deleted by themselves, without a clock and for one caller at a time.
type reference struct {
	reg       store.Registry
	now       func() int64
	rows      map[bucket]store.State
	emptied   map[bucket]int64 // when a row was deleted
	records   map[bucket][]store.Record
	overrides map[bucket]*store.Override
	held      map[dipwell.Reservation]store.Pending
}

var _ store.Store = (*reference)(nil)

func newReference(now func() int64) *reference {
	return &reference{now: now, rows: map[bucket]store.State{}, emptied: map[bucket]int64{}, records: map[bucket][]store.Record{}, overrides: map[bucket]*store.Override{}, held: map[dipwell.Reservation]store.Pending{}}
}

func (r *reference) Abilities() store.Abilities { return store.Abilities{Limits: r} }

func (r *reference) Registry() *store.Registry { return &r.reg }

func (r *reference) Define(_ context.Context, l dipwell.Limit, owner string) (*store.Definition, error) {
	return r.reg.Define(r.now(), l, owner)
}

// Drop deletes what there is of the limit's keys, and every reservation that has a part of
// one.
func (r *reference) Drop(_ context.Context, name, owner string) error {
	if err := r.reg.Drop(name, owner); err != nil {
		return err
	}
	maps.DeleteFunc(r.rows, func(b bucket, _ store.State) bool { return b.limit == name })
	maps.DeleteFunc(r.records, func(b bucket, _ []store.Record) bool { return b.limit == name })
	maps.DeleteFunc(r.overrides, func(b bucket, _ *store.Override) bool { return b.limit == name })
	maps.DeleteFunc(r.held, func(_ dipwell.Reservation, h store.Pending) bool {
		return slices.ContainsFunc(h.Parts, func(p store.Part) bool { return p.Limit == name })
	})
	return nil
}

func (r *reference) Apply(_ context.Context, b *store.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Err = b.Groups[i].DecideIn(table{r}, &r.reg, r.now()) // without holds no error comes after a write
	}
	return nil
}

func bucketOf(op *store.Op) bucket { return bucket{op.Def.Name, op.Key} }

// table is the reference as a store.Table.
type table struct{ *reference }

func (t table) Row(limit, key string) (store.State, error) {
	row := t.rows[bucket{limit, key}]
	row.Override = t.overrides[bucket{limit, key}]
	return row, nil
}

func (t table) SetRow(limit, key string, row store.State) error {
	if t.rows[bucket{limit, key}] = row; row == (store.State{}) {
		t.emptied[bucket{limit, key}] = t.now()
	}
	return nil
}

func (t table) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.records[bucket{limit, key}], id), nil
}

func (t table) Records(limit, key string) ([]store.Record, error) {
	return t.records[bucket{limit, key}], nil
}

func (t table) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	t.records[bucket{limit, key}] = store.ReplaceRecord(t.records[bucket{limit, key}], id, r)
	return nil
}

func (t table) Pending(id store.Reservation) (store.Pending, error) { return t.held[id], nil }

func (t table) SetPending(id store.Reservation, h store.Pending) error {
	t.held[id] = h
	return nil
}

func (t table) SetOverride(limit, key string, o *store.Override) error {
	t.overrides[bucket{limit, key}] = o
	return nil
}

func (t table) Hold(string) (store.Hold, error) { return store.Hold{}, nil } // no event holds

func (t table) SetHold(string, store.Hold) error { return nil }

func (t table) Live(limit, key string, _ int64) (int, error) {
	return len(t.records[bucket{limit, key}]), nil
}

// fullAt returns when a bucket will be full without more calls, or has become full by one,
// or 0 if it was never used.
func (r *reference) fullAt(b bucket) int64 {
	row, used := r.rows[b]
	def := r.reg.Lookup(b.limit)
	if !used || def == nil {
		return 0
	}
	if row.Version == 0 {
		return r.emptied[b]
	}
	row, _ = def.Carry(row, b.key, row.TS)
	var scratch store.Rule
	return row.TS + def.RuleFor(b.key, &scratch).TimeToFull(row.Used, row.TS, row.TS)
}

// ends reports whether a record of a bucket falls due between two times, or a block of it ends.
func (r *reference) ends(b bucket, after, by int64) bool {
	o := r.overrides[b]
	return o != nil && after < o.Until && o.Until <= by || slices.ContainsFunc(r.records[b], func(n store.Record) bool {
		return after < n.Due && n.Due <= by || after < n.Ends && n.Ends <= by
	})
}
