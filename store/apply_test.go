package store_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// Tests a table of successive calls on one key.
func TestApplyTable(t *testing.T) {
	type call struct {
		at        time.Duration
		verb      store.Verb
		cost      int64
		allowed   bool
		remaining int64
		wait      time.Duration // retry or delay
	}
	for name, c := range map[string]struct {
		limit store.Limit
		calls []call
	}{
		"bucket": {store.Limit{Name: "l", Rate: 1, Period: time.Second, Burst: 3, MaxDebt: 2}, []call{
			{0, store.VerbTake, 3, true, 0, 0},
			{0, store.VerbTake, 1, false, 0, time.Second},
			{time.Second - 1000, store.VerbTake, 1, false, 0, time.Microsecond},
			{time.Second, store.VerbTake, 1, true, 0, 0},
			{time.Second, store.VerbReserve, 2, true, 0, 2 * time.Second},
			{time.Second, store.VerbReserve, 1, false, 0, time.Second},
			{time.Second, store.VerbCharge, 5, true, 0, 0},
			{time.Second, store.VerbTake, 0, false, 0, 7 * time.Second},
			{time.Second, store.VerbRefund, 8, true, 1, 0},
			{time.Second, store.VerbTakeUpTo, 9, true, 0, 0},
			{time.Second, store.VerbReset, 0, true, 3, 0},
		}},
		"clock back": {store.Limit{Name: "l", Rate: 1, Period: time.Second, Burst: 2}, []call{
			{10 * time.Second, store.VerbTake, 2, true, 0, 0},
			{5 * time.Second, store.VerbTake, 1, false, 0, 6 * time.Second},
			{10 * time.Second, store.VerbTake, 1, false, 0, time.Second},
			{11 * time.Second, store.VerbTake, 1, true, 0, 0},
		}},
		"window": {store.Limit{Name: "l", Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, Start: "0s"}, []call{
			{3 * time.Second, store.VerbTake, 5, true, 0, 0},
			{9 * time.Second, store.VerbTake, 1, false, 0, time.Second},
			{10 * time.Second, store.VerbTake, 5, true, 0, 0},
		}},
		"leaky": {store.Limit{Name: "l", Algorithm: store.LeakyBucket, Rate: 1, Period: time.Second, MaxDebt: 1}, []call{
			{0, store.VerbTake, 1, true, 0, 0},
			{0, store.VerbCheck, 1, true, 0, time.Second},
			{0, store.VerbTake, 1, true, 0, time.Second},
			{0, store.VerbTake, 1, false, 0, time.Second},
			{0, store.VerbReserve, 0, true, 0, time.Second},
			{0, store.VerbTake, 0, true, 0, time.Second},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := limittest.Definition(c.limit).Rule
			var s store.State
			for i, k := range c.calls {
				o := r.Apply(s, k.at.Microseconds(), k.verb, k.cost)
				if wait := time.Duration(o.Retry+o.Delay) * time.Microsecond; o.Allowed != k.allowed || r.Remaining(o.After, o.TS) != k.remaining || wait != k.wait {
					t.Fatalf("call %d (%+v): %+v, remaining %d", i, k, o, r.Remaining(o.After, o.TS))
				}
				if o.Allowed && k.verb != store.VerbCheck {
					s = store.State{Used: o.After, TS: o.TS}
				} else if o.After != o.Before {
					t.Fatalf("call %d: a call that writes nothing changed %d to %d", i, o.Before, o.After)
				}
			}
		})
	}
}

// anyRule draws a bucket or a window with numbers up to the largest possible.
func anyRule(t *rapid.T) (store.Limit, store.Rule) {
	for {
		big := rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Int64Range(1, 1<<30), rapid.Int64Range(1, store.MaxInt))
		l := store.Limit{
			Name: "l", Algorithm: store.Algorithm(rapid.IntRange(0, 3).Draw(t, "algorithm")), Rate: big.Draw(t, "rate"),
			Period:  time.Duration(rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Int64Range(1, 1e6), rapid.Int64Range(1, 4e12)).Draw(t, "period")) * time.Microsecond,
			Burst:   rapid.OneOf(rapid.Int64Range(-1, 1000), rapid.Int64Range(1, store.MaxInt)).Draw(t, "burst"),
			MaxDebt: rapid.OneOf(rapid.Int64Range(-2, 1000), rapid.Int64Range(1, store.MaxInt)).Draw(t, "debt"),
		}
		switch l.Algorithm {
		case store.FixedWindow, store.Interval:
			l.Start = rapid.SampledFrom([]string{"0s", "first_call"}).Draw(t, "start")
		case store.LeakyBucket:
			l.Burst = 0
		}
		if r, _, err := compile(l); err == nil {
			return l, r
		}
	}
}

// applied makes a step and checks it against exact arithmetic.
func applied(t interface{ Fatalf(string, ...any) }, r *store.Rule, s store.State, now int64, verb store.Verb, cost int64) {
	o := r.Apply(s, now, verb, cost)
	big64 := big.NewInt
	at, origin := max(now, s.TS), r.Origin
	if r.BeginsWithCall() {
		origin = s.TS
	}
	tick := func(x int64) *big.Int { return new(big.Int).Div(big64(x-origin), big64(r.Every)) }
	back := new(big.Int).Sub(tick(at), tick(s.TS))
	if r.BeginsWithCall() && o.Before > 0 {
		at = new(big.Int).Add(big64(s.TS), new(big.Int).Mul(back, big64(r.Every))).Int64()
	}
	if o.TS != at {
		t.Fatalf("the clock went from %d, %d to %d, not %d", s.TS, now, o.TS, at)
	}
	used := new(big.Int).Sub(big64(s.Used), back.Mul(back, big64(r.Add)))
	if used.Sign() < 0 {
		used.SetInt64(0)
	}
	if used.Cmp(big64(o.Before)) != 0 {
		t.Fatalf("used before: %d, want %v", o.Before, used)
	}
	if o.After < 0 || o.After > store.MaxInt || o.Retry < 0 || o.Delay < 0 || o.Granted < 0 {
		t.Fatalf("out of bounds: %+v", o)
	}
	room := big64(r.Cap)
	if verb == store.VerbReserve && cost > 0 || r.Leaky && verb != store.VerbTakeUpTo {
		room.Add(room, big64(r.Debt))
	}
	units := new(big.Int).Mul(big64(cost), big64(r.Unit))
	sum := new(big.Int).Add(used, units)
	switch verb {
	case store.VerbTake, store.VerbCheck, store.VerbReserve:
		if o.Allowed != (sum.Cmp(room) <= 0) || o.Never != (units.Cmp(room) > 0) {
			t.Fatalf("used %v + %v of %v: %+v", used, units, room, o)
		}
	case store.VerbRefund:
		if want := new(big.Int).Sub(used, units); want.Sign() <= 0 && o.After != 0 || want.Sign() > 0 && want.Cmp(big64(o.After)) != 0 {
			t.Fatalf("refund of %v of %v: %d left", units, used, o.After)
		}
	}
	if !o.Allowed && !o.Never {
		retryIsExact(t, r, s, now, verb, cost, o)
	}
}

func retryIsExact(t interface{ Fatalf(string, ...any) }, r *store.Rule, s store.State, now int64, verb store.Verb, cost int64, o store.Outcome) {
	if o.Retry <= 0 || o.After != o.Before {
		t.Fatalf("a refusal: %+v", o)
	}
	if early := r.Apply(s, now+o.Retry-1, verb, cost); early.Allowed || early.Retry != 1 {
		t.Fatalf("1 µs before the retry time: %+v, then %+v", o, early)
	}
	if late := r.Apply(s, now+o.Retry, verb, cost); !late.Allowed {
		t.Fatalf("at the retry time: %+v, then %+v", o, late)
	}
}

func TestApplyIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, r := anyRule(t)
		used := rapid.Int64Range(0, r.MaxUsed).Draw(t, "used")
		ts := rapid.Int64Range(0, 4e15).Draw(t, "ts")
		now := ts + rapid.OneOf(rapid.Int64Range(-1e12, 1e12), rapid.Int64Range(-1000, 1000), rapid.Int64Range(0, 4e15)).Draw(t, "later")
		cost := rapid.OneOf(rapid.Int64Range(0, 10), rapid.Int64Range(0, r.Burst+1), rapid.Int64Range(0, store.MaxInt)).Draw(t, "cost")
		verb := store.Verb(rapid.IntRange(0, 6).Draw(t, "verb"))
		if verb == store.VerbCharge {
			cost = min(cost, r.MaxCharge)
		}
		applied(t, &r, store.State{Used: used, TS: ts}, now, verb, cost)
	})
}

func FuzzApply(f *testing.F) {
	f.Add(int64(10), int64(1e6), int64(50), int64(0), uint8(0), int64(1), int64(1e15), int64(17), int64(1))
	f.Add(int64(store.MaxInt), int64(1), int64(store.MaxInt), int64(-1), uint8(1), int64(store.MaxInt), int64(0), int64(-5), int64(store.MaxInt))
	f.Add(int64(999983), int64(30*86400e6), int64(0), int64(-2), uint8(3), int64(1<<40), int64(1e15), int64(1e12), int64(7))
	f.Fuzz(func(t *testing.T, rate, period, burst, debt int64, verb uint8, used, ts, later, cost int64) {
		l := store.Limit{Name: "l", Rate: rate, Period: time.Duration(period) * time.Microsecond, Burst: burst, MaxDebt: debt}
		r, _, err := compile(l)
		if err != nil || used < 0 || used > r.MaxUsed || ts < 0 || ts > 4e15 || later < -4e15 || later > 4e15 || cost < 0 || cost > store.MaxInt || verb > 6 {
			return
		}
		if store.Verb(verb) == store.VerbCharge {
			cost = min(cost, r.MaxCharge)
		}
		applied(t, &r, store.State{Used: used, TS: ts}, ts+later, store.Verb(verb), cost)
	})
}

// A refund with a cost whose units overflow an int64 must not take tokens.
func TestRefundOverflow(t *testing.T) {
	for _, period := range []time.Duration{time.Microsecond, 1500 * time.Microsecond, 2047 * time.Microsecond, 30 * 24 * time.Hour} {
		r, _, err := compile(store.Limit{Name: "l", Rate: 1, Period: period, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, cost := range []int64{1, 1 << 20, store.MaxInt / 2, store.MaxInt} {
			if o := r.Apply(store.State{Used: r.Unit, TS: 1}, 1, store.VerbRefund, cost); o.After != 0 {
				t.Errorf("1 per %v: %d given back, and %d units are used", period, cost, o.After)
			}
		}
	}
}
