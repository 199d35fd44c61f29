package store_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestLeaseCarves checks that a leased limit has fewer tokens by what comes back in a
// lease and two thousandths, rounded up, that its other numbers are those without a
// lease, and that plans and overrides have their own.
func TestLeaseCarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := store.Limit{
			Name:   "a",
			Rate:   rapid.Int64Range(1, 1e7).Draw(t, "rate"),
			Period: time.Duration(rapid.Int64Range(1, 86400e6).Draw(t, "period")) * time.Microsecond,
			Burst:  rapid.Int64Range(1, 1e9).Draw(t, "burst"),
		}
		whole, err := store.NewDefinition(l)
		if err != nil {
			t.Skip(err)
		}
		l.Lease = time.Duration(rapid.Int64Range(10e3, 1e6).Draw(t, "lease")) * time.Microsecond
		d, err := store.NewDefinition(l)
		back := new(big.Rat).SetFrac64(l.Rate*l.Lease.Microseconds(), l.Period.Microseconds())
		half := new(big.Rat).SetFrac64(l.Burst, 2)
		if fits := back.Cmp(half) <= 0 && l.Burst > 2 && whole.Rule.Every <= 1000; err != nil && fits || err == nil && (back.Cmp(half) > 0 || l.Burst < 2) {
			t.Fatalf("%v: %v in a lease: %v", l, back.FloatString(3), err)
		}
		if err != nil {
			return
		}
		back.Mul(back, big.NewRat(1002, 1000))
		carved := new(big.Int).Add(new(big.Int).Quo(new(big.Int).Sub(back.Num(), big.NewInt(1)), back.Denom()), big.NewInt(1)).Int64()
		want := whole.Rule
		want.Burst -= carved
		want.Cap -= carved * want.Unit
		want.Most = (want.Cap + want.Debt) / want.Unit
		if d.Rule != want || want.Burst < 1 {
			t.Fatalf("%v: %+v, want %+v", l, d.Rule, want)
		}
	})
}

func TestLeaseOfPlansAndOverrides(t *testing.T) {
	d := limittest.Definition(store.Limit{Name: "a", Rate: 100, Period: time.Second, Lease: 250 * time.Millisecond,
		Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 1000, Burst: 1000}, store.Plan{Name: "staff", Mode: store.Unlimited})})
	for _, c := range []struct {
		d    *store.Definition
		want int64
	}{{d, 74}, {d.WithPlan("pro"), 749}, {d.WithPlan("staff"), 74}, {d.WithOverride(&store.Override{ID: 1, Version: 1, Burst: 500}), 474}} {
		if got := c.d.Rule.Burst; got != c.want {
			t.Errorf("plan %q: capacity %d, want %d", c.d.Plan, got, c.want)
		}
	}
	if err := d.CheckOverride(&store.Override{Burst: 40}, 0); err == nil || err.Error() != "lease: 250ms is too long for a burst of 40 at 100 per 1s; at most 200ms" {
		t.Error(err)
	}
}
