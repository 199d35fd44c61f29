package store

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TakePlain is a second spelling of the step for the call that everybody makes:
// it must say what Apply says, at the bounds of what can be counted too.
func TestTakePlainIsApply(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	limits := []Limit{
		{Name: "a", Rate: 10, Period: time.Second, Burst: 50},
		{Name: "b", Rate: 300_000, Period: time.Second, Burst: 2},
		{Name: "c", Rate: 3, Period: 7 * time.Second, Burst: 1_000_000},
		{Name: "d", Rate: 999_983, Period: time.Second, Burst: 700_000_000},
		{Name: "e", Rate: MaxInt, Period: time.Hour, Burst: 1, MaxDebt: NoDebt, MaxCharge: 1},
		{Name: "f", Rate: 7_000_000, Period: time.Second, Burst: MaxInt / 2, MaxDebt: NoDebt, MaxCharge: 1},
	}
	plain := 0
	for _, l := range limits {
		r := MustDefinition(l).Rule
		if !r.Plain() {
			continue
		}
		plain++
		for range 50_000 {
			span := 1 + rnd.Int64N(r.MaxUsed)>>rnd.IntN(53)
			s := State{Used: rnd.Int64N(span + 1), TS: 1_800_000_000_000_000}
			now := s.TS + rnd.Int64N(1<<40)>>rnd.IntN(40) - rnd.Int64N(1000)
			cost := 1 + rnd.Int64N(r.Burst)>>rnd.IntN(53)
			o := r.Apply(s, now, VerbTake, cost)
			after, ts, remaining, retry, reset, allowed := r.TakePlain(s.Used, s.TS, now, cost)
			if after != o.After || ts != o.TS || retry != o.Retry || allowed != o.Allowed ||
				remaining != r.Remaining(o.After) || reset != r.FullIn(o.After, o.TS, now) {
				t.Fatalf("%s: TakePlain(%+v, %d, %d) = %d %d %d %d %d %v; Apply says %+v, %d left, full in %d", l.Name, s, now, cost,
					after, ts, remaining, retry, reset, allowed, o, r.Remaining(o.After), r.FullIn(o.After, o.TS, now))
			}
		}
	}
	if plain < 4 {
		t.Fatalf("only %d of the limits are plain", plain)
	}
}

// TakeEven likewise, for rules whose ticks are longer than a microsecond.
func TestTakeEvenIsApply(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	even := 0
	for _, l := range []Limit{
		{Name: "a", Algorithm: FixedWindow, Rate: 10, Period: time.Second},
		{Name: "b", Algorithm: FixedWindow, Rate: 1_000_000, Period: 7 * time.Minute, Burst: 2_500_000},
		{Name: "c", Algorithm: Interval, Rate: 3, Period: 24 * time.Hour, Burst: 1000},
		{Name: "d", Algorithm: Interval, Rate: 3, Period: 3 * time.Microsecond, Burst: 100_000},
		{Name: "e", Algorithm: FixedWindow, Rate: 100, Period: time.Hour, Start: "59m"},
		{Name: "f", Algorithm: FixedWindow, Rate: 7, Period: 1000 * 24 * time.Hour},
		{Name: "g", Rate: 999_983, Period: 24 * time.Hour, Burst: 2_000_000_000, MaxDebt: NoDebt, MaxCharge: 1},
	} {
		d := MustDefinition(l)
		if !d.Rule.Even() || d.Rule.Plain() {
			t.Errorf("%s is not even", l.Name)
			continue
		}
		if even++; l.Name == "g" && d.Rule.Unit == 1 {
			t.Errorf("%s has units of one token", l.Name)
		}
		for i := range 50_000 {
			key := string(rune('a' + i%20))
			var scratch Rule
			r := d.RuleFor(key, &scratch)
			span := 1 + rnd.Int64N(r.MaxUsed)>>rnd.IntN(53)
			s := State{Used: rnd.Int64N(span + 1), TS: rnd.Int64N(1_800_000_000_000_000) >> (rnd.IntN(2) * rnd.IntN(51))}
			now := max(0, s.TS+rnd.Int64N(1<<51)>>rnd.IntN(51)-rnd.Int64N(1000))
			cost := 1 + rnd.Int64N(r.Burst)>>rnd.IntN(53)
			o := r.Apply(s, now, VerbTake, cost)
			after, ts, remaining, retry, reset, allowed := d.Rule.TakeEven(s.Used, s.TS, now, cost, PhaseOf(l.Name, key))
			if after != o.After || ts != o.TS || retry != o.Retry || allowed != o.Allowed ||
				remaining != r.Remaining(o.After) || reset != r.FullIn(o.After, o.TS, now) {
				t.Fatalf("%s: TakeEven(%+v, %d, %d) = %d %d %d %d %d %v; Apply says %+v, %d left, full in %d", l.Name, s, now, cost,
					after, ts, remaining, retry, reset, allowed, o, r.Remaining(o.After), r.FullIn(o.After, o.TS, now))
			}
		}
	}
	if even != 7 {
		t.Fatalf("only %d of the limits are even", even)
	}
}

// A rule whose numbers a store has kept answers in as few steps as one that was
// compiled so: TakePlain goes by a number that follows from them.
func TestRuleReady(t *testing.T) {
	r, _, err := Limit{Name: "x", Rate: 1, Period: time.Microsecond, Burst: 1 << 40}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := Limit{Name: "x", Rate: 7, Period: time.Hour, Burst: 1 << 12}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	r.Unit, r.Add, r.Cap, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed = want.Unit, want.Add, want.Cap, want.Burst, want.Debt, want.Most, want.MaxCharge, want.MaxUsed
	if r.Ready(); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}
