package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// onPlans opens a store for a case and defines some limits that have plans.
func onPlans(f func(b *caller)) func(*env) {
	return func(e *env) {
		f(newCaller(e, "a=1/1s,burst=10,max_debt=20,plans=pro:rate=5;burst=50|free:mode=unlimited|banned:mode=blocked|seen:mode=shadow",
			"w=3/10s,algorithm=fixed_window,start=0s,burst=6,plans=pro:rate=10;burst=20"))
	}
}

// planCases test ops whose Def is a plan, and ops with floors.
var planCases = []testCase{
	{"plan", onPlans(func(b *caller) {
		if op := b.take("a:pro k 50", true); op.Def.Plan != "pro" || op.Remaining != 0 || op.Reset != 10*second {
			b.Errorf("%s: %+v", op.Def.Plan, op.Answer)
		}
		b.retry("a:pro k 7", 1400*time.Millisecond)
		b.free("a:pro l", 50)
		b.free("a l", 10)
	})},
	// The row is stepped under its own definition up to the call, and then converted:
	// 50 used tokens of plan pro are 9 of it after 8.2 s. The burst of a leased limit
	// is smaller by what comes back in a lease and two thousandths: 26 at 100/s, 51
	// at 200/s. That also applies to its plans and overrides.
	{"plan-leased", func(e *env) {
		b := newCaller(e, "l=100/1s,lease=250ms,max_debt=0,plans=pro:rate=200;burst=400")
		b.free("l k", 74)
		if op := b.take("l k 75", false); !op.Never {
			b.Errorf("more than the carved burst: %+v", op.Answer)
		}
		b.take("l k 74", true)
		b.retry("l k 74", 740*time.Millisecond)
		b.free("l:pro p", 349)
		b.take("l:pro p 349", true)
		b.wait(time.Second)
		b.free("l:pro p", 200)
		b.take("l c 74", true)
		b.define("l=100/1s,burst=200,lease=250ms,max_debt=0")
		b.free("l c", 100)
	}},
	{"plan-retry", onPlans(func(b *caller) {
		b.take("a:pro k 50", true)
		if op := b.take("a k 1", false); !op.Bound || op.Retry != 41*second || op.Reset != 50*second {
			b.Errorf("refused by the base on a row of pro: %+v", op.Answer)
		}
		b.wait(8200*time.Millisecond - time.Microsecond) // the row stays under the plan pro
		b.take("a k 1", false)
		b.wait(time.Microsecond)
		b.take("a k 1", true)
		b.retry("a k 1", time.Second) // the row is now under the base
	})},
	// A refusal moves the row to a plan that refills faster, so that its retry and reset
	// are exact.
	{"plan-refusal-moves", onPlans(func(b *caller) {
		b.take("a k 10", true)
		if op := b.do(store.VerbCheck, "a:pro k 41").Ops[0]; op.Retry != 200e3 || op.Bound {
			b.Errorf("check: %+v", op.Answer)
		}
		if op := b.take("a k 1", false); op.Bound { // a check moves no row
			b.Errorf("after the check: %+v", op.Answer)
		}
		if op := b.take("a:pro k 41", false); op.Retry != 200e3 || op.Reset != 2*second || op.Bound {
			b.Errorf("refused: %+v", op.Answer)
		}
		if op := b.take("a k 1", false); !op.Bound || op.Retry != second {
			b.Errorf("by the base, after it: %+v", op.Answer)
		}
		b.retry("a:pro k 41", 200*time.Millisecond)
		b.take("a l 10", true)
		if g := b.do(store.VerbTake, "a:pro l 41", "w l 1"); g.Allowed {
			b.Errorf("a group: %+v", g.Ops)
		}
		b.free("w l", 6)
		b.retry("a:pro l 41", 200*time.Millisecond)
		b.define("d=100/1d,max_debt=0,plans=pro:rate=100000")
		b.take("d k 100", true)
		b.retry("d:pro k 99901", 864*time.Millisecond)
	})},
	// A call of cost 0 is a check, and does not move the row to another plan.
	{"plan-refusal-of-nothing", func(e *env) {
		b := newCaller(e, "a=1/1s,burst=10,max_debt=0,plans=pro:rate=10")
		for i, verb := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve} {
			key := fmt.Sprint("k", i)
			b.take("a "+key+" 9", true)
			b.do(store.VerbCharge, "a "+key+" 2")
			for _, left := range []int64{1e6, 1} { // the row stays under the base
				if op := b.do(verb, "a:pro "+key+" 0").Ops[0]; op.Allowed || op.Retry != left || op.Bound {
					b.Errorf("%s of nothing in debt: %+v; want a retry after %d µs", verb, op.Answer, left)
				}
				b.wait(time.Duration(max(left-1, 1)) * time.Microsecond)
			}
			if op := b.do(verb, "a:pro "+key+" 0").Ops[0]; !op.Allowed {
				b.Errorf("%s of nothing at its retry: %+v", verb, op.Answer)
			}
			b.free("a "+key, 0)
		}
	}},
	// A caller who is refused by a slower plan slows nobody.
	{"plan-refusals-slow-nobody", onPlans(func(b *caller) {
		b.take("a:pro k 50", true)
		granted := int64(0)
		for i := range 1000 {
			b.wait(20 * time.Millisecond)
			b.take("a k 10", false)
			if i%10 == 9 {
				granted += b.do(store.VerbTakeUpTo, "a:pro k 1").Ops[0].Granted
			}
		}
		if granted != 100 {
			b.Errorf("%d granted in 20 s; want 100", granted)
		}
	})},
	// Whatever plans callers name, no more is granted than the largest capacity and the
	// largest rate allow.
	{"plan-alternates", onPlans(func(b *caller) {
		var granted int64
		for i := range 400 {
			call := "a k 3"
			if i%2 == 0 {
				call = "a:pro k 3"
			}
			granted += b.do(store.VerbTake, call).Ops[0].Granted
			b.wait(25 * time.Millisecond)
		}
		if most := int64(50 + 5*10); granted > most || granted < most-10 {
			b.Errorf("%d granted in 10 s; want nearly %d", granted, most)
		}
	})},
	{"plan-window", onPlans(func(b *caller) {
		b.take("w:pro k 20", true)
		if op := b.take("w k 1", false); !op.Bound || op.Retry != 50*second {
			b.Errorf("by the base: %+v", op.Answer)
		}
		b.wait(20 * time.Second) // 20 tokens are used, and 10 come back at each boundary
		b.take("w k 1", true)
		b.wait(10 * time.Second)
		b.free("w k", 6)
	})},
	{"plan-unlimited", onPlans(func(b *caller) {
		b.take("a k 4", true)
		for _, v := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve} {
			if op := b.do(v, "a:free k 100").Ops[0]; !op.Allowed || op.Granted != 100 || op.Remaining != store.MaxInt || op.Delay != 0 || op.Def.Mode != store.Unlimited {
				b.Errorf("%s: %+v", v, op.Answer)
			}
		}
		if op := b.do(store.VerbCheck, "a:free k 100").Ops[0]; !op.Allowed || op.Granted != 0 || op.Remaining != store.MaxInt {
			b.Errorf("check: %+v", op.Answer)
		}
		b.wait(time.Second)
		b.free("a k", 7) // the row refills by the base
		if op := b.do(store.VerbReset, "a:free k 1").Ops[0]; !op.Allowed || op.Remaining != store.MaxInt {
			b.Errorf("reset: %+v", op.Answer)
		}
		b.free("a k", 10)
	})},
	{"plan-blocked", onPlans(func(b *caller) {
		b.take("a k 4", true)
		for _, v := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve} {
			if op := b.do(v, "a:banned k 1").Ops[0]; op.Allowed || !op.Never || op.Retry != 0 || op.Granted != 0 {
				b.Errorf("%s: %+v", v, op.Answer)
			}
		}
		b.free("a k", 6)
	})},
	{"plan-shadow", onPlans(func(b *caller) {
		b.take("a:seen k 8", true)
		if op := b.take("a:seen k 8", true); !op.Shadow || op.Granted != 0 || op.Retry != 6*second {
			b.Errorf("%+v", op.Answer)
		}
	})},
	{"plan-charge", onPlans(func(b *caller) { // Charge leaves the row under the row's own definition
		b.take("a:pro k 50", true)
		b.do(store.VerbCharge, "a k 5")
		b.wait(time.Second)
		b.free("a:pro k", 0)
		b.wait(time.Second)
		b.free("a:pro k", 5)
	})},
	{"plan-refund", func(e *env) { // Refund too
		b := newCaller(e, "d=100/1d,max_debt=0,plans=pro:rate=100000")
		b.take("d:pro k 100000", true)
		b.do(store.VerbRefund, "d k 1")
		b.wait(20 * time.Second)
		b.free("d:pro k", 24)
		b.wait(8*time.Hour - 20*time.Second)
		b.free("d:pro k", 33334)
	}},
	// A full row equals a missing row: it makes no difference whether a sweep deleted it.
	{"plan-charge-full", onPlans(func(b *caller) {
		for _, key := range []string{"k", "l"} {
			b.at(0)
			b.take("a:pro "+key+" 10", true)
			b.wait(3 * time.Second)
			if key == "l" {
				b.sweep()
			}
			b.do(store.VerbCharge, "a "+key+" 8")
			b.wait(2 * time.Second)
			b.free("a "+key, 4)
		}
	})},
	{"plan-reserve", onPlans(func(b *caller) {
		b.take("a k 10", true)
		g := b.do(store.VerbReserve, "a:pro k 50")
		if g.Ops[0].Delay != 2*second || !g.Reserved {
			b.Errorf("%+v", g.Ops[0].Answer)
		}
		if _, err := b.decide(&store.Group{ID: g.ID, Cancel: true}); err != nil {
			b.Error(err)
		}
		b.free("a:pro k", 40)
	})},
	// The row stays under its own definition until the reservation is made.
	{"plan-reserve-bounded", onPlans(func(b *caller) {
		for key, verb := range map[string]store.Verb{"k": store.VerbCharge, "reserved": store.VerbReserve} {
			b.take("a "+key+" 10", true)
			b.do(verb, "a "+key+" 5")
			b.retryWithin("a:pro "+key+" 60", 3*time.Second, 2*time.Second) // 5 used
		}
	})},
	{"plan-group", onPlans(func(b *caller) {
		if g := b.do(store.VerbTake, "a:pro k 50", "w k 7"); g.Allowed || !g.Ops[1].Never || g.Ops[0].Granted != 0 {
			b.Errorf("%+v", g.Ops)
		}
		b.do(store.VerbTake, "a:pro k 50", "w k 6", "a:free l 9")
		b.free("a:pro k", 0)
		b.free("w k", 0)
		b.free("a l", 10)
	})},
	{"plan-change", onPlans(func(b *caller) { // a new version of the base and its plan
		b.take("a:pro k 50", true)
		b.wait(time.Second)
		b.define("a=1/1s,burst=10,plans=pro:rate=10;burst=100")
		b.wait(time.Second)
		b.free("a:pro k", 65)
		b.define("a=1/1s,burst=10") // without plans
		b.wait(3 * time.Second)
		b.free("a k", 0)
		b.wait(24 * time.Second)
		b.free("a k", 2)
	})},

	{"floor", onPlans(func(b *caller) {
		if op := b.take("a k 4 7", false); op.Retry != 0 || !op.Never {
			b.Errorf("n + floor > burst: %+v", op.Answer)
		}
		b.take("a k 4 6", true)
		b.take("a k 1 6", false)
		b.retry("a k 1 6", time.Second)
		b.take("a k 5 0", true)
	})},
	{"floor-check", onPlans(func(b *caller) {
		b.take("a k 4", true)
		if op := b.do(store.VerbCheck, "a k 2 5").Ops[0]; op.Allowed || op.Retry != second || op.Remaining != 6 {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.do(store.VerbCheck, "a k 2 4").Ops[0]; !op.Allowed || op.Granted != 0 {
			b.Errorf("%+v", op.Answer)
		}
	})},
	{"floor-group", onPlans(func(b *caller) {
		b.take("a k 5", true)
		if g := b.do(store.VerbTake, "a k 1 5", "w k 1"); g.Allowed || g.Ops[0].Retry != second || !g.Ops[1].Allowed {
			b.Errorf("%+v", g.Ops)
		}
		b.free("w k", 6)
	})},
}

// overrideCases test temporary and standing overrides of keys.
var overrideCases = []testCase{
	{"override-clock-back", overrideClockBack},
	// A key is raised until a time: what is granted before and after is exact, to the µs.
	{"override-until", onPlans(func(b *caller) {
		b.take("a k 10", true)
		b.wait(500 * time.Millisecond)
		until := b.clock.Load() + 4*second
		set := b.override("a", store.Override{Key: "k", Plan: "pro", Until: until, Note: "ticket 81"})
		if set.ID == 0 || set.Version != b.limits["a"].Number || set.Until != until || set.Plan != "pro" {
			b.Errorf("%+v", set)
		}
		if op := b.take("a k 40", true); op.Def.Plan != "pro" || op.Def.Rule.Burst != 50 { // 9.5 tokens were used before
			b.Errorf("%s %+v", op.Def.Plan, op.Answer)
		}
		b.take("a k 1", false) // 49.5 used
		b.retry("a k 1", 100*time.Millisecond)
		b.wait(3899999 * time.Microsecond) // 50 tokens used less 5 a second: 30.5 at the override's end
		if op := b.do(store.VerbCheck, "a k 0").Ops[0]; op.Def.Plan != "pro" || op.Remaining != 19 {
			b.Errorf("%s %+v", op.Def.Plan, op.Answer)
		}
		b.wait(time.Microsecond)
		if op := b.do(store.VerbCheck, "a k 0").Ops[0]; op.Def.Plan != "" || op.Remaining != 0 || op.Reset != 30500000 {
			b.Errorf("%s %+v", op.Def.Plan, op.Answer)
		}
		b.retry("a k 2", 22500*time.Millisecond)
	})},
	// The retry is at most the end of the override, and exactly that if the call would
	// never fit under the override, but does without it.
	{"override-retry-at-most-its-end", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Burst: 4, Until: b.clock.Load() + 3*second})
		b.take("a k 4", true)
		for cost, want := range map[int64]int64{2: 2 * second, 4: 3 * second, 10: 3 * second, 11: 0} {
			op := b.do(store.VerbCheck, fmt.Sprint("a k ", cost)).Ops[0]
			if op.Allowed || op.Retry != want || op.Never != (want == 0) || op.Bound != (want > 0) || op.Reset != 4*second {
				b.Errorf("cost %d: %+v", cost, op.Answer)
			}
		}
		if op := b.do(store.VerbCheck, "a:free k 11").Ops[0]; op.Never || op.Retry != 3*second {
			b.Errorf("%+v", op.Answer)
		}
	})},
	{"override-numbers", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Rate: 2, Burst: 4})
		if op := b.take("a k 4", true); op.Remaining != 0 {
			b.Errorf("%+v", op.Answer)
		}
		b.retry("a k 1", 500*time.Millisecond)
		b.free("a l", 10)
	})},
	{"override-above-plan", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Burst: 4})
		if op := b.take("a:pro k 5", false); !op.Never {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.take("a:free k 4", true); op.Remaining != 0 {
			b.Errorf("%+v", op.Answer)
		}
	})},
	{"override-of-a-new-key", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Plan: "banned"})
		b.take("a k 1", false)
		b.override("a", store.Override{Key: "", Plan: "pro"})
		if op := b.do(store.VerbTake, "w k 1").Ops[0]; !op.Allowed {
			b.Errorf("another limit: %+v", op.Answer)
		}
	})},
	{"override-blocked", onPlans(func(b *caller) {
		b.take("a k 4", true)
		b.override("a", store.Override{Key: "k", Plan: "banned", Until: b.clock.Load() + 3*second})
		if op := b.take("a k 1", false); op.Never || op.Retry != 3*second {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.take("a k 10", false); op.Retry != 4*second { // 4 s for 4 tokens to come back
			b.Errorf("%+v", op.Answer)
		}
		if op := b.do(store.VerbCharge, "a k 2").Ops[0]; !op.Allowed || op.Remaining != 4 {
			b.Errorf("charge: %+v", op.Answer)
		}
		if op := b.do(store.VerbRefund, "a k 1").Ops[0]; !op.Allowed {
			b.Errorf("refund: %+v", op.Answer)
		}
		b.wait(3 * time.Second)
		b.free("a k", 8)
	})},
	// In shadow mode the retry is what enforcing would answer, at most the end of the
	// override. A blocked call by a plan that would move the row, refused once more at the
	// end of the block, is told that end: also a check, which moves no row.
	{"override-blocked-check", onPlans(func(b *caller) {
		b.take("a k 10", true)
		b.override("a", store.Override{Key: "k", Plan: "banned", Until: b.clock.Load() + 5*second})
		for _, verb := range []store.Verb{store.VerbCheck, store.VerbTake} {
			if op := b.do(verb, "a:pro k 50").Ops[0]; op.Allowed || op.Never || op.Retry != 5*second || !op.Bound {
				b.Errorf("%s: %+v", verb, op.Answer)
			}
		}
	})},
	{"override-shadow", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Plan: "seen", Until: b.clock.Load() + 5*second})
		if op := b.take("a:seen k 11", true); !op.Shadow || !op.Never || op.Retry != 0 {
			b.Errorf("more than both hold: %+v", op.Answer)
		}
		if op := b.take("a:pro k 11", true); !op.Shadow || op.Never || op.Retry != 5*second {
			b.Errorf("more than the override holds: %+v", op.Answer)
		}
		b.take("a:seen k 8", true)
		if op := b.take("a:seen k 8", true); !op.Shadow || op.Never || op.Retry != 5*second || !op.Bound {
			b.Errorf("%+v", op.Answer)
		}
	})},
	{"override-unlimited", onPlans(func(b *caller) {
		b.take("a k 10", true)
		b.override("a", store.Override{Key: "k", Plan: "free"})
		if op := b.take("a k 1000", true); op.Remaining != store.MaxInt {
			b.Errorf("%+v", op.Answer)
		}
		b.wait(3 * time.Second)
		b.endOverride("a", "k")
		b.free("a k", 3)
	})},
	// The largest possible charge is that of the base, of a plan or of the key's override,
	// whichever allows most.
	{"override-charge", onPlans(func(b *caller) {
		charge := func(limit, key string, n, largest int64) {
			b.Helper()
			d, err := b.l.Charge(b.ctx, limit, key, n)
			var f *store.FieldError
			switch text := fmt.Sprint("charge be, ", largest); {
			case n <= largest && (err != nil || !d.Allowed || d.Granted != n):
				b.Errorf("charge %s %s %d: %+v, %v", limit, key, n, d, err)
			case n > largest && (!errors.As(err, &f) || f.Field != "cost" || !strings.HasSuffix(f.Reason, text)):
				b.Errorf("charge %s %s %d: %+v, %v; want %s", limit, key, n, d, err, text)
			}
		}
		until := b.clock.Load() + 100*second
		b.override("a", store.Override{Key: "less", Burst: 4})
		b.override("a", store.Override{Key: "later", Burst: 4, Until: until})
		b.override("a", store.Override{Key: "more", Burst: 70})
		b.override("a", store.Override{Key: "any", Plan: "free", Until: until})
		b.override("a", store.Override{Key: "none", Plan: "banned"})
		b.override("a", store.Override{Key: "seen", Plan: "seen"}) // shadow mode affects takes only
		b.take("a:pro row 10", true)
		b.take("a:seen shadow 10", true)
		for key, largest := range map[string]int64{"less": 500, "later": 500, "more": 700, "none": 500, "row": 500, "base": 500, "seen": 500, "shadow": 500} {
			before := b.do(store.VerbCheck, "a "+key+" 0").Ops[0].Reset
			charge("a", key, largest+1, largest)
			if op := b.do(store.VerbCharge, fmt.Sprint("a ", key, " ", largest+1)).Ops[0]; op.Allowed || !op.Never || op.Retry != 0 || op.Granted != 0 {
				b.Errorf("%s: %+v", key, op.Answer)
			}
			if after := b.do(store.VerbCheck, "a "+key+" 0").Ops[0].Reset; after != before {
				b.Errorf("%s: full after %d µs, and %d before the charge that is too large", key, after, before)
			}
			charge("a", key, largest, largest)
		}
		charge("a", "any", 1e6, 1e6)
		b.wait(100 * time.Second)
		charge("a", "later", 501, 500)
		charge("a", "any", 501, 500)
		charge("a", "any", 500, 500)

		b.define("top=1/1s,burst=10,parts=1")
		b.define("sub=1/1s,burst=15,max_charge=300,parent=top")
		b.override("top", store.Override{Key: "x", Burst: 20})
		if _, err := b.l.Charge(b.ctx, "sub", "x/k", 201); err == nil || !strings.HasSuffix(err.Error(), "limit top lets a charge be, 200") {
			b.Errorf("charge of a parent: %v", err)
		}
		b.free("sub x/k", 15)
		charge("sub", "x/k", 200, 200)
		charge("sub", "y/k", 100, 100)
		charge("sub", "y/k", 101, 100)

		b.define("dry=1/1s,burst=10,mode=shadow")
		b.take("dry used 10", true)
		for _, key := range []string{"used", "new"} {
			before := b.do(store.VerbCheck, "dry "+key+" 0").Ops[0].Reset
			charge("dry", key, 101, 100)
			if op := b.do(store.VerbCharge, "dry "+key+" 101").Ops[0]; op.Allowed || op.Shadow || !op.Never || op.Granted != 0 || op.Reset != before {
				b.Errorf("%s in shadow mode: %+v", key, op.Answer)
			}
			charge("dry", key, 100, 100)
		}
	})},
	// The answer to a hold names what decided it, as the answer to a take does.
	{"override-hold", onPlans(func(b *caller) {
		want := func(what, plan string, capacity, remaining int64, call func() (dipwell.Decision, error)) {
			b.Helper()
			if d, err := call(); err != nil || !d.Allowed || d.Plan != plan || d.Capacity != capacity || d.Remaining != remaining {
				b.Errorf("%s: %+v, %v; want plan %q with a capacity of %d and %d remaining", what, d, err, plan, capacity, remaining)
			}
		}
		made := map[string]string{} // by key
		hold := func(key string, n int64) func() (dipwell.Decision, error) {
			return func() (dipwell.Decision, error) {
				d, err := b.l.Hold(b.ctx, 30*time.Second, key, dipwell.Take{Limit: "a", Key: key, Cost: n})
				made[key] = d.Hold
				return d, err
			}
		}
		settle := func(key string, n int64) func() (dipwell.Decision, error) {
			return func() (dipwell.Decision, error) { return b.l.Settle(b.ctx, made[key], n) }
		}
		b.override("a", store.Override{Key: "plan", Plan: "pro"})
		b.override("a", store.Override{Key: "numbers", Burst: 20})
		b.override("a", store.Override{Key: "any", Plan: "free"})
		want("hold under a plan", "pro", 50, 20, hold("plan", 30))
		want("the same again", "pro", 50, 20, hold("plan", 30))
		want("hold under numbers", "", 20, 5, hold("numbers", 15))
		want("hold under unlimited", "free", store.MaxInt, store.MaxInt, hold("any", 1000))
		want("hold beside them", "", 10, 3, hold("base", 7))
		want("settle to less", "pro", 50, 40, settle("plan", 10))
		want("settled again", "pro", 50, 40, settle("plan", 10))
		want("settle to more", "", 20, 2, settle("numbers", 18))
		want("settle under unlimited", "free", store.MaxInt, store.MaxInt, settle("any", 10))
		want("settle beside them", "", 10, 4, settle("base", 6))
		if d, err := b.l.Hold(b.ctx, 30*time.Second, "more", dipwell.Take{Limit: "a", Key: "plan", Cost: 41}); err != nil || d.Allowed || d.Plan != "pro" || d.Capacity != 50 {
			b.Errorf("refused: %+v, %v", d, err)
		}
	})},
	{"override-ended", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Plan: "pro"})
		b.take("a k 50", true)
		b.wait(2 * time.Second)
		if !b.endOverride("a", "k") || b.endOverride("a", "k") {
			b.Error("ended twice, or never")
		}
		b.retry("a k 1", 31*time.Second)
	})},
	{"override-replaced", onPlans(func(b *caller) {
		first := b.override("a", store.Override{Key: "k", Plan: "pro"})
		b.take("a k 50", true)
		b.wait(2 * time.Second)
		if second := b.override("a", store.Override{Key: "k", Rate: 10, Burst: 20}); second.ID == first.ID {
			b.Errorf("%+v, %+v", first, second)
		}
		b.retry("a k 5", 2500*time.Millisecond) // 40 tokens are used; a call of 5 needs at most 15 in use
	})},
	// A temporary override lies over the standing one, which decides again at its end.
	{"override-layers", onPlans(func(b *caller) {
		standing := b.override("a", store.Override{Key: "k", Plan: "pro", Note: "contract"})
		b.take("a k 40", true)
		until := b.clock.Load() + 4*second
		raise := b.override("a", store.Override{Key: "k", Burst: 100, Until: until})
		if under := raise.Under; under == nil || under.Plan != "pro" || under.Note != "contract" || raise.Replaced != nil || raise.ID == standing.ID {
			b.Errorf("the temporary one: %+v", raise)
		}
		b.free("a k", 60) // the rate is that of the plan pro
		b.wait(2 * time.Second)
		b.free("a k", 70)
		if again := b.override("a", store.Override{Key: "k", Burst: 80, Until: until}); again.Replaced == nil || again.Replaced.Burst != 100 || again.Under == nil {
			b.Errorf("another temporary one: %+v", again)
		}
		b.free("a k", 50)
		list, err := b.overrides().Overrides(b.ctx, b.limits["a"], "", "", 10)
		if err != nil || len(list) != 1 || list[0].Burst != 80 || list[0].Under == nil || list[0].Under.Plan != "pro" {
			b.Errorf("%+v, %v", list, err)
		}
		if op := b.take("a k 61", false); op.Never || op.Retry != 2*second || !op.Bound {
			b.Errorf("until the end: %+v", op.Answer)
		}
		b.wait(2 * time.Second)
		b.free("a k", 30) // of 50 tokens 20 are used
		if op := b.take("a:free k 30", true); op.Def.Plan != "pro" || op.Remaining != 0 {
			b.Errorf("at the end: %+v by %q", op.Answer, op.Def.Plan)
		}
		if list, err = b.overrides().Overrides(b.ctx, b.limits["a"], "", "", 10); err != nil || len(list) != 1 || list[0].Plan != "pro" || list[0].Under != nil {
			b.Errorf("%+v, %v", list, err)
		}
		b.retry("a k 5", time.Second)
	})},
	// Each change of an override converts the row, also a change of one that lies below
	// another.
	{"override-layers-changed", onPlans(func(b *caller) {
		until := b.clock.Load() + 100*second
		b.override("a", store.Override{Key: "k", Burst: 30, Until: until})
		b.take("a k 30", true)
		b.override("a", store.Override{Key: "k", Rate: 10})
		b.wait(time.Second)
		b.free("a k", 10) // a burst of 30 over a rate of 10
		if other := b.override("a", store.Override{Key: "k", Plan: "pro"}); other.Replaced == nil || other.Replaced.Rate != 10 {
			b.Errorf("%+v", other)
		}
		b.wait(time.Second)
		b.free("a k", 15)
		if ended := b.endKind("a", "k", store.StandingOverride); ended == nil || ended.Plan != "pro" {
			b.Errorf("ended %+v", ended)
		}
		if ended := b.endKind("a", "k", store.StandingOverride); ended != nil {
			b.Errorf("ended %+v", ended)
		}
		b.wait(time.Second)
		b.free("a k", 16)
		b.override("a", store.Override{Key: "k", Plan: "banned"})
		if op := b.take("a k 1", false); !op.Never { // an override's numbers do not change the mode
			b.Errorf("blocked below: %+v", op.Answer)
		}
		if ended := b.endKind("a", "k", store.AnyOverride); ended == nil || ended.Burst != 30 || ended.Under == nil {
			b.Errorf("ended %+v", ended)
		}
		b.take("a k 1", false)
		if ended := b.endKind("a", "k", store.AnyOverride); ended == nil || ended.Plan != "banned" {
			b.Errorf("ended %+v", ended)
		}
		b.wait(4 * time.Second)
		b.free("a k", 0) // 14 tokens are used, of 10
	})},
	// A limit may change under two overrides, a key may have no row, and the clock may
	// pass the end before anybody calls.
	{"override-layers-version", onPlans(func(b *caller) {
		for _, key := range []string{"k", "l"} {
			b.override("a", store.Override{Key: key, Plan: "pro"})
			b.override("a", store.Override{Key: key, Rate: 2, Burst: 20, Until: b.clock.Load() + 10*second})
		}
		b.take("a k 20", true)
		b.wait(5 * time.Second)
		b.define("a=1/1s,burst=10,max_debt=20,plans=pro:rate=4;burst=40")
		b.sweep()
		b.free("a k", 10)
		b.wait(10 * time.Second)
		b.sweep()
		b.free("a k", 40) // all of 20 used tokens are back, 10 by the raise and 10 of the 20 by pro
		b.free("a l", 40)
		b.take("a l 41", false)
		b.take("a k 40", true)
	})},
	// An override that ends at the instant at which a version begins ends first, whether or not
	// somebody calls in between.
	{"override-ends-with-version", onPlans(func(b *caller) {
		for _, key := range []string{"k", "l"} {
			b.override("a", store.Override{Key: key, Burst: 20, Until: b.clock.Load() + 4*second})
			b.take("a "+key+" 20", true)
		}
		b.do(store.VerbCharge, "a k 1")
		b.wait(4 * time.Second)
		b.do(store.VerbCharge, "a l 1")
		b.define("a=1/1s,burst=100,max_debt=20,on_change=proportional")
		for _, key := range []string{"k", "l"} {
			if op := &b.do(store.VerbCheck, "a "+key+" 0").Ops[0]; op.Reset != 170*second { // 17 of 10 tokens were used
				b.Errorf("%s: %+v", key, op.Answer)
			}
		}
	})},
	{"override-reset", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Plan: "pro"})
		b.take("a k 50", true)
		b.do(store.VerbReset, "a k 0")
		b.take("a k 50", true)
	})},
	{"override-sweep", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Plan: "pro", Until: b.clock.Load() + 100*second})
		b.take("a k 5", true)
		b.wait(50 * time.Second)
		b.sweep()
		b.take("a k 50", true)
		b.wait(60 * time.Second)
		b.sweep()
		b.free("a k", 10)
	})},
	// A sweep after an override's end changes no decision.
	{"override-swept-after-its-end", onPlans(func(b *caller) {
		for i, key := range []string{"k", "l"} {
			b.at(0)
			b.override("a", store.Override{Key: key, Plan: "pro", Until: b.clock.Load() + 2*second})
			b.take("a "+key+" 50", true)
			b.at(5 * time.Second)
			if i == 0 {
				b.sweep()
			}
			b.free("a:pro "+key, 13) // 40 tokens used at 2 s, 37 at 5 s
		}
	})},
	{"override-change", onPlans(func(b *caller) { // settings that an override omits are the base's at its present version
		b.override("a", store.Override{Key: "k", Burst: 30})
		b.take("a k 30", true)
		b.wait(2 * time.Second)
		b.define("a=4/1s,burst=10,max_debt=20,plans=pro:rate=5;burst=50")
		b.wait(time.Second)
		b.free("a k", 6)
		b.define("a=5/1s,burst=10,max_debt=20")
		b.wait(time.Second)
		b.take("a k 11", true)
		b.free("a l", 10)
	})},
	// The row of an overridden key names no version of its limit; its override does.
	// A sweep must keep that version: without it the row would count as full.
	{"override-of-an-old-version", onPlans(func(b *caller) {
		const week = 7 * 24 * time.Hour
		b.define("o=1/1w,burst=10,plans=pro:rate=5;burst=50")
		b.override("o", store.Override{Key: "k", Burst: 30})
		b.override("o", store.Override{Key: "l", Plan: "pro"})
		b.override("o", store.Override{Key: "m", Burst: 30, Until: b.clock.Load() + 5*week.Microseconds()/2})
		b.do(store.VerbTake, "o k 30")
		b.do(store.VerbTake, "o l 50")
		b.do(store.VerbTake, "o m 30")
		for _, plan := range []string{"rate=3;burst=60", "rate=5;burst=70", "rate=2;burst=80", "rate=1;burst=90"} {
			b.wait(week)
			b.define("o=2/1w,burst=10,plans=pro:" + plan)
			b.do(store.VerbTake, "o other 1") // no row names an older version any more
			b.sweep()
			b.sweep()
		}
		b.free("o k", 1+3*2)
		b.free("o l", 90-50+5+3+5+2)
		b.retry("o m 1", 7*week) // 30 used, 4 come back until the override ends and 3 until now: 23, of which 9 may be
	})},
	{"override-reservation", onPlans(func(b *caller) {
		b.take("a k 10", true)
		g := b.do(store.VerbReserve, "a k 5")
		b.override("a", store.Override{Key: "k", Plan: "pro"})
		if _, err := b.decide(&store.Group{ID: g.ID, Cancel: true}); err != nil {
			b.Error(err)
		}
		b.free("a k", 40)
	})},
	{"override-list", onPlans(func(b *caller) {
		o := b.overrides()
		for _, key := range []string{"k2", "k1", "x", ""} {
			b.override("a", store.Override{Key: key, Burst: 4, Note: "of " + key})
		}
		b.override("w", store.Override{Key: "k1", Plan: "pro"})
		b.override("a", store.Override{Key: "k3", Plan: "pro", Until: b.clock.Load() + second})
		b.wait(time.Second)
		list := func(prefix, after string, n int) string {
			b.Helper()
			got, err := o.Overrides(b.ctx, b.limits["a"], prefix, after, n)
			if err != nil {
				b.Fatal(err)
			}
			var keys []string
			for _, x := range got {
				if keys = append(keys, "<"+x.Key+">"); x.Burst != 4 || x.Note != "of "+x.Key {
					b.Errorf("%+v", x)
				}
			}
			return strings.Join(keys, " ")
		}
		for _, c := range []struct {
			prefix, after string
			n             int
			want          string
		}{
			{"", "", 10, "<> <k1> <k2> <x>"}, {"k", "", 10, "<k1> <k2>"}, {"", store.Shared, 10, "<k1> <k2> <x>"}, {"", "k1", 1, "<k2>"}, {"", "x", 10, ""},
		} {
			if got := list(c.prefix, c.after, c.n); got != c.want {
				b.Errorf("prefix %q after %q: %s; want %s", c.prefix, c.after, got, c.want)
			}
		}
	})},
	{"override-bad-input", onPlans(func(b *caller) {
		for _, c := range []struct {
			field string
			o     store.Override
		}{
			{"until", store.Override{Key: "k", Burst: 4, Until: b.clock.Load()}},
			{"until", store.Override{Key: "k", Burst: 4, Until: 1}},
			{"key", store.Override{Key: strings.Repeat("k", 513), Burst: 4}},
			{"key", store.Override{Key: "cust-*", Plan: "pro"}},
			{"plan", store.Override{Key: "k", Plan: "gold"}},
			{"plan", store.Override{Key: "k", Plan: "pro", Burst: 4}},
			{"plan", store.Override{Key: "k"}},
			{"note", store.Override{Key: "k", Burst: 4, Note: strings.Repeat("n", 1025)}},
			{"burst", store.Override{Key: "k", Burst: -3}},
			{"burst", store.Override{Key: "k", Burst: store.MaxInt}},
			{"rate", store.Override{Key: "k", Rate: -1}},
			{"per", store.Override{Key: "k", Period: -1}},
			{"note", store.Override{Key: "k", Burst: 4, Note: "a\x00b"}},
			{"note", store.Override{Key: "k", Burst: 4, Note: "a\xffb"}},
		} {
			_, err := b.overrides().SetOverride(b.ctx, b.limits["a"], c.o)
			b.wantField(c.field, err)
		}
		_, err := b.overrides().SetOverride(b.ctx, b.limits["w"], store.Override{Key: "k", Period: time.Hour})
		b.wantField("per", err)
		b.free("a k", 10)
	})},
	// An override can be ended although the limit can no longer have its key. A change between
	// keys and a shared bucket makes a new version, so that no program goes on with the old
	// one.
	{"override-of-a-former-key", onPlans(func(b *caller) {
		for i, text := range []string{"all=1/1h,burst=5,shared=true", "all=1/1h,burst=5"} {
			b.define(text)
			if n := b.limits["all"].Number; n != uint32(1+i) {
				b.Errorf("%s is version %d", text, n)
			}
			if i == 0 {
				if _, err := b.l.SetOverride(b.ctx, "all", store.Override{Key: dipwell.Shared, Burst: 9}); err != nil {
					b.Fatal(err)
				}
			}
		}
		if ended, err := b.l.EndOverride(b.ctx, "all", dipwell.Shared, dipwell.AnyOverride); err != nil || ended == nil {
			b.Errorf("ended %v, %v", ended, err)
		}
		_, err := b.l.EndOverride(b.ctx, "all", dipwell.Shared, dipwell.AnyOverride)
		b.wantField("key", err)
	})},
	{"override-drop", onPlans(func(b *caller) {
		b.override("a", store.Override{Key: "k", Plan: "banned"})
		b.drop("a")
		b.define("a=1/1s,burst=10,plans=banned:mode=blocked")
		b.take("a k 1", true)
	})},
}
