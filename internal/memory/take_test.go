package memory

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// The fast path for buckets has the same results as Op.Step, also at the
// largest numbers.
func TestTakeIsStep(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	limits := []store.Limit{
		{Name: "a", Rate: 10, Period: time.Second, Burst: 50},
		{Name: "b", Rate: 300_000, Period: time.Second, Burst: 2},
		{Name: "c", Rate: 3, Period: 7 * time.Second, Burst: 1_000_000},
		{Name: "d", Rate: 999_983, Period: time.Second, Burst: 700_000_000},
		{Name: "e", Rate: store.MaxInt, Period: time.Hour, Burst: 1, MaxDebt: store.NoDebt, MaxCharge: 1},
		{Name: "f", Rate: 7_000_000, Period: time.Second, Burst: store.MaxInt / 2, MaxDebt: store.NoDebt, MaxCharge: 1},
	}
	buckets := 0
	for _, l := range limits {
		d := limittest.Definition(l)
		r, fast := d.Rule, newTakeRule(d)
		if !fast.bucket {
			continue
		}
		buckets++
		for range 50_000 {
			span := 1 + rnd.Int64N(r.MaxUsed)>>rnd.IntN(53)
			s := store.State{Version: d.Number, Used: rnd.Int64N(span + 1), TS: 1_800_000_000_000_000}
			now := s.TS + rnd.Int64N(1<<40)>>rnd.IntN(40) - rnd.Int64N(1000)
			cost := 1 + rnd.Int64N(r.Burst)>>rnd.IntN(53)
			o := store.Op{Def: d, Cost: cost}
			if _, _, err := o.Step(now, s, false); err != nil {
				t.Fatal(err)
			}
			after, ts, remaining, retry, reset, allowed := fast.take(s.Used, s.TS, now, cost)
			if after != o.Used || ts != o.TS || retry != o.Retry || allowed != o.Allowed ||
				remaining != o.Remaining || reset != o.Reset {
				t.Fatalf("%s: take(%+v, %d, %d) = %d %d %d %d %d %v; Step says %+v", l.Name, s, now, cost,
					after, ts, remaining, retry, reset, allowed, o.Answer)
			}
		}
	}
	if buckets < 4 {
		t.Fatalf("only %d of the limits are buckets counted in µs", buckets)
	}
}

// The fast path for windows has the same results as Op.Step.
func TestTakeInWindowIsStep(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	windows := 0
	for _, l := range []store.Limit{
		{Name: "a", Algorithm: store.FixedWindow, Rate: 10, Period: time.Second},
		{Name: "b", Algorithm: store.FixedWindow, Rate: 1_000_000, Period: 7 * time.Minute, Burst: 2_500_000},
		{Name: "c", Algorithm: store.Interval, Rate: 3, Period: 24 * time.Hour, Burst: 1000},
		{Name: "d", Algorithm: store.Interval, Rate: 3, Period: 3 * time.Microsecond, Burst: 100_000},
		{Name: "e", Algorithm: store.FixedWindow, Rate: 100, Period: time.Hour, Start: "59m"},
		{Name: "f", Algorithm: store.FixedWindow, Rate: 7, Period: 1000 * 24 * time.Hour},
		{Name: "g", Rate: 999_983, Period: 24 * time.Hour, Burst: 2_000_000_000, MaxDebt: store.NoDebt, MaxCharge: 1},
	} {
		d := limittest.Definition(l)
		fast := newTakeRule(d)
		if !fast.windows || fast.bucket {
			t.Errorf("%s has no windows of one length", l.Name)
			continue
		}
		if windows++; l.Name == "g" && d.Rule.Unit == 1 {
			t.Errorf("%s has units of one token", l.Name)
		}
		for i := range 50_000 {
			key := string(rune('a' + i%20))
			var scratch store.Rule
			r := d.RuleFor(key, &scratch)
			span := 1 + rnd.Int64N(r.MaxUsed)>>rnd.IntN(53)
			s := store.State{Version: d.Number, Used: rnd.Int64N(span + 1), TS: rnd.Int64N(1_800_000_000_000_000) >> (rnd.IntN(2) * rnd.IntN(51))}
			now := max(0, s.TS+rnd.Int64N(1<<51)>>rnd.IntN(51)-rnd.Int64N(1000))
			cost := 1 + rnd.Int64N(r.Burst)>>rnd.IntN(53)
			o := store.Op{Def: d, Key: key, Cost: cost}
			if _, _, err := o.Step(now, s, false); err != nil {
				t.Fatal(err)
			}
			after, ts, remaining, retry, reset, allowed := fast.takeInWindow(s.Used, s.TS, now, cost, terms.PhaseOf(l.Name, key))
			if after != o.Used || ts != o.TS || retry != o.Retry || allowed != o.Allowed ||
				remaining != o.Remaining || reset != o.Reset {
				t.Fatalf("%s: takeInWindow(%+v, %d, %d) = %d %d %d %d %d %v; Step says %+v", l.Name, s, now, cost,
					after, ts, remaining, retry, reset, allowed, o.Answer)
			}
		}
	}
	if windows != 7 {
		t.Fatalf("only %d of the limits have windows of one length", windows)
	}
}
