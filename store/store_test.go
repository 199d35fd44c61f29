package store_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// The retry time of a bounded Reserve is exact: 1 µs before it the call is
// refused, and at it allowed, whether the bound on the delay, max_debt, or both
// are the reason.
func TestTheRetryOfABoundedReserveIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := anyRule(t)
		def := limittest.Definition(l)
		if r.Most == 0 {
			return
		}
		row := store.State{
			Used: rapid.Int64Range(0, r.Cap+r.Debt).Draw(t, "used"), TS: rapid.Int64Range(0, 4e15).Draw(t, "ts"), Version: def.Number,
		}
		now := row.TS + rapid.OneOf(rapid.Int64Range(-1000, 1000), rapid.Int64Range(0, 1e12)).Draw(t, "later")
		op := store.Op{Def: def, Key: "k", Verb: store.VerbReserve, Cost: rapid.Int64Range(1, r.Most).Draw(t, "cost"), Bounded: true}
		due := r.TimeToFull(r.Cap+r.Debt, now, now)
		op.MaxDelay = rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, due)).Draw(t, "most")
		if _, _, err := op.Step(now, row, false); err != nil {
			t.Fatal(err)
		}
		if op.Allowed {
			if op.Delay > op.MaxDelay {
				t.Fatalf("allowed with a delay of %d, more than %d", op.Delay, op.MaxDelay)
			}
			return
		}
		var scratch store.Rule
		_, end := def.RuleFor("k", &scratch).Window(now)
		full := op
		if _, _, err := full.Step(end-1, store.State{TS: end - 1, Version: def.Number}, false); err != nil || full.Allowed == op.Never && (full.Allowed || !r.BeginsWithCall()) { // a window that has begun ends sooner than one that a call begins
			t.Fatalf("of a full row just before a tick: %+v, %v; of this one: %+v", full.Answer, err, op.Answer)
		}
		if op.Never || op.Cost > r.Burst && op.Retry >= op.Reset {
			return // the row is full before, and then the due instant moves with the call
		}
		retry := op.Retry
		if retry <= 0 || op.Never || op.Granted != 0 || op.Delay != 0 {
			t.Fatalf("a refusal: %+v", op.Answer)
		}
		if _, _, err := op.Step(now+retry-1, row, false); err != nil || op.Allowed || op.Retry != 1 {
			t.Fatalf("1 µs before its retry of %d: %+v, %v", retry, op.Answer, err)
		}
		if _, _, err := op.Step(now+retry, row, false); err != nil || !op.Allowed {
			t.Fatalf("at its retry of %d: %+v, %v", retry, op.Answer, err)
		}
	})
}

// TestABoundedReserveOfUTCDays checks that on days and weeks of UTC, which all have the same
// length, a refusal that is not for good is followed by a call that is allowed.
func TestABoundedReserveOfUTCDays(t *testing.T) {
	day := 24 * time.Hour.Microseconds()
	rapid.Check(t, func(t *rapid.T) {
		l := store.Limit{
			Name: "l", Algorithm: store.FixedWindow, Rate: rapid.Int64Range(1, 10).Draw(t, "rate"), MaxDebt: rapid.Int64Range(1, 60).Draw(t, "debt"),
			Period: 24 * time.Hour * time.Duration(rapid.SampledFrom([]int{1, 1, 7, 14}).Draw(t, "days")), Start: rapid.SampledFrom([]string{"00:00 UTC", "06:00 UTC"}).Draw(t, "start"),
		}
		def := limittest.Definition(l)
		r := def.Rule
		row := store.State{Used: rapid.Int64Range(0, r.Cap+r.Debt).Draw(t, "used"), TS: rapid.Int64Range(0, 40_000*day).Draw(t, "ts"), Version: def.Number}
		now := row.TS + rapid.Int64Range(0, 10*day).Draw(t, "later")
		op := store.Op{Def: def, Key: "k", Verb: store.VerbReserve, Cost: rapid.Int64Range(1, r.Most).Draw(t, "cost"), Bounded: true}
		ticks := (op.Cost - 1) / l.Rate // so many windows, or parts of them, pass before a full bucket has the rest
		least := max(0, ticks-1)*l.Period.Microseconds() + min(1, ticks)
		op.MaxDelay = max(0, least+rapid.Int64Range(-2*day/24, 2*day/24).Draw(t, "more"))
		step := func(at int64) *store.Op {
			if _, _, err := op.Step(at, row, false); err != nil {
				t.Fatal(err)
			}
			return &op
		}
		if step(now); op.Allowed {
			return
		}
		if op.Never != (op.MaxDelay < least) {
			t.Fatalf("with a delay of at most %d, where a full bucket has %d: %+v", op.MaxDelay, least, op.Answer)
		}
		if retry := op.Retry; !op.Never && !step(now+retry).Allowed {
			t.Fatalf("at its retry of %d: %+v", retry, op.Answer)
		}
	})
}

// A Reserve above the burst that even a full bucket could not grant within the
// bound is refused with Never.
func TestABoundedReserveThatIsAlwaysTooLate(t *testing.T) {
	second := time.Second.Microseconds()
	for name, c := range map[string]struct {
		store.Limit
		cost, most int64
		never      bool
	}{
		"bucket":            {store.Limit{Rate: 1, Period: time.Second, Burst: 2, MaxDebt: 10}, 5, 3*second - 1, true},
		"bucket, in time":   {store.Limit{Rate: 1, Period: time.Second, Burst: 2, MaxDebt: 10}, 5, 3 * second, false},
		"within the burst":  {store.Limit{Rate: 1, Period: time.Second, Burst: 2}, 2, 0, false},
		"window":            {store.Limit{Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, MaxDebt: 20}, 11, 10 * second, true},
		"window, in time":   {store.Limit{Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, MaxDebt: 20}, 11, 10*second + 1, false},
		"calendar":          {store.Limit{Algorithm: store.FixedWindow, Rate: 5, Period: store.Month, Start: "0s", MaxDebt: 20}, 11, 28 * 86400 * second, true},
		"calendar, in time": {store.Limit{Algorithm: store.FixedWindow, Rate: 5, Period: store.Month, Start: "0s", MaxDebt: 20}, 11, 28*86400*second + 1, false},
	} {
		c.Name = name
		op := store.Op{Def: limittest.Definition(c.Limit), Verb: store.VerbReserve, Cost: c.cost, Bounded: true, MaxDelay: c.most}
		r := &op.Def.Rule
		for _, used := range []int64{0, r.Cap, r.Cap + r.Debt} {
			row := store.State{Used: used, TS: 1000 * second, Version: 1}
			if _, _, err := op.Step(1001*second, row, false); err != nil || op.Never != c.never || op.Allowed && c.never || c.never && op.Retry != 0 {
				t.Errorf("%s with %d used: %+v, %v", name, used, op.Answer, err)
			}
		}
	}
}
