package store_test

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// A takenWindow is what was taken in one window of a literal sliding window.
type takenWindow struct{ index, tokens *big.Int }

// A literalSlide keeps what was taken in each window, in big integers, as the contract says
// it, and finds the first instant of a retry by trying each thousandth of three windows.
type literalSlide struct {
	rate, every, origin, charge *big.Int
	windows                     []takenWindow
	ts                          int64
}

func (s *literalSlide) window(t int64) (index, elapsed *big.Int) {
	return new(big.Int).DivMod(new(big.Int).Sub(big.NewInt(t), s.origin), s.every, new(big.Int))
}

func (s *literalSlide) taken(index *big.Int) *big.Int {
	sum := new(big.Int)
	for _, w := range s.windows {
		if w.index.Cmp(index) == 0 {
			sum.Add(sum, w.tokens)
		}
	}
	return sum
}

// counts returns floor(prev·w/1000) + cur at t.
func (s *literalSlide) counts(t int64) *big.Int {
	index, elapsed := s.window(t)
	w := new(big.Int).Div(elapsed.Mul(elapsed, big.NewInt(1000)), s.every)
	w.Sub(big.NewInt(1000), w)
	prev := s.taken(new(big.Int).Sub(index, big.NewInt(1)))
	prev.Div(prev.Mul(prev, w), big.NewInt(1000))
	return prev.Add(prev, s.taken(index))
}

func (s *literalSlide) free(t int64) *big.Int { return new(big.Int).Sub(s.rate, s.counts(t)) }

// retry returns the first instant after t at which n are free.
func (s *literalSlide) retry(t, n int64) int64 {
	index, _ := s.window(t)
	for range 3 {
		begin := new(big.Int).Add(new(big.Int).Mul(index, s.every), s.origin)
		prev, room := s.taken(new(big.Int).Sub(index, big.NewInt(1))), less(less(s.rate, big.NewInt(n)), s.taken(index))
		for w := int64(1000); w > 0; w-- {
			if part(prev, big.NewInt(w), big.NewInt(1000), false).Cmp(room) > 0 {
				continue
			}
			after := part(s.every, big.NewInt(1000-w), big.NewInt(1000), true)
			if at := new(big.Int).Add(begin, after).Int64(); after.Cmp(s.every) < 0 && at > t {
				return at
			}
		}
		index.Add(index, big.NewInt(1))
	}
	panic("no retry in three windows")
}

// full returns when the present and the previous window both have nothing.
func (s *literalSlide) full(t int64) int64 {
	index, _ := s.window(t)
	for i := int64(2); i > 0; i-- {
		if s.taken(new(big.Int).Add(index, big.NewInt(i-2))).Sign() > 0 {
			return new(big.Int).Add(new(big.Int).Mul(new(big.Int).Add(index, big.NewInt(i)), s.every), s.origin).Int64()
		}
	}
	return t
}

func (s *literalSlide) take(t int64, n *big.Int) {
	index, _ := s.window(t)
	s.windows = append(s.windows, takenWindow{index, n})
}

// decide returns the answer to a call at now, and takes its tokens.
func (s *literalSlide) decide(verb store.Verb, now, n int64) (a store.Answer) {
	t := max(now, s.ts)
	index, _ := s.window(t)
	cur := s.taken(index)
	switch verb {
	case store.VerbReset:
		if a.Allowed = true; s.full(t) > t { // a full bucket is not written, and the clock may step back
			s.windows = nil
		}
	case store.VerbRefund:
		a.Allowed = true
		s.take(t, new(big.Int).Neg(least(big.NewInt(n), cur)))
	case store.VerbCharge:
		if a.Never = s.charge.Cmp(big.NewInt(n)) < 0; !a.Never {
			a.Allowed, a.Granted = true, n
			s.take(t, least(big.NewInt(n), less(big.NewInt(1<<26-1), cur)))
		}
	default:
		need := n
		if verb == store.VerbTakeUpTo {
			need = min(n, 1)
		}
		free := s.free(t)
		switch {
		case s.rate.Cmp(big.NewInt(need)) < 0:
			a.Never = true
		case free.Cmp(big.NewInt(need)) < 0:
			a.Retry = s.retry(t, need) - now
		default:
			if a.Allowed = true; verb != store.VerbCheck {
				a.Granted = least(big.NewInt(n), free).Int64()
				s.take(t, big.NewInt(a.Granted))
			}
		}
	}
	if free := s.free(t); free.Sign() > 0 {
		a.Remaining = free.Int64()
	}
	if full := s.full(t); full > t {
		a.Reset = full - now
	}
	return a
}

// randomSlide returns a limit with windows of any length, often with awkward numbers.
func randomSlide(r *rand.Rand) store.Limit {
	l := store.Limit{Name: "s", Algorithm: store.SlidingWindow, Rate: 1 + r.Int64N(50), Start: "0s"}
	switch r.IntN(8) {
	case 0:
		l.Rate = 1<<26 - 1 - r.Int64N(3)
	case 1:
		l.Rate = 1 + r.Int64N(1<<26-1)
	case 2:
		l.Start = ""
	}
	l.Period = time.Duration(1+r.Int64N([...]int64{12, 2000, 60e6, 100 * 86400e6}[r.IntN(4)])) * time.Microsecond
	return l
}

// TestSlidingLiteral plays 10,000 histories of all verbs, with clocks that step back, and
// tries each retry at its instant and 1 µs before.
func TestSlidingLiteral(t *testing.T) {
	seed := limittest.NewSeed(t)
	histories := 10000
	if testing.Short() {
		histories = 1000
	}
	verbs := []store.Verb{store.VerbTake, store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbTakeUpTo, store.VerbCharge, store.VerbRefund, store.VerbReset}
	for h := range histories {
		r := rand.New(rand.NewPCG(seed, uint64(h)))
		l := randomSlide(r)
		d, err := store.NewDefinition(l)
		if err != nil {
			t.Fatal(err)
		}
		var scratch store.Rule
		rule := d.RuleFor("k", &scratch)
		model := &literalSlide{rate: big.NewInt(l.Rate), every: big.NewInt(l.Period.Microseconds()), origin: big.NewInt(rule.Origin), charge: big.NewInt(min(10*l.Rate, store.MaxInt))}
		var row store.State
		now := 1.7e15 + r.Int64N(1e14)
		for i := range 15 {
			op := store.Op{Def: d, Key: "k", Verb: verbs[r.IntN(len(verbs)-i%2)], Cost: r.Int64N(l.Rate + l.Rate/4 + 2)}
			if r.IntN(3) == 0 {
				op.Cost = min(l.Rate, r.Int64N(4))
			}
			what := fmt.Sprintf("seed %d, history %d, call %d: %s, %s %d at %d on %+v", seed, h, i, l, op.Verb, op.Cost, now, row)
			next, write, err := op.Step(now, row, false)
			if err != nil {
				t.Fatal(what, err)
			}
			want := model.decide(op.Verb, now, op.Cost)
			got := op.Answer
			got.Used, got.TS = 0, 0
			if got != want {
				t.Fatalf("%s\n%+v, want\n%+v\n%v", what, got, want, model.windows)
			}
			if op.Retry > 0 {
				at := max(now, model.ts)
				for _, ahead := range []int64{-1, 0} {
					again := op
					again.Answer = store.Answer{}
					if _, _, err := again.Step(now+op.Retry+ahead, row, true); err != nil || again.Allowed != (ahead == 0) {
						t.Fatalf("%s: retry %d: %d µs after it: %+v, %v", what, op.Retry, ahead, again.Answer, err)
					}
				}
				if now+op.Retry <= at {
					t.Fatalf("%s: a retry that has passed: %+v", what, op.Answer)
				}
			}
			if write {
				row, model.ts = next, max(now, model.ts)
				if row.Used > store.MaxInt>>1 {
					t.Fatalf("%s: %d used", what, row.Used)
				}
			}
			switch r.IntN(6) {
			case 0:
				now += r.Int64N(3 * l.Period.Microseconds())
			case 1:
				now -= r.Int64N(l.Period.Microseconds())
			case 2:
				now += op.Retry
			case 3:
				now += op.Reset
			default:
				now += r.Int64N(l.Period.Microseconds()/4 + 1)
			}
		}
	}
}

// TestSlidingPlans checks that calls by plans count in one row, which stays under the base,
// and that their retries are exact.
func TestSlidingPlans(t *testing.T) {
	l := store.Limit{Name: "s", Algorithm: store.SlidingWindow, Rate: 10, Period: 10 * time.Second, Start: "0s", Plans: store.NewPlans(
		store.Plan{Name: "pro", Rate: 20}, store.Plan{Name: "small", Rate: 5})}
	d := limittest.Definition(l)
	d.Number = 1
	now := int64(1.7e15)
	var row store.State
	call := func(plan string, verb store.Verb, cost int64, want store.Answer) {
		t.Helper()
		op := store.Op{Def: d.WithPlan(plan), Key: "k", Verb: verb, Cost: cost}
		next, _, err := op.Step(now, row, false)
		got := op.Answer
		if got.Used, got.TS, got.Reset = 0, 0, 0; err != nil || got != want {
			t.Fatalf("%s %d by %q: %+v, %v; want %+v", verb, cost, plan, got, err, want)
		}
		if row = next; row.Version != 1 {
			t.Fatalf("the row is under %d", row.Version)
		}
		for _, ahead := range []int64{-1, 0} {
			again := store.Op{Def: d.WithPlan(plan), Key: "k", Verb: verb, Cost: cost}
			if _, _, err := again.Step(now+want.Retry+ahead, row, true); want.Retry > 0 && (err != nil || again.Allowed != (ahead == 0)) {
				t.Fatalf("%s %d by %q, %d µs after its retry: %+v", verb, cost, plan, ahead, again.Answer)
			}
		}
	}
	call("pro", store.VerbTake, 15, store.Answer{Allowed: true, Granted: 15, Remaining: 5})
	call("", store.VerbCheck, 1, store.Answer{Retry: 13340e3})
	call("small", store.VerbTake, 1, store.Answer{Retry: 16670e3})
	call("pro", store.VerbTake, 6, store.Answer{Remaining: 5, Retry: 10010e3})
	call("", store.VerbCharge, 1, store.Answer{Allowed: true, Granted: 1})
	call("pro", store.VerbCheck, 1, store.Answer{Allowed: true, Remaining: 4})
	now += 13e6 // 700 thousandths of 16
	call("pro", store.VerbTake, 9, store.Answer{Allowed: true, Granted: 9})
	call("", store.VerbRefund, 5, store.Answer{Allowed: true})
	call("pro", store.VerbCheck, 0, store.Answer{Allowed: true, Remaining: 5})
	call("", store.VerbReset, 0, store.Answer{Allowed: true, Remaining: 10})
	for _, verb := range []store.Verb{store.VerbReserve, store.VerbTake} {
		field, ok := errors.AsType[*store.FieldError](d.CheckVerb(verb, verb == store.VerbTake))
		if !ok || field.Field != "limit" {
			t.Errorf("%s: %v", verb, field)
		}
	}
}

// TestSlidingChanges checks what is counted after a change, with a hold that lives.
func TestSlidingChanges(t *testing.T) {
	ctx, now := t.Context(), int64(1.7e15)
	m := limittest.NewModel(func() int64 { return now })
	bucket := store.Limit{Name: "s", Rate: 100, Period: time.Minute}
	slide := store.Limit{Name: "s", Algorithm: store.SlidingWindow, Rate: 100, Period: 20 * time.Second, Start: "0s"}
	define := func(l store.Limit) {
		t.Helper()
		if _, err := m.Define(ctx, l, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(hold *store.HoldCall, verb store.Verb, cost, remaining int64) {
		t.Helper()
		g := store.Group{Hold: hold}
		if hold == nil || hold.Verb == store.MakeHold {
			g.Ops = []store.Op{{Def: m.Registry().Lookup("s"), Key: "k", Verb: verb, Cost: cost}}
		}
		b := store.Batch{Groups: []store.Group{g}}
		if err := m.Apply(ctx, &b); err != nil || b.Groups[0].Err != nil || b.Groups[0].Ops[0].Remaining != remaining {
			t.Fatalf("%v, %v, %+v; want %d left", err, b.Groups[0].Err, b.Groups[0].Ops[0].Answer, remaining)
		}
	}
	define(bucket)
	ask(&store.HoldCall{ID: "less", TTL: 60e6}, store.VerbTake, 30, 70)
	ask(&store.HoldCall{ID: "more", TTL: 60e6}, store.VerbTake, 10, 60)
	define(slide)
	ask(nil, store.VerbCheck, 0, 60)
	ask(&store.HoldCall{ID: "less", Verb: store.SettleHold, Costs: []int64{5}}, 0, 0, 60)  // nothing comes back
	ask(&store.HoldCall{ID: "more", Verb: store.SettleHold, Costs: []int64{17}}, 0, 0, 53) // 7 more
	now += 25e6                                                                            // 750 thousandths of 47 are 35.25
	ask(nil, store.VerbTake, 5, 60)
	slide.Rate = 50 // the same windows
	define(slide)
	ask(nil, store.VerbCheck, 0, 10)
	now += 5e6 // 500 thousandths of 47 are 23.5
	ask(nil, store.VerbCheck, 0, 22)
	define(bucket)
	ask(nil, store.VerbCheck, 0, 71)
}
