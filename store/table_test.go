package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// mapTable is a Table in maps. The call with the number fails returns an error.
type mapTable struct {
	rows    map[string]store.State
	records map[string][]store.Record
	pending map[store.Reservation]store.Pending

	overrides map[string]*store.Override
	holds     map[string]store.Hold

	calls, fails, sets int
}

var errTable = errors.New("the table fails")

func newMapTable() *mapTable {
	return &mapTable{rows: map[string]store.State{}, records: map[string][]store.Record{}, pending: map[store.Reservation]store.Pending{}, overrides: map[string]*store.Override{}, holds: map[string]store.Hold{}}
}

func (t *mapTable) call() error {
	if t.calls++; t.calls == t.fails {
		return errTable
	}
	return nil
}

func (t *mapTable) Row(limit, key string) (store.State, error) {
	row := t.rows[limit+"/"+key]
	row.Override = t.overrides[limit+"/"+key]
	return row, t.call()
}

func (t *mapTable) SetRow(limit, key string, row store.State) error {
	t.rows[limit+"/"+key] = row
	t.sets++
	return t.call()
}

func (t *mapTable) Record(limit, key string, id store.RecordID) (store.Record, error) {
	return store.FindRecord(t.records[limit+"/"+key], id), t.call()
}

func (t *mapTable) Records(limit, key string) ([]store.Record, error) {
	return t.records[limit+"/"+key], t.call()
}

func (t *mapTable) SetRecord(limit, key string, id store.RecordID, r store.Record) error {
	t.records[limit+"/"+key] = store.ReplaceRecord(t.records[limit+"/"+key], id, r)
	t.sets++
	return t.call()
}

func (t *mapTable) Pending(id store.Reservation) (store.Pending, error) {
	return t.pending[id], t.call()
}

func (t *mapTable) SetPending(id store.Reservation, h store.Pending) error {
	t.pending[id] = h
	t.sets++
	return t.call()
}

func (t *mapTable) SetOverride(limit, key string, o *store.Override) error {
	t.overrides[limit+"/"+key] = o
	t.sets++
	return t.call()
}

func (t *mapTable) Hold(id string) (store.Hold, error) { return t.holds[id], t.call() }

func (t *mapTable) SetHold(id string, h store.Hold) error {
	t.holds[id] = h
	t.sets++
	return t.call()
}

func (t *mapTable) Live(limit, key string, now int64) (int, error) {
	return len(t.records[limit+"/"+key]) + store.CountFree(t.holds, limit, key, now), t.call()
}

// DecideIn returns the error of any call of its table, and stores nothing
// before everything is read and decided.
func TestDecideInErrors(t *testing.T) {
	const now = int64(1e15)
	var reg store.Registry
	define := func(name string) *store.Definition {
		d, err := reg.Define(now, store.Limit{Name: name, Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a, b := define("a"), define("b")
	op := func(d *store.Definition, verb store.Verb, cost int64) store.Op {
		return store.Op{Def: d, Key: "k", Verb: verb, Cost: cost}
	}
	id := store.Reservation{1}
	reserve := func() *store.Group {
		return &store.Group{ID: id, Ops: []store.Op{op(a, store.VerbReserve, 7), op(b, store.VerbReserve, 8)}}
	}
	cancel := func() *store.Group { return &store.Group{ID: id, Cancel: true} }

	for _, c := range []struct {
		name   string
		before []*store.Group
		group  func() *store.Group
		reads  int // calls before the first that stores
		calls  int
	}{
		{"reserve", nil, reserve, 4, 9},
		{"cancel", []*store.Group{reserve()}, cancel, 5, 10},
		{"reset", []*store.Group{reserve()}, func() *store.Group { return &store.Group{Ops: []store.Op{op(a, store.VerbReset, 0)}} }, 2, 4},
	} {
		for fails := 1; fails <= c.calls+1; fails++ {
			table := newMapTable()
			for _, g := range c.before {
				if err := g.DecideIn(table, &reg, now); err != nil {
					t.Fatal(err)
				}
			}
			table.calls, table.sets, table.fails = 0, 0, fails
			err := c.group().DecideIn(table, &reg, now+1)
			if want := fails <= c.calls; errors.Is(err, errTable) != want || !want && err != nil {
				t.Errorf("%s, call %d fails: %v", c.name, fails, err)
			}
			if fails <= c.reads && table.sets > 0 {
				t.Errorf("%s, call %d fails: %d calls had stored something", c.name, fails, table.sets)
			}
		}
	}
}

// Calls that DecideIn rejects store nothing.
func TestDecideInRefuses(t *testing.T) {
	const now = int64(1e15)
	var reg, other store.Registry
	l := store.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10}
	if _, err := reg.Define(now, l, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	older, err := other.Define(now, l, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	l.Rate = 2
	d, err := reg.Define(now, l, store.OwnerCode)
	if err != nil || d.Number != 2 {
		t.Fatal(d, err)
	}
	table := newMapTable()
	take := func(d *store.Definition, limits *store.Registry, verb store.Verb, n int64) error {
		g := &store.Group{ID: store.Reservation{1}, Ops: []store.Op{{Def: d, Key: "k", Verb: verb, Cost: n}}}
		return g.DecideIn(table, limits, now)
	}
	if err := take(d, &reg, store.VerbReserve, 6); err != nil || len(table.records["a/k"]) != 1 {
		t.Fatal(err, table)
	}
	table.sets = 0
	if err := take(older, &other, store.VerbTake, 1); !errors.Is(err, store.ErrStaleDefinition) {
		t.Errorf("a row of a later version than the process knows: %v", err)
	}
	if _, err := store.SweepRow(table, &other, "a", "k", now+1e9); !errors.Is(err, store.ErrStaleDefinition) {
		t.Errorf("a sweep of a row of a later version: %v", err)
	}
	for name, g := range map[string]*store.Group{"unknown": {ID: store.Reservation{2}, Cancel: true}, "due": {ID: store.Reservation{1}, Cancel: true}} {
		if err := g.DecideIn(table, &reg, now+1e6); !errors.Is(err, store.ErrReservation) {
			t.Errorf("cancel of a reservation that is %s: %v", name, err)
		}
	}
	if err := take(older, &reg, store.VerbCheck, 1); err != nil {
		t.Errorf("an op that was made before its limit changed: %v", err)
	}
	if table.sets > 0 {
		t.Errorf("%d calls stored something", table.sets)
	}
	if gone, err := store.SweepRow(table, new(store.Registry), "a", "k", now); !gone || err != nil || len(table.records["a/k"]) > 0 {
		t.Errorf("a sweep of a limit that was dropped: %v %v %v", gone, err, table)
	}
}

// A call that runs while its limit is dropped stores nothing, and returns the
// error of later calls. A registry that never had the limit, of a store that
// keeps limits elsewhere, decides the call.
func TestDecideInDropped(t *testing.T) {
	const now = int64(1e15)
	var reg store.Registry
	d, err := reg.Define(now, store.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	if err = reg.Drop("a", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	table := newMapTable()
	reserve := func(limits *store.Registry) error {
		g := &store.Group{ID: store.Reservation{1}, Ops: []store.Op{{Def: d, Key: "k", Verb: store.VerbReserve, Cost: 7}}}
		return g.DecideIn(table, limits, now)
	}
	if err := reserve(&reg); !errors.Is(err, store.ErrUnknownLimit) || table.sets > 0 {
		t.Errorf("%v, and %d calls stored something", err, table.sets)
	}
	if err := reserve(new(store.Registry)); err != nil || len(table.records["a/k"]) != 1 {
		t.Errorf("%v, %v", err, table)
	}
}
