package memory

import (
	"context"
	"fmt"
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

// Random groups of takes have the same results in a store that decides them by takeAll, where
// that can, and in one that decides all by DecideIn: beside holds, overrides, changes of
// limits, and a clock that steps back.
func TestTakeAllIsDecideIn(t *testing.T) {
	rnd := rand.New(rand.NewPCG(limittest.NewSeed(t), 5))
	h := groupHistory{t: t, rnd: rnd, now: 1e15, limits: []store.Limit{
		{Name: "a", Rate: 3, Period: time.Second, Burst: 20, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 5})},
		{Name: "b", Algorithm: store.FixedWindow, Rate: 20, Period: 2 * time.Second},
		{Name: "c", Algorithm: store.Interval, Rate: 3, Period: time.Second, Burst: 20, Start: "0s"},
		{Name: "d", Rate: 999_983, Period: 24 * time.Hour, Burst: 2_000_000_000, MaxDebt: store.NoDebt, MaxCharge: 1},
		{Name: "e", Rate: 5, Period: time.Second, Burst: 9, Mode: store.Shadow},
		{Name: "f", Rate: 5, Period: time.Second, Burst: 9, Block: time.Second},
	}}
	for i := range h.stores {
		s, err := New(Config{Clock: func() int64 { return h.now }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h.stores[i] = s
		s.secret, s.limits.seed = h.stores[0].secret, h.stores[0].limits.seed // so that both forget the same full rows
	}
	for _, l := range h.limits {
		h.both(func(s *Store) string { _, err := s.Define(t.Context(), l, store.OwnerCode); return fmt.Sprint(err) })
	}
	for range 30_000 {
		h.step()
	}
	if h.fast < 1000 || h.refused < 100 || h.held < 300 {
		t.Errorf("takeAll decided %d groups, of which %d were refused and %d were beside holds", h.fast, h.refused, h.held)
	}
}

// A groupHistory makes the same calls of two stores: of the first by takeAll if that can.
type groupHistory struct {
	t      *testing.T
	rnd    *rand.Rand
	now    int64
	stores [2]*Store
	limits []store.Limit
	holds  int

	fast, refused, held int
}

// both calls f for both stores, and fails if it does not return the same.
func (h *groupHistory) both(f func(s *Store) string) {
	h.t.Helper()
	if a, b := f(h.stores[0]), f(h.stores[1]); a != b {
		h.t.Fatalf("at %d:\n%s; DecideIn:\n%s", h.now, a, b)
	}
}

// op returns an op of a random limit and key.
func (h *groupHistory) op() store.Op {
	l := &h.limits[h.rnd.IntN(len(h.limits))]
	op := store.Op{Def: &store.Definition{Limit: *l}, Key: string(rune('p' + h.rnd.IntN(3))), Cost: 1 + h.rnd.Int64N(4)}
	if l.Name == "d" {
		op.Cost *= 300_000
	}
	return op
}

func (h *groupHistory) step() {
	if h.now += h.rnd.Int64N(400_000); h.rnd.IntN(20) == 0 {
		h.now -= h.rnd.Int64N(800_000)
	}
	var g store.Group
	switch n := h.rnd.IntN(100); {
	case n < 3:
		op, end := h.op(), h.rnd.IntN(2) == 0
		h.both(func(s *Store) string {
			o := store.Override{Key: op.Key, Rate: 7, Until: h.now + 500_000}
			_, err := s.SetOverride(context.Background(), s.reg.Lookup(op.Def.Name), o)
			if end {
				_, err = s.EndOverride(context.Background(), s.reg.Lookup(op.Def.Name), op.Key, store.TemporaryOverride)
			}
			return fmt.Sprint(err)
		})
		return
	case n < 4:
		l := &h.limits[h.rnd.IntN(3)]
		l.Rate++
		h.both(func(s *Store) string {
			d, err := s.Define(context.Background(), *l, store.OwnerCode)
			return fmt.Sprint(d.Number, err)
		})
		return
	case n < 12:
		h.holds++
		g.Hold = &store.HoldCall{ID: fmt.Sprint(h.holds), TTL: 3_000_000}
		fallthrough
	case n < 90:
		for range 1 + h.rnd.IntN(5) {
			g.Ops = append(g.Ops, h.op())
		}
		if g.Ops[0].Floor = max(0, h.rnd.Int64N(12)-9); g.Hold != nil {
			g.Ops[0].Cost *= 3 // more than what is used later, before the hold expires
		}
	default:
		g.Ops = []store.Op{h.op()}
		g.Ops[0].Verb = store.VerbCharge + store.Verb(h.rnd.IntN(2))
	}
	pro := h.rnd.IntN(4) == 0
	h.both(func(s *Store) string { return h.apply(s, g, pro) })
}

// apply decides a copy of g in a store, and returns all answers and how the rows are then.
func (h *groupHistory) apply(s *Store, g store.Group, pro bool) string {
	ops := append([]store.Op(nil), g.Ops...)
	g.Ops = ops
	if g.Hold != nil {
		call := *g.Hold
		g.Hold = &call
	}
	held := false
	for i := range ops {
		if ops[i].Def = s.reg.Lookup(ops[i].Def.Name); pro && ops[i].Def.Name == "a" {
			ops[i].Def = ops[i].Def.WithPlan("pro")
		}
		held = held || s.hasRecords(ops[i].Def, ops[i].Key)
	}
	if s == h.stores[0] && s.applyPlain(&g) {
		if len(ops) > 1 {
			h.fast++
			h.refused += map[bool]int{false: 1}[g.Allowed]
			h.held += map[bool]int{true: 1}[held]
		}
	} else {
		_, g.Err = s.group(&g)
	}
	out := fmt.Sprintln(g.Err, g.Err == nil && g.Allowed, g.Reserved)
	for i := range ops {
		look := store.Group{Ops: []store.Op{{Def: s.reg.Lookup(ops[i].Def.Name), Key: ops[i].Key, Verb: store.VerbCheck}}}
		if g.Err == nil {
			out += fmt.Sprintf("%s %s %d: %+v\n", ops[i].Def.Name, ops[i].Key, ops[i].Def.Number, ops[i].Answer)
		}
		_, err := s.group(&look)
		out += fmt.Sprintf("%+v %v\n", look.Ops[0].Answer, err)
	}
	return out
}

// hasRecords reports whether a key has records or lows.
func (s *Store) hasRecords(d *store.Definition, key string) bool {
	sh, p := s.lockKey(d, key)
	defer sh.mu.Unlock()
	k := sh.extras[rowID{p.id, p.tag}]
	return k != nil && (k.lows != nil || k.count() > 0)
}
