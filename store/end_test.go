package store_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// TestReservationPastTheEndOfAnOverride checks that a reservation that is due after the end
// of the override finds what it was told: what is given back of an older hold leaves its
// tokens in use until it is due.
func TestReservationPastTheEndOfAnOverride(t *testing.T) {
	const start = int64(1e15)
	var reg store.Registry
	d, err := reg.Define(start, store.Limit{Name: "l", Rate: 1, Period: time.Second, Burst: 10, MaxDebt: 100}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	table := newMapTable()
	if _, err := d.SetOverrideIn(table, "k", &store.Override{Key: "k", Rate: 2, Burst: 20, Until: start + second}, start); err != nil {
		t.Fatal(err)
	}
	decide := func(at int64, g store.Group) store.Answer {
		t.Helper()
		if err := g.DecideIn(table, &reg, start+at); err != nil || !g.Allowed {
			t.Fatalf("%v, %+v", err, g.Ops)
		}
		return g.Ops[0].Answer
	}
	op := func(verb store.Verb, n int64) []store.Op {
		return []store.Op{{Def: d, Key: "k", Verb: verb, Cost: n}}
	}
	decide(0, store.Group{Hold: &store.HoldCall{ID: "h", TTL: 60 * second}, Ops: op(store.VerbTake, 10)})
	decide(0, store.Group{Ops: op(store.VerbCharge, 10)})
	// 26 are in use, 24 at the end, and 10 of them 14 s later.
	if a := decide(0, store.Group{ID: store.Reservation{1}, Ops: op(store.VerbReserve, 6)}); a.Delay != 15*second || a.Reset != 25*second {
		t.Errorf("delay %d, reset %d", a.Delay, a.Reset)
	}
	decide(0, store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: "h", Costs: []int64{0}}})
	if a := decide(15*second, store.Group{Ops: op(store.VerbCheck, 0)}); a.Remaining != 4 {
		t.Errorf("%d tokens are free at the due time beside a reservation of 6 of 10", a.Remaining)
	}
}
