package storetest_test

import (
	"context"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// A tableBug has the hooks that make a mutant of the store of the example. Each gets a
// copy, and returns what the table then reads or stores.
type tableBug struct {
	group    func(g *store.Group)
	after    func(s *mapStore, g *store.Group)
	row      func(row *store.State, now int64)
	setRow   func(row *store.State)
	record   func(r *store.Record) // of a hold, as the table reads it
	store    func(r *store.Record) // of a hold, as the table stores it
	hold     func(h store.Hold) store.Hold
	setHold  func(h store.Hold) store.Hold
	override func(o store.Override) store.Override
	block    func(o *store.Override) *store.Override // a block that the table stores

	keepsRecords, needsLows, dropsRows, sweepsHolds bool
}

// tableMutants are deliberate mistakes of tables, each with the cases that must fail.
var tableMutants = map[string]struct {
	bug    tableBug
	caught string
}{
	"plans ignored":         {tableBug{group: eachOp(func(op *store.Op) { op.Def = op.Def.Base() })}, "plan plan-retry plan-window plan-unlimited plan-blocked plan-shadow plan-group hold-unlimited"},
	"plan of a row ignored": {tableBug{setRow: func(row *store.State) { row.Version &= 1<<20 - 1 }}, "plan plan-retry plan-window plan-charge plan-alternates plan-change"},
	"floor ignored":         {tableBug{group: eachOp(func(op *store.Op) { op.Floor = 0 })}, "floor floor-check floor-group hold-floor concurrency-check"},
	"override ignored":      {tableBug{row: noOverride(func(store.State, int64) bool { return true })}, "override-until override-blocked override-unlimited override-numbers override-above-plan concurrency-override"},
	"override of a key without a row ignored": {tableBug{row: noOverride(func(row store.State, _ int64) bool { return row.Used == 0 })},
		"override-of-a-new-key override-numbers override-above-plan"},
	"override deleted at its end": {tableBug{row: noOverride(func(row store.State, now int64) bool { o := row.Override; return o.Until > 0 && o.Until <= now })},
		"override-until"},
	"override without an end":     {tableBug{override: func(o store.Override) store.Override { o.Until = 0; return o }}, "override-until override-blocked override-swept-after-its-end"},
	"override in whole seconds":   {tableBug{override: func(o store.Override) store.Override { o.Until -= o.Until % 1e6; return o }}, "override-until"},
	"override without numbers":    {tableBug{override: func(o store.Override) store.Override { o.Rate, o.Burst = 0, 50; return o }}, "override-numbers override-replaced"},
	"block not stored":            {tableBug{block: func(o *store.Override) *store.Override { return o.Under }}, "block-begins block-ends block-golden"},
	"block a microsecond longer":  {tableBug{block: func(o *store.Override) *store.Override { o.Until++; return o }}, "block-begins block-ends block-golden"},
	"block without what is below": {tableBug{block: func(o *store.Override) *store.Override { o.Under = nil; return o }}, "block-over-standing"},
	"block without its note":      {tableBug{block: func(o *store.Override) *store.Override { o.Note = ""; return o }}, "block-begins block-by-hand"},
	"a repeated hold takes again": {tableBug{after: forgetHolds(func(g *store.Group) bool { return g.Hold.Verb == store.MakeHold && g.Hold.TTL < 1e6*31 })}, "hold-again settle-less"},
	"hold settled twice": {tableBug{setHold: func(h store.Hold) store.Hold { h.Settled = false; return h }},
		"settle-again settle-as-held settle-expired hold-again-ended"},
	"costs of a settled hold forgotten":   {tableBug{setHold: func(h store.Hold) store.Hold { h.Costs = nil; return h }}, "settle-again"},
	"a settled hold is forgotten at once": {tableBug{after: forgetHolds(func(g *store.Group) bool { return g.Hold.Verb == store.SettleHold })}, "settle-again hold-forgotten extend-ended"},
	"holds are never forgotten":           {tableBug{setHold: func(h store.Hold) store.Hold { h.Forget = store.MaxInt; return h }}, "hold-forgotten hold-again-ended"},
	"the ttl of a hold forgotten":         {tableBug{setHold: func(h store.Hold) store.Hold { h.TTL = 0; return h }}, "hold-again"},
	"holds never expire":                  {tableBug{store: func(r *store.Record) { r.Expires = store.MaxInt }}, "hold-expires expired-hold-hides concurrency-expires concurrency hold-sweep"},
	"holds expire at once":                {tableBug{record: func(r *store.Record) { r.Expires = 1 }, setRow: onLows(func(l *store.Lows) { l.Due = 0 })}, "hold-expires concurrency concurrency-change extend"},
	"id of the hold not in its record":    {tableBug{store: func(r *store.Record) { r.Hold = "" }}, "settle-less hold-expires concurrency-settle hold-list"},
	"Ends not in the record":              {tableBug{store: func(r *store.Record) { r.Ends = r.Expires }}, "hold-expires concurrency-expires"},
	"on_expire ignored":                   {tableBug{setHold: onPart(func(p *store.Part) { p.Keep = false }), store: func(r *store.Record) { r.Ends = store.MaxInt }}, "hold-kept"},
	"level that took nothing is charged":  {tableBug{setHold: onPart(func(p *store.Part) { p.Free = false })}, "hold-shadow"},
	"reset does not end holds":            {tableBug{hold: onPart(func(p *store.Part) { p.Reset = false })}, "hold-reset hold-reset-all hold-drop"},
	"takes of a part forgotten":           {tableBug{setHold: onPart(func(p *store.Part) { p.Takes = 1 })}, "hold-several hold-reset hold-takes-add-up"},
	"plan of a part forgotten":            {tableBug{setHold: onPart(func(p *store.Part) { p.Plan = "" })}, "hold-plan"},
	"ended records stay":                  {tableBug{keepsRecords: true}, "hold-list"},
	"records only beside lows":            {tableBug{needsLows: true}, "concurrency-settle concurrency-expires concurrency"},
	"drop leaves holds":                   {tableBug{dropsRows: true}, "hold-drop"},
	"end of the first record forgotten":   {tableBug{setRow: onLows(func(l *store.Lows) { l.Due = math.MaxInt64 })}, "hold-expires"},
	"number of records forgotten":         {tableBug{setRow: onLows(func(l *store.Lows) { l.Live = 1 })}, "cancel-after-cancel"},
	"nothing known to wait":               {tableBug{setRow: onLows(func(l *store.Lows) { l.Waits = false })}, "cancel-before-later"},
	"sweep ends live holds":               {tableBug{sweepsHolds: true}, "hold-sweep concurrency-sweep"},
}

const tableMutantEnv = "STORETEST_TABLE_MUTANT"

// TestTableMutant runs the suite on the mutant named in the environment.
func TestTableMutant(t *testing.T) {
	m, ok := tableMutants[os.Getenv(tableMutantEnv)]
	if !ok {
		return
	}
	storetest.Run(t, func(_ testing.TB, now func() int64) store.Store { return &faultyStore{newMapStore(now), m.bug} }, storetest.Options{Quick: true})
}

func TestTableMutantsAreCaught(t *testing.T) {
	for name, m := range tableMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mutantIsCaught(t, "TestTableMutant", tableMutantEnv+"="+name, m.caught)
		})
	}
}

// faultyStore is the store of the example with a mistake.
type faultyStore struct {
	*mapStore
	bug tableBug
}

func (s *faultyStore) Apply(_ context.Context, b *store.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range b.Groups {
		g := &b.Groups[i]
		if s.bug.group != nil {
			s.bug.group(g)
		}
		g.Err = g.DecideIn(faultyTable{mapTable{s.mapStore}, s.bug}, &s.limits, s.now())
		if s.bug.after != nil {
			s.bug.after(s.mapStore, g)
		}
	}
	return nil
}

func (s *faultyStore) Abilities() store.Abilities {
	a := s.mapStore.Abilities()
	a.Store, a.Limits, a.Overrides, a.Sweep = s, s, s, s.sweep
	return a
}

func (s *faultyStore) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	set, err := s.mapStore.SetOverride(ctx, d, o)
	if at := s.overrides[rowKey{d.Name, o.Key}]; err == nil && s.bug.override != nil {
		wrong := s.bug.override(*at)
		wrong.Prepare()
		s.overrides[rowKey{d.Name, o.Key}] = &wrong
	}
	return set, err
}

func (s *faultyStore) Drop(ctx context.Context, name, owner string) error {
	if s.bug.dropsRows {
		for k := range s.rows {
			if k.limit == name {
				delete(s.rows, k)
			}
		}
	}
	return s.mapStore.Drop(ctx, name, owner)
}

func (s *faultyStore) sweep(ctx context.Context, n int) (int, error) {
	if s.bug.sweepsHolds {
		for k, r := range s.rows {
			if len(r.records) > 0 {
				delete(s.rows, k)
			}
		}
	}
	return s.mapStore.sweep(ctx, n)
}

type faultyTable struct {
	mapTable
	bug tableBug
}

func (t faultyTable) Row(limit, key string) (store.State, error) {
	row, err := t.mapTable.Row(limit, key)
	if t.bug.row != nil {
		t.bug.row(&row, t.now())
	}
	return row, err
}

func (t faultyTable) SetRow(limit, key string, row store.State) error {
	if t.bug.setRow != nil {
		t.bug.setRow(&row)
	}
	return t.mapTable.SetRow(limit, key, row)
}

func (t faultyTable) Record(limit, key string, id store.RecordID) (store.Record, error) {
	r, err := t.mapTable.Record(limit, key, id)
	onHold(t.bug.record, &r)
	return r, err
}

func (t faultyTable) Records(limit, key string) ([]store.Record, error) {
	rs, err := t.mapTable.Records(limit, key)
	rs = slices.Clone(rs)
	for i := range rs {
		onHold(t.bug.record, &rs[i])
	}
	return rs, err
}

func (t faultyTable) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	if t.bug.keepsRecords && r == (store.Record{}) {
		return nil
	}
	if onHold(t.bug.store, &r); t.bug.needsLows && t.rows[rowKey{limit, key}].state.Lows == nil {
		r = store.Record{}
	}
	return t.mapTable.SetRecord(limit, key, id, r)
}

// onHold calls f, if it is not nil, for the record of a hold.
func onHold(f func(*store.Record), r *store.Record) {
	if f != nil && r.Hold != "" {
		f(r)
	}
}

func (t faultyTable) SetOverride(limit, key string, o *store.Override) error {
	if o != nil && o.Kind() == store.AutomaticOverride && t.bug.block != nil {
		if o = t.bug.block(o.WithKey(key)); o != nil {
			o.Prepare()
		}
	}
	return t.mapTable.SetOverride(limit, key, o)
}

func (t faultyTable) Hold(id string) (store.Hold, error) {
	h, err := t.mapTable.Hold(id)
	if t.bug.hold != nil {
		h = t.bug.hold(h)
	}
	return h, err
}

func (t faultyTable) SetHold(id string, h store.Hold) error {
	if t.bug.setHold != nil {
		h = t.bug.setHold(h)
	}
	return t.mapTable.SetHold(id, h)
}

func eachOp(f func(*store.Op)) func(*store.Group) {
	return func(g *store.Group) {
		for i := range g.Ops {
			f(&g.Ops[i])
		}
	}
}

func onLows(f func(*store.Lows)) func(*store.State) {
	return func(row *store.State) {
		if row.Lows != nil {
			l := *row.Lows
			f(&l)
			row.Lows = &l
		}
	}
}

func noOverride(when func(row store.State, now int64) bool) func(*store.State, int64) {
	return func(row *store.State, now int64) {
		if row.Override != nil && when(*row, now) {
			row.Override = nil
		}
	}
}

func onPart(f func(*store.Part)) func(store.Hold) store.Hold {
	return func(h store.Hold) store.Hold {
		h.Parts = slices.Clone(h.Parts)
		for i := range h.Parts {
			f(&h.Parts[i])
		}
		return h
	}
}

// forgetHolds deletes the hold of a group.
func forgetHolds(of func(*store.Group) bool) func(*mapStore, *store.Group) {
	return func(s *mapStore, g *store.Group) {
		if g.Hold != nil && of(g) {
			delete(s.holds, g.Hold.ID)
		}
	}
}
