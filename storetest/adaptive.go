package storetest

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// adaptiveCases test limits whose rate moves. A store without the ability Observe refuses
// to define them, and passes.
var adaptiveCases = []testCase{
	{"adaptive-steps", adaptiveSteps},
	{"adaptive-long-idle", adaptiveLongIdle},
	{"adaptive-drift", adaptiveDrift},
	{"adaptive-debt", adaptiveDebt},
	{"adaptive-giving-back", adaptiveGivingBack},
	{"adaptive-plans", adaptivePlans},
	{"adaptive-change", adaptiveChange},
	{"adaptive-group", adaptiveGroup},
	{"adaptive-bounds", adaptiveBounds},
	{"adaptive-old-row", adaptiveOldRow},
	{"adaptive-together", adaptiveTogether},
}

// adaptiveLimit is 250 a second at first, 50 at least and 500 at most.
const adaptiveLimit = "a=250/1s,burst=100,max_debt=100,adaptive=floor=50;ceiling=500;latency=200ms;errors=2%"

// adaptiveCaller returns a caller with an adaptive limit, or nil if the store refuses it.
func adaptiveCaller(e *env, limits ...string) *caller {
	e.Helper()
	if store.AbilitiesOf(e.store).Observe == nil {
		l, err := dipwell.ParseLimit(adaptiveLimit)
		if err != nil {
			e.Fatal(err)
		}
		var bad *store.FieldError
		if _, err = e.l.Define(e.ctx, l, store.OwnerCode); !errors.As(err, &bad) || bad.Field != "adaptive" {
			e.Fatalf("the store cannot observe, and does not refuse an adaptive limit: %v", err)
		}
		return nil
	}
	return newCaller(e, append([]string{adaptiveLimit}, limits...)...)
}

// observe adds what was seen of calls behind the limit a.
func (b *caller) observe(o store.Observation) {
	b.Helper()
	if err := store.AbilitiesOf(b.store).Observe(b.ctx, b.limits["a"], o); err != nil {
		b.Fatal(err)
	}
}

// Samples of a window.
var (
	slowWindow = store.Observation{Count: 1000, Slow: 900, Taken: 1000}
	goodWindow = store.Observation{Count: 1000, Taken: 1000}
)

// window ends a window of a second.
func (b *caller) window(o store.Observation) {
	b.Helper()
	b.advance(time.Second)
	b.observe(o)
}

// wants fails unless a group's only op has this answer: "yes REMAINING" or "no RETRY".
func (b *caller) wants(want string, g *store.Group) {
	b.Helper()
	op, got := &g.Ops[0], ""
	switch {
	case g.Allowed:
		got = "yes " + strconv.FormatInt(op.Remaining, 10)
	case op.Never:
		got = "never"
	default:
		got = "no " + (time.Duration(op.Retry) * time.Microsecond).String()
	}
	if got != want {
		b.Fatalf("%s %s %d at %s: %s; want %s", op.Verb, op.Key, op.Cost, b.since(), got, want)
	}
}

// A rate of 250 falls to 409/1024 of 500, and later rises to 429/1024: each µs counts at
// the rate that was in force then.
func adaptiveSteps(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.observe(store.Observation{})
	b.wants("yes 0", b.do(store.VerbTake, "a early 100"))
	b.wants("no 4ms", b.do(store.VerbTake, "a early 1"))
	b.at(900 * time.Millisecond)
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 400ms", b.do(store.VerbTake, "a k 100"))
	b.at(0)
	b.window(slowWindow) // at 1 s
	b.wants("no 375.551ms", b.do(store.VerbTake, "a k 100"))
	b.at(1100 * time.Millisecond)
	b.wants("no 147µs", b.do(store.VerbTake, "a k 45")) // 44.97 are there
	b.at(1100*time.Millisecond + 146*time.Microsecond)
	b.wants("no 1µs", b.do(store.VerbTake, "a k 45"))
	b.at(1100*time.Millisecond + 147*time.Microsecond)
	b.wants("yes 0", b.do(store.VerbTake, "a k 45"))
	b.at(time.Second)
	b.window(goodWindow) // at 2 s: the call above is at 1.100147 s
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.at(2250 * time.Millisecond)
	b.wants("yes 52", b.do(store.VerbCheck, "a k 0")) // 0.25 s at 209.47 a second
	b.at(1900 * time.Millisecond)
	b.wants("yes 0", b.do(store.VerbTake, "a half 100"))
	b.at(2100 * time.Millisecond)
	b.wants("yes 40", b.do(store.VerbCheck, "a half 0")) // 19.97 and 20.95
	b.wants("yes 0", b.do(store.VerbTakeUpTo, "a half 99"))
	b.wants("never", b.do(store.VerbTake, "a half 101"))
}

// A key that was idle while the rate changed many times gets what each rate gave.
func adaptiveLongIdle(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.define("a=250/1s,burst=10000,adaptive=floor=50;ceiling=500;latency=200ms")
	b.observe(store.Observation{})
	b.wants("yes 0", b.do(store.VerbTake, "a k 10000"))
	level, units := int64(512), int64(0)
	for i := range 30 {
		units += level * 1e6
		if i%10 == 9 {
			b.window(slowWindow)
			level = level * 4 / 5
		} else {
			b.window(goodWindow)
			level = min(level+20, 1024)
		}
	}
	b.sweep()
	b.wants("yes "+strconv.FormatInt(units/2_048_000, 10), b.do(store.VerbCheck, "a k 0"))
}

// Without observations the rate moves back to what the limit says, from the tenth second
// on, and retry times know.
func adaptiveDrift(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.observe(store.Observation{})
	b.window(slowWindow) // 409 at 1 s; 429 from 11 s, 449 from 12 s, … 509, 512 from 16 s on
	b.at(10900 * time.Millisecond)
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 482.052ms", b.do(store.VerbTake, "a k 100")) // 0.1 s at 409, the rest at 429
	b.at(11382052 * time.Microsecond)
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.at(20 * time.Second)
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 4ms", b.do(store.VerbTake, "a k 1"))
}

// A reservation falls due by the rates that are known.
func adaptiveDebt(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.observe(store.Observation{})
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	if g := b.do(store.VerbReserve, "a k 50"); !g.Allowed || g.Ops[0].Delay != 200_000 {
		e.Fatalf("%+v", g.Ops[0])
	}
	if g := b.do(store.VerbReserve, "a k 60"); g.Allowed || g.Ops[0].Retry != 40_000 {
		e.Fatalf("%+v", g.Ops[0])
	}
	bounded := func(most time.Duration, cost int64) *store.Op {
		op := b.op(store.VerbReserve, "a k "+strconv.FormatInt(cost, 10))
		op.Bounded, op.MaxDelay = true, most.Microseconds()
		g, err := b.decide(&store.Group{Ops: []store.Op{op}, ID: store.Reservation{9}})
		if err != nil {
			e.Fatal(err)
		}
		return &g.Ops[0]
	}
	if op := bounded(100*time.Millisecond, 1); op.Allowed || op.Never || op.Retry != 104_000 {
		e.Fatalf("%+v", op)
	}
	if op := bounded(100*time.Millisecond, 160); op.Allowed || !op.Never { // 60 more than a burst take 120 ms at the ceiling
		e.Fatalf("%+v", op)
	}
	b.window(slowWindow)
	b.wants("yes 99", b.do(store.VerbTake, "a k 1"))
}

// What a hold gives back is counted in units, whatever the rate was.
func adaptiveGivingBack(e *env) {
	b := adaptiveCaller(e)
	if b == nil || store.AbilitiesOf(e.store).Holds == nil {
		return
	}
	b.observe(store.Observation{})
	g, err := b.tryHold("h", time.Minute.Microseconds(), "a k 100")
	if err != nil || !g.Allowed {
		e.Fatalf("%+v, %v", g, err)
	}
	b.window(slowWindow)                              // all 100 came back at 0.4 s
	b.wants("yes 0", b.do(store.VerbTake, "a k 100")) // and are taken again
	if _, err = b.trySettle("h", 0); err != nil {
		e.Fatal(err)
	}
	b.wants("no 5.008ms", b.do(store.VerbTake, "a k 1")) // nothing was left to give back
}

// Plans of an adaptive limit have rates of their own.
func adaptivePlans(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.define(strings.Replace(adaptiveLimit, ",adaptive", ",plans=pro:rate=1000|same:mode=enforce,adaptive", 1))
	b.observe(store.Observation{})
	b.window(slowWindow)
	b.wants("yes 0", b.do(store.VerbTake, "a:pro p 100"))
	b.wants("no 1ms", b.do(store.VerbTake, "a:pro p 1"))
	b.wants("yes 0", b.do(store.VerbTake, "a:same s 100"))
	b.wants("no 4ms", b.do(store.VerbTake, "a:same s 1"))
	b.wants("no 4ms", b.do(store.VerbTake, "a s 1")) // the row is under the plan until then
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 5.008ms", b.do(store.VerbTake, "a k 1"))
	b.wants("no 5.008ms", b.do(store.VerbTake, "a:pro k 1"))
}

// A change of the target goes on with the rate as it is, and is no version; another
// ceiling is one, and begins at the rate of the limit.
func adaptiveChange(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.observe(store.Observation{})
	b.window(slowWindow)
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	was := b.limits["a"].Number
	b.define(strings.Replace(adaptiveLimit, "latency=200ms", "latency=300ms", 1))
	if n := b.limits["a"].Number; n != was {
		e.Fatalf("version %d after a change of the latency", n)
	}
	b.wants("no 5.008ms", b.do(store.VerbTake, "a k 1"))
	b.advance(100 * time.Millisecond)
	b.define(strings.Replace(adaptiveLimit, "ceiling=500", "ceiling=1000", 1))
	if n := b.limits["a"].Number; n != was+1 {
		e.Fatalf("version %d after a change of the ceiling", n)
	}
	b.advance(100 * time.Millisecond)
	b.wants("yes 44", b.do(store.VerbCheck, "a k 0")) // 19.97 and 25
	b.define("a=250/1s,burst=100,max_debt=100")
	b.advance(100 * time.Millisecond)
	b.wants("yes 69", b.do(store.VerbCheck, "a k 0"))
	b.wants("no 120.118ms", b.do(store.VerbTake, "a k 100"))
	b.define(adaptiveLimit)
	was = b.limits["a"].Number
	b.define(strings.Replace(adaptiveLimit, "250", "400", 1))
	if rate, _, _ := b.limits["a"].CurrentRate(b.clock.Load()); rate != 399 || b.limits["a"].Number != was+1 {
		e.Fatalf("version %d has %d after a change of the rate to 400", b.limits["a"].Number, rate)
	}
}

// An adaptive limit beside others in a group.
func adaptiveGroup(e *env) {
	b := adaptiveCaller(e, "user=10/1s")
	if b == nil || e.OneKey {
		return
	}
	b.observe(store.Observation{})
	b.window(slowWindow)
	if g := b.do(store.VerbTake, "a k 100", "user k 10"); !g.Allowed {
		e.Fatalf("%+v", g)
	}
	g := b.do(store.VerbTake, "a k 1", "user k 1")
	if g.Allowed || g.Ops[0].Retry != 5008 || g.Ops[1].Retry != 100_000 {
		e.Fatalf("%+v", g)
	}
	b.advance(50 * time.Millisecond)
	if g = b.do(store.VerbTake, "a k 1", "user k 1"); g.Allowed || !g.Ops[0].Allowed || g.Ops[0].Remaining != 9 || g.Ops[1].Retry != 50_000 {
		e.Fatalf("%+v", g)
	}
}

// However bad it gets the rate is the floor, and however good the ceiling.
func adaptiveBounds(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.observe(store.Observation{})
	for range 25 {
		b.window(slowWindow)
	}
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 19.884ms", b.do(store.VerbTake, "a k 1")) // 103/1024 of 500, not less than 50
	for range 50 {
		b.window(goodWindow)
	}
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 2ms", b.do(store.VerbTake, "a k 1"))
	b.window(store.Observation{Count: 1000, Failed: 30, Taken: 1000}) // within chance of 2 %
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 2ms", b.do(store.VerbTake, "a k 1"))
}

// What a row has got back is counted at the floor for the time before the oldest change
// that is kept, which is as long ago as a bucket needs to fill at the floor.
func adaptiveOldRow(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.define("a=250/1s,burst=100,max_debt=100,max_charge=5000,adaptive=floor=50;ceiling=500;latency=200ms;errors=2%")
	b.observe(store.Observation{})
	b.do(store.VerbCharge, "a k 5000")
	for range 10 {
		b.window(goodWindow) // 532 from 1 s, 552 from 2 s, … 712 from 10 s
	}
	// 103/1024 of 500 come back until 6 s: the last 3.98 s are kept, and the change before.
	b.wants("no 9.794944s", b.do(store.VerbTake, "a k 100"))
}

// Of several that find a window over at the same time, one ends it.
func adaptiveTogether(e *env) {
	b := adaptiveCaller(e)
	if b == nil {
		return
	}
	b.observe(store.Observation{})
	b.advance(time.Second)
	observe := store.AbilitiesOf(b.store).Observe
	errs := make(chan error)
	const callers = 8
	for range callers {
		go func() { errs <- observe(b.ctx, b.limits["a"], slowWindow) }()
	}
	for range callers {
		if err := <-errs; err != nil {
			e.Error(err)
		}
	}
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 5.008ms", b.do(store.VerbTake, "a k 1")) // 409/1024 of 500
	b.window(slowWindow)                                 // their samples are in this window, which may not cut again
	b.wants("yes 0", b.do(store.VerbTake, "a k 100"))
	b.wants("no 5.008ms", b.do(store.VerbTake, "a k 1"))
}
