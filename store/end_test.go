package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// TestExpiredHoldsAtTheEndOfAnOverride compares holds that are given back when they expire,
// before the override of their key ends, with the same holds that are found after it: they
// are given back before the row is converted at the end, which rounds.
func TestExpiredHoldsAtTheEndOfAnOverride(t *testing.T) {
	const start = int64(1e15)
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 17))
		limit := store.Limit{Name: "l", Rate: 1 + rnd.Int64N(9), Period: time.Second, Burst: 20, MaxDebt: 100}
		o := store.Override{Key: "k", Rate: 1 + rnd.Int64N(9), Burst: 30, Until: start + 4*second}
		sweeps := rnd.Int64N(4 * second)
		calls := rnd.Uint64()
		play := func(atOnce bool) int64 {
			rnd, table, reg := rand.New(rand.NewPCG(calls, 17)), newMapTable(), new(store.Registry)
			d, err := reg.Define(start, limit, store.OwnerCode)
			if err == nil {
				_, err = d.SetOverrideIn(table, "k", o, start)
			}
			if err != nil {
				t.Fatal(err)
			}
			for now := start; now < o.Until; now += 1 + rnd.Int64N(second) {
				g := store.Group{Ops: []store.Op{{Def: d, Key: "k", Verb: store.VerbCharge, Cost: 1 + rnd.Int64N(3)}}}
				if rnd.IntN(2) == 0 {
					g.Ops[0].Verb, g.Hold = store.VerbTake, &store.HoldCall{ID: fmt.Sprint(now), TTL: 1000 + rnd.Int64N(max(1, o.Until-now-1000))}
				}
				if err := g.DecideIn(table, reg, now); err != nil {
					t.Fatal(err)
				}
			}
			if atOnce {
				if _, err := store.SweepRow(table, reg, "l", "k", o.Until-1); err != nil {
					t.Fatal(err)
				}
			}
			later := o.Until + sweeps
			if _, err := store.SweepRow(table, reg, "l", "k", later); err != nil {
				t.Fatal(err)
			}
			look, row := store.Op{Def: d, Key: "k", Verb: store.VerbCheck}, table.rows["l/k"]
			if _, _, err := look.Step(later, row, true); err != nil {
				t.Fatal(err)
			}
			return look.Used
		}
		lazy, atOnce := play(false), play(true)
		if lazy != atOnce {
			t.Fatalf("seed %d: %d units in use, and %d if the holds are given back before the end", seed, lazy, atOnce)
		}
	}
}
