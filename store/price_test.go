package store_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/store"
)

// price returns what n tokens cost at a fraction f of the rate, in units: ceil(n·unit·1024/f),
// but at most bound.
func price(n, f int64, r *store.Rule, bound int64) int64 {
	units := new(big.Int).Mul(big.NewInt(n), big.NewInt(r.Unit))
	units.Mul(units, big.NewInt(1024))
	units.Add(units, big.NewInt(f-1)).Div(units, big.NewInt(f))
	if big.NewInt(bound).Cmp(units) < 0 {
		return bound
	}
	return units.Int64()
}

// A Take at a fraction of the rate costs its price, and its retry is exact.
func TestPrice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := anyRule(t)
		if r.Leaky || r.Cap == 0 {
			t.Skip("no bucket that Take takes from")
		}
		op := store.Op{Def: definition(t, l), Key: "k", Cost: rapid.Int64Range(1, r.Burst+1).Draw(t, "cost"),
			Fraction: rapid.Int64Range(1, 1023).Draw(t, "fraction"), Floor: rapid.Int64Range(0, min(3, r.Burst)).Draw(t, "floor")}
		row := store.State{Used: rapid.Int64Range(0, r.MaxUsed).Draw(t, "used"), TS: 1 << 50, Version: 1}
		bound := r.Cap - op.Floor*r.Unit
		after, write, err := op.Step(row.TS, row, false)
		if err != nil {
			t.Fatal(err)
		}
		units := price(op.Cost, op.Fraction, &r, bound)
		switch {
		case op.Cost*r.Unit > bound:
			if op.Allowed || !op.Never || write {
				t.Fatalf("%+v; want never", op.Answer)
			}
		case row.Used+units <= bound:
			if !op.Allowed || op.Granted != op.Cost || after.Used != row.Used+units {
				t.Fatalf("%+v, %+v; want %d units more", op.Answer, after, units)
			}
		default:
			if op.Allowed || op.Never || write {
				t.Fatalf("%+v; want a refusal of %d units", op.Answer, units)
			}
			then, before := op, op
			if _, _, err = then.Step(row.TS+op.Retry, row, true); err != nil || !then.Allowed {
				t.Fatalf("refused at its retry, %d µs: %+v, %v", op.Retry, then.Answer, err)
			}
			if _, _, err = before.Step(row.TS+op.Retry-1, row, true); err != nil || before.Allowed {
				t.Fatalf("allowed 1 µs before its retry, %d µs: %+v, %v", op.Retry, before.Answer, err)
			}
		}
	})
}

func definition(t *rapid.T, l store.Limit) *store.Definition {
	d, err := store.NewDefinition(l)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
