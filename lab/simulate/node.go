package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// A node is a store: limits, rows and a clock.
type node struct {
	w      *world
	id     int
	reg    store.Registry
	limits []store.Limit
	bounds map[string]*bound
	rates  map[string]*rates
	table  table
	drift  int64 // parts per million by which the store's clock is fast
	back   int64 // µs by which the clock was set back in total
	backs  int   // how often the clock was set back
	stall  int64 // true time until which the store does nothing

	books   map[at]*book
	records map[string]*record // holds and reservations by their ids

	refunds int64 // tokens of the limit "customer" that were given back
	late    int64 // longest time from the take of such tokens to their return, in µs
}

type at struct{ limit, key string }

func newNode(w *world, id int, drift int64, limits []store.Limit) *node {
	n := &node{w: w, id: id, drift: drift, limits: limits, bounds: map[string]*bound{}, rates: map[string]*rates{}, table: table{rows: map[at]row{}, pending: map[store.Reservation]store.Pending{}, holds: map[string]store.Hold{}}, books: map[at]*book{}, records: map[string]*record{}}
	for _, l := range slices.Backward(limits) { // a parent comes after its child in limits
		b := *w.bounds[l.Name]
		n.bounds[l.Name], n.rates[l.Name] = &b, newRates(&l)
		if _, err := n.reg.Define(epoch, l, store.OwnerCode); err != nil {
			panic(err)
		}
	}
	return n
}

func (n *node) String() string {
	if len(n.w.nodes) == 1 {
		return "store"
	}
	return fmt.Sprintf("store of region %d", n.id)
}

// epoch is the store's time when a history begins, in µs.
const epoch = 1_700_000_000_000_000

// time returns what the store's clock shows.
func (n *node) time() int64 {
	return epoch + n.w.now + n.w.now*n.drift/1e6 - n.back
}

// A table is a store.Table over maps, which can undo what was done since begin.
type table struct {
	rows    map[at]row
	pending map[store.Reservation]store.Pending
	holds   map[string]store.Hold
	undo    []func()
}

type row struct {
	store.State
	records  []store.Record
	override *store.Override
}

func (t *table) begin() { t.undo = t.undo[:0] }

func (t *table) rollback() {
	for _, f := range slices.Backward(t.undo) {
		f()
	}
}

// set stores a value under a key of one of the maps.
func set[K comparable, V any](t *table, m map[K]V, k K, v V, gone bool) {
	old, had := m[k]
	t.undo = append(t.undo, func() {
		if delete(m, k); had {
			m[k] = old
		}
	})
	if m[k] = v; gone {
		delete(m, k)
	}
}

func (t *table) Row(limit, key string) (store.State, error) {
	r := t.rows[at{limit, key}]
	r.Override = r.override
	return r.State, nil
}

// setKey stores the row or record r of a key, or deletes it if r is empty.
func (t *table) setKey(limit, key string, r row) error {
	set(t, t.rows, at{limit, key}, r, r.State == (store.State{}) && len(r.records) == 0 && r.override == nil)
	return nil
}

func (t *table) SetRow(limit, key string, s store.State) error {
	r := t.rows[at{limit, key}]
	r.State = s
	return t.setKey(limit, key, r)
}

func (t *table) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.rows[at{limit, key}].records, id), nil
}

func (t *table) Records(limit, key string) ([]store.Record, error) {
	return t.rows[at{limit, key}].records, nil
}

func (t *table) SetRecord(limit, key string, id store.RecordID, record store.Record) error {
	r := t.rows[at{limit, key}]
	r.records = store.ReplaceRecord(r.records, id, record)
	return t.setKey(limit, key, r)
}

func (t *table) SetOverride(limit, key string, o *store.Override) error {
	r := t.rows[at{limit, key}]
	r.override = o
	return t.setKey(limit, key, r)
}

func (t *table) Pending(id store.Reservation) (store.Pending, error) { return t.pending[id], nil }

func (t *table) SetPending(id store.Reservation, h store.Pending) error {
	set(t, t.pending, id, h, len(h.Parts) == 0)
	return nil
}

func (t *table) Hold(id string) (store.Hold, error) { return t.holds[id], nil }

func (t *table) SetHold(id string, h store.Hold) error {
	set(t, t.holds, id, h, len(h.Parts) == 0)
	return nil
}

func (t *table) Live(limit, key string, now int64) (int, error) {
	return len(t.rows[at{limit, key}].records) + store.CountFree(t.holds, limit, key, now), nil
}

// decide decides a group at the present instant, and checks what it did.
func (n *node) decide(g *store.Group, from *message) {
	n.table.begin()
	before := n.looks(g)
	if g.Err = g.DecideIn(&n.table, &n.reg, n.time()); g.Err != nil {
		n.table.rollback()
		n.checkError(g)
		return
	}
	n.checkDecision(g, from, before)
}

func (n *node) override(s *step) {
	d := n.reg.Lookup(s.limit)
	var o *store.Override
	if s.n > 4 {
		o = &store.Override{Key: s.key, Plan: s.plan}
		if o.Plan == "" {
			o.Rate, o.Burst = s.rate, s.cost
		}
		if n.counts(s.limit) {
			o.Rate = 0
		}
		if s.n%2 == 0 {
			o.Until = n.time() + s.span
		}
	}
	n.table.begin()
	var err error
	if o != nil {
		_, err = d.SetOverrideIn(&n.table, s.key, *o, n.time())
	} else {
		_, err = d.EndOverrideIn(&n.table, s.key, store.AnyOverride, n.time())
	}
	if err != nil {
		n.w.fail("override", "%s %q: %v", s.limit, s.key, err)
	}
	b := n.book(s.limit, s.key)
	b.loosen(n.w.now, nil)
	n.follow(at{s.limit, s.key})
	n.checkLevel(at{s.limit, s.key}, "an override") // the level was computed under the old override
	over := &b.level.over
	if was := over.temporary; was != nil && was.until <= n.time() {
		over.temporary = nil // the temporary override has ended
	}
	switch {
	case o == nil && over.temporary != nil:
		if over.temporary.block {
			n.w.Seen["a block is ended by hand"]++
		}
		over.temporary = nil
	case o == nil:
		over.standing = nil
	case o.Until != 0:
		over.temporary = &overridden{plan: o.Plan, rate: o.Rate, burst: o.Burst, until: o.Until}
	default:
		over.standing = &overridden{plan: o.Plan, rate: o.Rate, burst: o.Burst}
	}
	if o != nil && o.Plan == "" {
		b := n.bounds[s.limit]
		b.rate, b.burst = max(b.rate, o.Rate), max(b.burst, o.Burst)
	}
}

// follow adjusts the level of a key to its row, which may have been written.
func (n *node) follow(k at) {
	l := n.book(k.limit, k.key).level
	row, _ := n.table.Row(k.limit, k.key)
	if l.rates.first { // the time of such a row is when its window began
		if row.Version != 0 && row.Version != l.number {
			l.addAt(l.instant(n.time()), 0, nil, &row)
		}
		return
	}
	if row.Version != 0 && (row.TS != l.ts || row.Version != l.number) {
		l.addAt(max(l.ts, min(row.TS, l.instant(n.time()))), 0, nil, &row) // the row may have been brought up to an earlier time only
	}
}

// setBack sets the clock back. Holds and overrides that had ended by then may not have
// been given back or deleted yet.
func (n *node) setBack(d int64) {
	for k, b := range n.books {
		l := b.level
		l.expire(n.time())
		l.waits = nil
		row, _ := n.table.Row(k.limit, k.key)
		records, _ := n.table.Records(k.limit, k.key)
		l.atMost = l.atMost || slices.ContainsFunc(records, func(r store.Record) bool { return r.Hold != "" })
		if row.Override == nil {
			l.over = overrides{}
		} else if row.Override.Until == 0 {
			l.over.temporary = nil
		}
	}
	n.back += d
	n.backs++
	n.loosenAll()
}

func (n *node) sweep() {
	for _, k := range slices.SortedFunc(maps.Keys(n.table.rows), compare) {
		n.table.begin()
		if _, err := store.SweepRow(&n.table, &n.reg, k.limit, k.key, n.time()); err != nil {
			n.w.fail("sweep", "%s %q: %v", k.limit, k.key, err)
		}
		n.follow(k)
		n.checkLevel(k, "a sweep")
	}
}
