package store_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A Charge of a blocked key goes on under the base, whether an override or the caller's
// plan blocks it.
func TestChargeBlocked(t *testing.T) {
	const now = 1_800_000_000_000_000
	d, err := store.NewDefinition(store.Limit{Name: "l", Rate: 1, Period: time.Second, Burst: 10, Plans: store.NewPlans(store.Plan{Name: "none", Mode: store.Blocked})})
	if err != nil {
		t.Fatal(err)
	}
	blocked := &store.Override{Key: "k", Plan: "none", ID: 7, Version: d.Number}
	for name, c := range map[string]struct {
		def *store.Definition
		row store.State
	}{"override": {d, store.State{Override: blocked}}, "plan": {d.WithPlan("none"), store.State{}}} {
		for _, dry := range []bool{true, false} {
			op := store.Op{Def: c.def, Key: "k", Verb: store.VerbCharge, Cost: 4}
			row, write, err := op.Step(now, c.row, dry)
			if err != nil || !op.Allowed || write == dry || !dry && (row.Used != 4*d.Rule.Unit || row.Version != d.Number || row.Override != c.row.Override) {
				t.Errorf("%s, dry %v: %+v, written %v: %+v, %v", name, dry, op.Answer, write, row, err)
			}
		}
	}
}
