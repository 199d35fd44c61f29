package storetest

import (
	"strconv"
	"time"

	"github.com/dipwell/dipwell/store"
)

// priceCases test calls at a fraction of the rate, as an adaptive limit makes them.
var priceCases = []testCase{
	{"price-rate", priceRate},
	{"price-promise", pricePromise},
	{"price-full", priceFull},
	{"price-floor", priceFloor},
	{"price-group", priceGroup},
	{"price-plan", pricePlan},
}

// priced decides takes at a fraction of a limit's rate, in 1024ths.
func (b *caller) priced(fraction int64, verb store.Verb, calls ...string) *store.Group {
	b.Helper()
	g := &store.Group{}
	for _, c := range calls {
		op := b.op(verb, c)
		op.Fraction = fraction
		g.Ops = append(g.Ops, op)
	}
	g, err := b.decide(g)
	if err != nil {
		b.Fatalf("%s %v at %d/1024: %v", verb, calls, fraction, err)
	}
	return g
}

// wants fails unless the only op of a group has this answer: "yes", "no RETRY" or "never".
func (b *caller) wants(want string, g *store.Group) {
	b.Helper()
	op, got := &g.Ops[0], ""
	switch {
	case g.Allowed:
		got = "yes"
	case op.Never:
		got = "never"
	default:
		got = "no " + (time.Duration(op.Retry) * time.Microsecond).String()
	}
	if got != want {
		b.Fatalf("%s %s %d of 1024ths %d at %s: %s; want %s", op.Verb, op.Key, op.Cost, op.Fraction, b.since(), got, want)
	}
}

// A process that calls at a fraction of the rate gets that fraction: at 100 a second, 50 and
// 10.
func priceRate(e *env) {
	b := newCaller(e, "a=100/1s,burst=10")
	for _, c := range []struct{ fraction, want int64 }{{512, 55}, {103, 11}, {1023, 109}} {
		key, granted := "a k"+strconv.FormatInt(c.fraction, 10)+" 1", int64(0)
		for range 400 {
			if b.priced(c.fraction, store.VerbTake, key).Allowed {
				granted++
			}
			b.advance(2500 * time.Microsecond)
		}
		if granted < c.want-1 || granted > c.want+1 {
			e.Fatalf("%d/1024: %d granted in a second; want about %d", c.fraction, granted, c.want)
		}
	}
}

// Whatever fractions processes use, together they get no more than the limit allows.
func pricePromise(e *env) {
	b := newCaller(e, "a=100/1s,burst=10")
	granted := int64(0)
	for i := range 600 / int64(e.part) {
		if cost := i%3 + 1; b.priced((i*389)%1024, store.VerbTake, "a k "+strconv.FormatInt(cost, 10)).Allowed {
			granted += cost
		}
		if most := 10 + (e.clock.Load()-epoch)/10_000; granted > most {
			e.Fatalf("%d granted at %s; at most %d", granted, b.since(), most)
		}
		b.advance(7 * time.Millisecond)
	}
}

// One call is allowed whenever the bucket is full, however low the fraction is.
func priceFull(e *env) {
	b := newCaller(e, "a=100/1s,burst=10")
	for _, cost := range []string{"a k 1", "a k 10"} {
		b.wants("yes", b.priced(1, store.VerbCheck, cost))
		b.wants("yes", b.priced(1, store.VerbTake, cost))
		b.wants("no 100ms", b.priced(1, store.VerbTake, cost))
		b.advance(100*time.Millisecond - time.Microsecond)
		b.wants("no 1µs", b.priced(1, store.VerbCheck, cost))
		b.advance(time.Microsecond)
	}
	b.wants("never", b.priced(1, store.VerbTake, "a k 11"))
	b.wants("yes", b.priced(1023, store.VerbTake, "a k 1")) // 10010 units
	if g := b.do(store.VerbCheck, "a k 0"); g.Ops[0].Used != 0 && g.Ops[0].Used != 10010 {
		e.Fatalf("%d units are used; want 10010", g.Ops[0].Used)
	}
	b.wants("no 10µs", b.do(store.VerbTake, "a k 9"))
	b.at(time.Second)
	b.wants("yes", b.priced(512, store.VerbTake, "a k 4"))
	b.wants("no 10ms", b.do(store.VerbTake, "a k 3")) // 2 tokens are left
	b.wants("yes", b.do(store.VerbTake, "a k 2"))
}

// The tokens of a floor stay free, also if the raised price of the take exceeds all others.
func priceFloor(e *env) {
	b := newCaller(e, "a=100/1s,burst=10")
	b.wants("yes", b.priced(1, store.VerbTake, "a k 1 4"))
	b.wants("no 60ms", b.priced(1, store.VerbTake, "a k 1 4"))
	b.wants("yes", b.do(store.VerbTake, "a k 4"))
	b.wants("never", b.priced(1, store.VerbTake, "a k 7 4"))
}

// Only one limit of a group is called at a fraction; the price in the other does not change.
func priceGroup(e *env) {
	if e.OneKey {
		return
	}
	b := newCaller(e, "a=100/1s,burst=10", "user=10/1s")
	for i, want := range []bool{true, true, false} {
		one, other := b.op(store.VerbTake, "a k 2"), b.op(store.VerbTake, "user k 3")
		one.Fraction = 512
		g, err := b.decide(&store.Group{Ops: []store.Op{one, other}})
		if err != nil || g.Allowed != want {
			e.Fatalf("call %d: %+v, %v; want %v", i, g, err, want)
		}
		if !want && (g.Ops[0].Retry != 20_000 || !g.Ops[1].Allowed || g.Ops[1].Remaining != 4) {
			e.Fatalf("%+v", g)
		}
	}
	b.wants("yes", b.do(store.VerbTake, "user k 4"))
}

// The fraction applies to the definition that decides: a plan's, or an override's.
func pricePlan(e *env) {
	b := newCaller(e, "a=100/1s,burst=10,plans=pro:rate=1000;burst=100")
	b.wants("yes", b.priced(256, store.VerbTake, "a:pro k 25"))
	b.wants("no 4ms", b.priced(256, store.VerbTake, "a:pro k 1"))
	if o := store.AbilitiesOf(b.store).Overrides; o != nil {
		if _, err := o.SetOverride(b.ctx, b.limits["a"], store.Override{Key: "o", Rate: 50, Burst: 20}); err != nil {
			e.Fatal(err)
		}
		b.wants("yes", b.priced(512, store.VerbTake, "a o 10"))
		b.wants("no 40ms", b.priced(512, store.VerbTake, "a o 1"))
	}
}
