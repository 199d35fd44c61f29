package store_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A Charge of a blocked key goes on under the base, whether an override or the caller's
// plan blocks it. The row of an overridden key names the override, whose rule is the
// base's: calls must find the override.
func TestChargeBlocked(t *testing.T) {
	const now = 1_800_000_000_000_000
	d, err := store.NewDefinition(store.Limit{Name: "l", Rate: 1, Period: time.Second, Burst: 10, Plans: store.NewPlans(store.Plan{Name: "none", Mode: store.Blocked})})
	if err != nil {
		t.Fatal(err)
	}
	blocked := &store.Override{Key: "k", Plan: "none", ID: 7, Version: d.Number}
	for name, c := range map[string]struct {
		def    *store.Definition
		row    store.State
		number uint32
	}{
		"override": {d, store.State{Override: blocked}, terms.OverrideNumber(7)},
		"plan":     {d.WithPlan("none"), store.State{}, d.Number},
	} {
		for _, dry := range []bool{true, false} {
			op := store.Op{Def: c.def, Key: "k", Verb: store.VerbCharge, Cost: 4}
			row, write, err := op.Step(now, c.row, dry)
			if err != nil || !op.Allowed || write == dry || !dry && (row.Used != 4*d.Rule.Unit || row.Version != c.number || row.Override != c.row.Override) {
				t.Errorf("%s, dry %v: %+v, written %v: %+v, %v", name, dry, op.Answer, write, row, err)
			}
		}
	}
}

// Cancel leaves a row under the plan or the override that it is under, and the sweep
// leaves the row of an override.
func TestCancelKeepsDefinition(t *testing.T) {
	const now = int64(1_800_000_000_000_000)
	var reg store.Registry
	d, err := reg.Define(now, store.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10, Plans: store.NewPlans(store.Plan{Name: "big", Burst: 8})}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	for _, overridden := range []bool{false, true} {
		table, def := newMapTable(), d.WithPlan("big")
		if overridden {
			o, err := d.SetOverrideIn(table, "k", store.Override{Plan: "big"}, now)
			if err != nil {
				t.Fatal(err)
			}
			def = d.WithOverride(&o)
		}
		g := &store.Group{ID: store.Reservation{1}, Ops: []store.Op{{Def: def, Key: "k", Verb: store.VerbReserve, Cost: 10}}}
		if overridden {
			g.Ops[0].Def = d
		}
		if err := g.DecideIn(table, &reg, now); err != nil || !g.Reserved {
			t.Fatalf("%+v, %v", g, err)
		}
		if err := (&store.Group{ID: g.ID, Cancel: true}).DecideIn(table, &reg, now+1e6); err != nil {
			t.Fatal(err)
		}
		if row, _ := table.Row("a", "k"); row != (store.State{Override: row.Override}) && row.Version != def.Number {
			t.Errorf("overridden %v: %+v is not under %x", overridden, row, def.Number)
		}
		g = &store.Group{Ops: []store.Op{{Def: g.Ops[0].Def, Key: "k", Verb: store.VerbTake, Cost: 3}}}
		if overridden {
			g.Ops[0].Def = d
		}
		if err := g.DecideIn(table, &reg, now+1e6); err != nil || !g.Allowed {
			t.Fatalf("%+v, %v", g, err)
		}
		if gone, err := store.SweepRow(table, &reg, "a", "k", now+1e9); gone == overridden || err != nil {
			t.Errorf("overridden %v: swept %v, %v", overridden, gone, err)
		}
	}
}

// A reservation takes nothing of a limit with an unlimited plan, so there is nothing to
// give back of it.
func TestReserveUnlimited(t *testing.T) {
	const now = int64(1_800_000_000_000_000)
	var reg store.Registry
	var defs [2]*store.Definition
	for i, name := range []string{"a", "b"} {
		d, err := reg.Define(now, store.Limit{Name: name, Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 10, Plans: store.NewPlans(store.Plan{Name: "free", Mode: store.Unlimited})}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		defs[i] = d
	}
	table := newMapTable()
	g := &store.Group{ID: store.Reservation{1}, Ops: []store.Op{{Def: defs[0].WithPlan("free"), Key: "k", Verb: store.VerbReserve, Cost: 10}, {Def: defs[1], Key: "k", Verb: store.VerbReserve, Cost: 10}}}
	if err := g.DecideIn(table, &reg, now); err != nil || !g.Reserved {
		t.Fatalf("%+v, %v", g, err)
	}
	row, _ := table.Row("a", "k")
	if records := table.records["a/k"]; row != (store.State{}) || len(records) > 0 || len(table.pending[g.ID].Parts) != 1 {
		t.Errorf("%+v, %+v, %+v", row, records, table.pending[g.ID])
	}
}

// TestPlansWithoutAName checks that such a plan is refused, whatever else it has.
func TestPlansWithoutAName(t *testing.T) {
	for _, plans := range [][]store.Plan{{{}}, {{Rate: 9}}, {{}, {Name: "pro", Rate: 2}}, {{OverrideOnly: true}}} {
		_, err := store.NewDefinition(store.Limit{Name: "l", Rate: 1, Period: time.Second, Plans: store.NewPlans(plans...)})
		if err == nil || err.Error() != "limit l: plans: a plan without a name" {
			t.Errorf("%+v: %v", plans, err)
		}
	}
}
