package dipwell_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
)

// mapTable is rows in maps, of which the call numbered fails returns an error.
type mapTable struct {
	rows    map[string]dipwell.State
	records map[string][]dipwell.Record
	held    map[dipwell.Reservation]dipwell.Held

	calls, fails, sets int
}

var errTable = errors.New("the table fails")

func newMapTable() *mapTable {
	return &mapTable{rows: map[string]dipwell.State{}, records: map[string][]dipwell.Record{}, held: map[dipwell.Reservation]dipwell.Held{}}
}

func (t *mapTable) call() error {
	if t.calls++; t.calls == t.fails {
		return errTable
	}
	return nil
}

func (t *mapTable) Row(limit, key string) (dipwell.State, []dipwell.Record, error) {
	return t.rows[limit+"/"+key], t.records[limit+"/"+key], t.call()
}

func (t *mapTable) SetRow(limit, key string, row dipwell.State, records []dipwell.Record) error {
	t.rows[limit+"/"+key], t.records[limit+"/"+key] = row, records
	t.sets++
	return t.call()
}

func (t *mapTable) Held(id dipwell.Reservation) (dipwell.Held, error) { return t.held[id], t.call() }

func (t *mapTable) SetHeld(id dipwell.Reservation, h dipwell.Held) error {
	t.held[id] = h
	t.sets++
	return t.call()
}

// TestDecideInErrors: whichever call of a table fails, its error is DecideIn's,
// and nothing is stored before all is read and decided.
func TestDecideInErrors(t *testing.T) {
	const now = int64(1e15)
	var reg dipwell.Registry
	define := func(name string) *dipwell.Definition {
		d, err := reg.Define(now, dipwell.Limit{Name: name, Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10}, dipwell.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a, b := define("a"), define("b")
	op := func(d *dipwell.Definition, verb dipwell.Verb, cost int64) dipwell.Op {
		return dipwell.Op{Def: d, Key: "k", Verb: verb, Cost: cost}
	}
	id := dipwell.Reservation{1}
	reserve := func() *dipwell.Group {
		return &dipwell.Group{ID: id, Ops: []dipwell.Op{op(a, dipwell.VerbReserve, 7), op(b, dipwell.VerbReserve, 8)}}
	}
	cancel := func() *dipwell.Group { return &dipwell.Group{ID: id, Cancel: true} }

	for _, c := range []struct {
		name   string
		before []*dipwell.Group
		group  func() *dipwell.Group
		reads  int // calls before the first that stores
		calls  int
	}{
		{"reserve", nil, reserve, 2, 5},
		{"cancel", []*dipwell.Group{reserve()}, cancel, 3, 6},
		{"reset", []*dipwell.Group{reserve()}, func() *dipwell.Group { return &dipwell.Group{Ops: []dipwell.Op{op(a, dipwell.VerbReset, 0)}} }, 1, 2},
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

// TestDecideInRefuses: what cannot be done is an error and stores nothing.
func TestDecideInRefuses(t *testing.T) {
	const now = int64(1e15)
	var reg, other dipwell.Registry
	l := dipwell.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10}
	if _, err := reg.Define(now, l, dipwell.OwnerCode); err != nil {
		t.Fatal(err)
	}
	older, err := other.Define(now, l, dipwell.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	l.Rate = 2
	d, err := reg.Define(now, l, dipwell.OwnerCode)
	if err != nil || d.Number != 2 {
		t.Fatal(d, err)
	}
	table := newMapTable()
	take := func(d *dipwell.Definition, limits *dipwell.Registry, verb dipwell.Verb, n int64) error {
		g := &dipwell.Group{ID: dipwell.Reservation{1}, Ops: []dipwell.Op{{Def: d, Key: "k", Verb: verb, Cost: n}}}
		return g.DecideIn(table, limits, now)
	}
	if err := take(d, &reg, dipwell.VerbReserve, 6); err != nil || len(table.records["a/k"]) != 1 {
		t.Fatal(err, table)
	}
	table.sets = 0
	if err := take(older, &other, dipwell.VerbTake, 1); !errors.Is(err, dipwell.ErrStaleDefinition) {
		t.Errorf("a row of a later version than the process knows: %v", err)
	}
	if _, err := dipwell.SweepRow(table, &other, "a", "k", now+1e9); !errors.Is(err, dipwell.ErrStaleDefinition) {
		t.Errorf("a sweep of a row of a later version: %v", err)
	}
	for name, g := range map[string]*dipwell.Group{"unknown": {ID: dipwell.Reservation{2}, Cancel: true}, "due": {ID: dipwell.Reservation{1}, Cancel: true}} {
		if err := g.DecideIn(table, &reg, now+1e6); !errors.Is(err, dipwell.ErrReservation) {
			t.Errorf("cancel of a reservation that is %s: %v", name, err)
		}
	}
	if err := take(older, &reg, dipwell.VerbCheck, 1); err != nil {
		t.Errorf("an op that was made before its limit changed: %v", err)
	}
	if table.sets > 0 {
		t.Errorf("%d calls stored something", table.sets)
	}
	if gone, err := dipwell.SweepRow(table, new(dipwell.Registry), "a", "k", now); !gone || err != nil || len(table.records["a/k"]) > 0 {
		t.Errorf("a sweep of a limit that was dropped: %v %v %v", gone, err, table)
	}
}
