package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

const second = int64(1e6)

// The largest numbers of live records of a key, and of delayed reservations among them.
const (
	maxRecords = 10_000
	maxWaiting = 4096
)

// slow is a limit whose tokens do not come back by time during these cases.
const slow = "a=1/1h,burst=10"

// onHolds opens a store for a case and defines some limits.
func onHolds(f func(b *caller)) func(*env) {
	return func(e *env) {
		f(newCaller(e, slow, "b=1/1h,burst=10", "c=1/1h,burst=10,plans=free:mode=unlimited|banned:mode=blocked"))
	}
}

// onConcurrency opens a store for a case and defines a concurrency limit.
func onConcurrency(f func(b *caller)) func(*env) {
	return func(e *env) {
		f(newCaller(e, slow, "c=10,algorithm=concurrency,plans=free:mode=unlimited|banned:mode=blocked"))
	}
}

// holdCases test Group.Hold: each case is a sentence about holds.
var holdCases = []testCase{
	// A hold takes its tokens at once.
	{"hold", onHolds(func(b *caller) {
		g := b.hold("h", 30*second, "a k 4")
		if op := g.Ops[0]; op.Granted != 4 || op.Remaining != 6 || g.Hold.Expires != b.clock.Load()+30*second || g.Hold.Repeated {
			b.Errorf("%+v %+v", op.Answer, g.Hold)
		}
		b.free("a k", 6)
	})},
	// A refused hold takes nothing and keeps no record.
	{"hold-refused", onHolds(func(b *caller) {
		if g, err := b.tryHold("h", 30*second, "a k 11"); err != nil || g.Allowed || !g.Ops[0].Never {
			b.Errorf("%v %+v", err, g)
		}
		_, err := b.trySettle("h")
		b.wantErr(store.ErrUnknownHold, err)
		b.hold("h", 30*second, "a k 10")
	})},
	// The live holds of a key are listed in the order in which they expire.
	{"hold-list", onHolds(func(b *caller) {
		list := store.AbilitiesOf(b.store).Holds
		if list == nil {
			b.Fatal("the store has no ability Holds")
		}
		b.hold("h1", 30*second, "a k 4")
		b.hold("h2", 20*second, "a k 2")
		b.hold("h3", 20*second, "a l 2")
		b.hold("h4", 10*second, "a k 1")
		b.hold("h5", 25*second, "a k 1")
		b.settle("h5", 1)
		b.wait(10 * time.Second)
		got, err := list(b.ctx, b.limits["a"], "k")
		want := []store.KeyHold{{ID: b.handle("h2"), Tokens: 2, Expires: b.clock.Load() + 10*second}, {ID: b.handle("h1"), Tokens: 4, Expires: b.clock.Load() + 20*second}}
		if err != nil || !slices.Equal(got, want) {
			b.Errorf("%v, %v; want %v", got, err, want)
		}
	})},
	// Settle gives back the held tokens that exceed its cost.
	{"settle-less", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		if op := b.settle("h", 1).Ops[0]; op.Granted != 1 || op.Cost != 1 || op.Remaining != 9 || op.Key != "k" {
			b.Errorf("%+v", op)
		}
		b.free("a k", 9)
	})},
	// Settle without costs keeps what was held.
	{"settle-as-held", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.settle("h")
		b.free("a k", 6)
		if g := b.settle("h", 4); !g.Hold.Repeated {
			b.Error("not repeated")
		}
	})},
	// Settle to 0 releases all held tokens.
	{"settle-nothing", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.settle("h", 0)
		b.free("a k", 10)
	})},
	// Settle to a higher cost charges the difference, into debt if needed.
	{"settle-more", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.take("a k 6", true)
		b.settle("h", 7)
		b.wait(3 * time.Hour)
		b.free("a k", 0)
		b.wait(time.Hour)
		b.free("a k", 1)
	})},
	// A settle above max_charge is an error that names the largest cost, and the hold stays.
	{"settle-beyond-max-charge", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		_, err := b.trySettle("h", 105)
		if b.wantField("cost", err); !strings.Contains(fmt.Sprint(err), "104") {
			b.Error(err)
		}
		b.settle("h", 104)
	})},
	// For a take with parents, that largest cost is the one that all levels allow.
	{"settle-beyond-max-charge-levels", onHolds(func(b *caller) {
		b.define("top=1/1h,burst=3,parts=1")
		b.define("low=1/1h,burst=10,parent=top")
		d, err := b.l.Hold(b.ctx, 30*time.Second, "", dipwell.Take{Limit: "low", Key: "acme/u7", Cost: 2}, dipwell.Take{Limit: "a", Key: "acme", Cost: 1})
		if err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
		_, err = b.l.Settle(b.ctx, d.Hold, 103, 1)
		if b.wantField("costs[0]", err); !strings.Contains(fmt.Sprint(err), "top") || !strings.Contains(fmt.Sprint(err), " 32") {
			b.Error(err)
		}
		if _, err = b.l.Settle(b.ctx, d.Hold, 32, 1); err != nil {
			b.Error(err)
		}
	})},
	// A settle that is repeated with the same cost gets the same answer; another cost is an
	// error.
	{"settle-again", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.settle("h", 1)
		if g := b.settle("h", 1); !g.Hold.Repeated || g.Ops[0].Granted != 1 {
			b.Errorf("%+v", g)
		}
		_, err := b.trySettle("h", 2)
		b.wantErr(store.ErrHoldConflict, err)
		b.free("a k", 9)
	})},
	// An expired hold gives back everything that it held.
	{"hold-expires", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(30*time.Second - time.Microsecond)
		if op := b.take("a k 5", false); !op.Bound {
			b.Error("a refusal beside a live hold without Bound")
		}
		b.wait(time.Microsecond)
		b.take("a k 10", true)
	})},
	// After the end of an override that blocks the key, an expired hold may let the
	// call pass earlier than time alone would; the retry at the end itself is exact.
	{"hold-beside-ban", onHolds(func(b *caller) {
		b.hold("h", 5*second, "c k 9")
		b.override("c", store.Override{Key: "k", Plan: "banned", Until: b.clock.Load() + 10*second})
		if op := b.take("c k 2", false); op.Retry != 3600*second || !op.Bound {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.take("c k 1", false); op.Retry != 10*second || op.Bound {
			b.Errorf("%+v", op.Answer)
		}
	})},
	// Under a temporary override other than a block, the retry is at most its end, whatever
	// fits then.
	{"hold-expires-override", onHolds(func(b *caller) {
		b.hold("h", 5*second, "c k 10")
		b.override("c", store.Override{Key: "k", Burst: 12, Until: b.clock.Load() + 10*second})
		b.wait(5*time.Second - time.Microsecond)
		if op := b.take("c k 12", false); op.Never || op.Retry != 5*second+1 || !op.Bound {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.take("c k 13", false); !op.Never || op.Bound {
			b.Errorf("%+v", op.Answer)
		}
		b.wait(time.Microsecond)
		b.take("c k 12", true)
	})},
	// A repeated hold that took nothing answers with what the plan that it names grants,
	// whatever decides the key now: everything if that is unlimited, and nothing in shadow
	// mode.
	{"hold-again-free", onHolds(func(b *caller) {
		b.define("s=1/1h,burst=3,mode=shadow,plans=free:mode=unlimited")
		again := func(id, call string, want int64) {
			b.Helper()
			if g := b.hold(id, 30*second, call); !g.Hold.Repeated || g.Ops[0].Granted != want {
				b.Errorf("%s: %+v %+v; want %d granted", call, g.Hold, g.Ops[0].Answer, want)
			}
		}
		b.hold("free", 30*second, "c:free k 4")
		b.hold("shadow", 30*second, "s k 5")
		again("free", "c:free k 4", 4)
		again("shadow", "s k 5", 0)
		for _, o := range []store.Override{{Key: "k", Burst: 100}, {Key: "k", Plan: "free"}} {
			b.override("c", o)
			b.override("s", o)
			again("free", "c:free k 4", 4)
			again("shadow", "s k 5", 0)
		}
	})},
	// The same holds for several holds that expire together, the first of which finds that the
	// override has ended.
	{"hold-expires-override-several", onHolds(func(b *caller) {
		b.define("u=7/1h,burst=10")
		for _, key := range []string{"taken", "swept"} {
			b.override("u", store.Override{Key: key, Rate: 11, Burst: 20, Until: b.clock.Load() + 10*second})
			for i := range 4 {
				b.hold(fmt.Sprint("h", key, i), int64(4+i)*second, "u "+key+" 3")
			}
		}
		b.wait(20 * time.Second)
		b.take("u taken 10", true)
		b.sweep()
		b.free("u swept", 10)
	})},
	// A hold made under an override gives back what it took after the override has ended or
	// was replaced, in whatever way it ends.
	{"hold-outlives-override", onHolds(func(b *caller) {
		const big = "b=1/1h,burst=10,plans=big:rate=2;burst=30"
		b.define(big)
		n := 0
		hold := func(cost int64, o store.Override) (key string) {
			b.Helper()
			n++
			o.Key = fmt.Sprint("k", n)
			b.override("b", o)
			b.hold("h"+o.Key, 30*second, fmt.Sprintf("b %s %d", o.Key, cost))
			return o.Key
		}
		short := func() store.Override {
			return store.Override{Plan: "big", Until: b.clock.Load() + second/100}
		}
		plan := store.Override{Plan: "big"}

		k := hold(6, plan)
		b.endOverride("b", k)
		b.free("b "+k, 4)
		b.settle("h"+k, 1)
		b.free("b "+k, 9)

		k = hold(6, plan) // replaced
		b.override("b", store.Override{Key: k, Burst: 20})
		b.free("b "+k, 14)
		b.settle("h"+k, 1)
		b.free("b "+k, 19)

		k = hold(6, plan) // the override is replaced, and then ended
		b.override("b", store.Override{Key: k, Burst: 20})
		b.hold("i", 30*second, "b "+k+" 8")
		b.endOverride("b", k)
		b.free("b "+k, 0)
		b.settle("h"+k, 0)
		b.settle("i", 1)
		b.free("b "+k, 9)

		k = hold(6, short()) // a take finds that the override has ended
		b.wait(20 * time.Millisecond)
		b.take("b "+k+" 1", true)
		b.settle("h"+k, 1)
		b.free("b "+k, 8)

		k = hold(6, short()) // a take under a plan finds it
		b.wait(20 * time.Millisecond)
		b.take("b:big "+k+" 1", true)
		b.settle("h"+k, 1)
		b.free("b "+k, 8)

		k = hold(6, short()) // the settle of another hold finds it
		b.hold("j", 30*second, "b "+k+" 4")
		b.wait(20 * time.Millisecond)
		b.settle("j", 2)
		b.settle("h"+k, 1)
		b.free("b "+k, 7)

		k = hold(6, short()) // the settle of this hold finds it
		b.wait(20 * time.Millisecond)
		b.settle("h"+k, 1)
		b.free("b "+k, 9)

		k = hold(6, short()) // the sweep finds it
		b.wait(20 * time.Millisecond)
		b.sweep()
		b.settle("h"+k, 1)
		b.free("b "+k, 9)

		k = hold(6, plan) // it expires
		b.endOverride("b", k)
		b.wait(30 * time.Second)
		b.take("b "+k+" 10", true)

		k = hold(6, short()) // the sweep gives the hold back
		b.wait(20 * time.Millisecond)
		b.take("b "+k+" 1", true)
		b.wait(30 * time.Second)
		b.sweep()
		b.free("b "+k, 9)

		k = hold(6, plan) // a version begins and ends meanwhile
		b.define("b=1/1h,burst=12,plans=big:rate=2;burst=40")
		b.take("b "+k+" 1", true)
		b.define(big)
		b.take("b "+k+" 1", true)
		b.endOverride("b", k)
		b.settle("h"+k, 1)
		b.free("b "+k, 7)

		k = hold(6, plan) // and a change converts the row, which keeps its tokens
		b.define("b=1/1h,burst=20,plans=big:rate=2;burst=15,on_change=proportional")
		b.take("b "+k+" 1", true)
		b.endOverride("b", k)
		b.settle("h"+k, 2)
		b.free("b "+k, 17)

		b.define(big)
		b.hold("l", 30*second, "b l 6") // this hold was made before the override
		b.override("b", store.Override{Key: "l", Burst: 20})
		b.define("b=1/1h,burst=5,on_change=proportional,plans=big:rate=2;burst=30")
		b.take("b l 1", true)
		b.endOverride("b", "l")
		b.free("b l", 0)
		b.settle("l", 0)
		b.free("b l", 4)
	})},
	// A hold that has expired gives back all that it took, also if the limit changed
	// before any call of the key.
	{"hold-expires-change", onHolds(func(b *caller) {
		b.define("w=999983/1h,algorithm=fixed_window,start=0s")
		for _, key := range []string{"take", "check", "upto", "swept", "hold", "twice"} {
			b.hold("h"+key, 10*second, "w "+key+" 1")
		}
		b.hold("long", 14*second, "w twice 1")
		b.wait(12 * time.Second)
		b.define("w=6/1h,algorithm=fixed_window,start=0s,on_change=proportional")
		b.wait(3 * time.Second)
		b.define("w=3/1h,algorithm=fixed_window,start=0s,on_change=proportional")
		if op := b.do(store.VerbCheck, "w check 3").Ops[0]; !op.Allowed || op.Remaining != 3 {
			b.Errorf("%+v", op)
		}
		if op := b.do(store.VerbTakeUpTo, "w upto 5").Ops[0]; op.Granted != 3 {
			b.Errorf("%+v", op)
		}
		b.take("w twice 3", true) // true although one of its holds was live at the first change
		b.take("w take 3", true)
		b.hold("again", 10*second, "w hold 3")
		b.sweep()
		b.free("w swept", 3)
	})},
	// What shadow mode lets pass beside a live hold has an inexact retry (Bound) too,
	// also once a program knows the override.
	{"hold-bound-shadow-override", onHolds(func(b *caller) {
		b.define("d=1/1s,burst=10,plans=seen:mode=shadow")
		b.override("d", store.Override{Key: "k", Plan: "seen"})
		b.hold("h", 50*second, "d k 10")
		for _, verb := range []store.Verb{store.VerbTake, store.VerbTake, store.VerbTakeUpTo} {
			if op := b.do(verb, "d k 5").Ops[0]; !op.Shadow || !op.Bound {
				b.Errorf("%s: %+v", verb, op.Answer)
			}
		}
	})},
	// A hold expires under an override of an older version of the limit.
	{"hold-expires-override-version", onHolds(func(b *caller) {
		b.define("d=1/1s,burst=30")
		for _, key := range []string{"take", "swept"} {
			b.override("d", store.Override{Key: key, Burst: 40})
			b.hold("h"+key, second, "d "+key+" 5")
			b.take("d "+key+" 20", true)
		}
		b.define("d=2/1s,burst=30")
		b.wait(2 * time.Second)
		b.free("d take", 24)
		if op := b.take("d take 1", true); op.Remaining != 23 {
			b.Errorf("%+v", op.Answer)
		}
		b.sweep()
		b.free("d swept", 24)
	})},
	// A hold expires under an override whose plan is gone.
	{"hold-expires-dropped-plan", onHolds(func(b *caller) {
		b.define("d=1/1s,burst=30,plans=a:rate=10|b:rate=2")
		for _, key := range []string{"take", "swept"} {
			b.hold("h"+key, second, "d:a "+key+" 5")
			b.do(store.VerbCharge, "d "+key+" 10")
		}
		b.wait(time.Millisecond)
		b.define("d=1/1s,burst=30,plans=b:rate=2")
		b.wait(2999 * time.Millisecond)
		b.free("d take", 23)
		if op := b.take("d take 2", true); op.Remaining != 21 {
			b.Errorf("%+v", op.Answer)
		}
		b.sweep()
		b.free("d swept", 23)
	})},
	// What time had already returned when the limit changed cannot be given back afterwards.
	{"hold-change-low", onHolds(func(b *caller) {
		b.define("x=1/1s,burst=1,max_debt=0")
		b.hold("h", 20*second, "x k 1")
		b.wait(900 * time.Millisecond)
		b.define("x=1/1s,burst=10,max_debt=0,on_change=proportional")
		b.take("x k 1", true)
		b.settle("h", 0)
		b.free("x k", 9)
	})},
	// A change by proportional keeps the tokens of a key beside a live hold, and only
	// there: a hold that has expired by then is given back first.
	{"hold-change-proportional", onHolds(func(b *caller) {
		b.define("x=1/1h,burst=100")
		for _, key := range []string{"held", "ended", "plain"} {
			b.do(store.VerbTake, "x "+key+" 20")
			if key != "plain" {
				b.hold("h"+key, map[string]int64{"held": 60, "ended": 10}[key]*second, "x "+key+" 30")
			}
		}
		b.wait(10 * time.Second)
		b.define("x=2/2h,burst=10,on_change=proportional")
		b.free("x held", 0) // 50 tokens are used
		b.free("x ended", 8)
		b.free("x plain", 8)
		b.wait(20 * time.Second)
		b.take("x ended 8", true)
		b.define("x=1/1h,burst=100,on_change=proportional")
		b.settle("hheld", 5)
		b.free("x held", 75)
		b.free("x ended", 0)
		b.free("x plain", 80)
	})},
	// That is so too if the clock steps back behind the change.
	{"hold-change-clock-back", onHolds(func(b *caller) {
		for _, policy := range []string{"proportional", "reset"} {
			b.define("x=1/1h,burst=100")
			for i, key := range []string{"early", "late", "touched"} {
				b.do(store.VerbTake, "x "+policy+key+" 20")
				b.hold("h"+policy+key, []int64{10, 30, 10}[i]*second, "x "+policy+key+" 30")
			}
			b.wait(20 * time.Second)
			b.define("x=1/1h,burst=50,on_change=" + policy)
			b.wait(-15 * time.Second)
			b.do(store.VerbCharge, "x "+policy+"touched 0")
			free := map[string]int64{"proportional": 0, "reset": 50}[policy]
			for _, key := range []string{"early", "late", "touched"} { // no hold had expired by this clock
				b.free("x "+policy+key, free)
			}
			b.wait(15 * time.Second)
			free = map[string]int64{"proportional": 40, "reset": 50}[policy]
			b.free("x "+policy+"early", free) // this hold expired before the change
			b.settle("h"+policy+"late", 40)
			b.free("x "+policy+"late", map[string]int64{"proportional": 0, "reset": 50}[policy])
		}
	})},
	// A change by reset ends the holds of a key that had not expired by then, as a Reset
	// of the key does: they neither give back nor charge.
	{"hold-change-reset", onHolds(func(b *caller) {
		b.define("x=1/1h,burst=100")
		b.hold("both", 60*second, "x k 30", "b k 2")
		b.hold("one", 60*second, "x k 10")
		b.hold("short", 5*second, "x k 10")
		b.hold("again", 60*second, "x k 10")
		b.wait(10 * time.Second)
		b.define("x=1/1h,burst=50,on_change=reset")
		b.wait(time.Second)
		_, err := b.tryHold("again", 60*second, "x k 10")
		b.wantErr(store.ErrHoldConflict, err)
		_, err = b.tryExtend("one", 60*second)
		b.wantErr(store.ErrHoldConflict, err)
		b.settle("both", 40, 1)
		b.free("b k", 9)
		b.settle("one", 90)
		b.free("x k", 50)
		b.settle("short", 12) // this hold expired before the change, and is charged
		b.free("x k", 38)
		b.settle("again", 0)
		b.free("x k", 38)
	})},
	// The tokens of a hold that expires under a blocking override are free at the end of that
	// override.
	{"hold-expires-ban", onHolds(func(b *caller) {
		b.hold("h", 5*second, "c k 9")
		b.override("c", store.Override{Key: "k", Plan: "banned", Until: b.clock.Load() + 10*second})
		b.wait(5 * time.Second)
		if op := b.take("c k 10", false); op.Never || op.Retry != 5*second || op.Bound {
			b.Errorf("%+v", op.Answer)
		}
		b.wait(5 * time.Second)
		b.take("c k 10", true)
	})},
	// Settling an expired hold charges the actual cost, once.
	{"settle-expired", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(time.Minute)
		b.settle("h", 3)
		b.free("a k", 7)
		b.settle("h", 3)
		b.free("a k", 7)
	})},
	// What is charged after all holds of a key have expired is counted under the definition
	// that the caller names, not under the plan of a hold, whether or not a sweep came
	// between.
	{"hold-expires-charge", onHolds(func(b *caller) {
		b.define("p=1/1h,burst=10,plans=pro:rate=2;burst=20")
		for _, swept := range []bool{false, true} {
			key := fmt.Sprint("swept-", swept)
			b.hold("one"+key, 5*second, "p charge-"+key+" 2")
			b.hold("two"+key, 5*second, "p:pro charge-"+key+" 8")
			b.hold("three"+key, 5*second, "p settle-"+key+" 2")
			b.hold("four"+key, 5*second, "p:pro settle-"+key+" 8")
			if b.wait(10 * time.Second); swept {
				b.sweep()
			}
			b.do(store.VerbCharge, "p charge-"+key+" 4")
			b.settle("three"+key, 4)
			b.wait(time.Hour)
			b.free("p charge-"+key, 7)
			b.free("p settle-"+key, 7)
		}
	})},
	// From the end of an override on, a plan in shadow mode allows what the override refused.
	{"override-before-shadow", onHolds(func(b *caller) {
		b.define("s=1/1h,burst=3,plans=seen:mode=shadow")
		b.define("slots=3,algorithm=concurrency,plans=seen:mode=shadow")
		for _, limit := range []string{"s", "slots"} {
			b.override(limit, store.Override{Key: "k", Burst: 5, Until: b.clock.Load() + 10*second})
			if op := b.do(store.VerbCheck, limit+":seen k 30").Ops[0]; op.Allowed || op.Never || op.Retry != 10*second {
				b.Errorf("%s: %+v", limit, op.Answer)
			}
		}
		b.wait(10 * time.Second)
		for _, limit := range []string{"s", "slots"} {
			if op := b.do(store.VerbCheck, limit+":seen k 30").Ops[0]; !op.Allowed || !op.Shadow {
				b.Errorf("%s: %+v", limit, op.Answer)
			}
		}
	})},
	// Settling charges once also if a refusal had given the hold back.
	{"settle-given-back", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(time.Minute)
		b.take("a k 2", true)
		b.settle("h", 3)
		b.free("a k", 5)
	})},
	// Settling an expired hold charges at most max_charge.
	{"settle-expired-beyond-max-charge", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(time.Minute)
		_, err := b.trySettle("h", 101)
		if b.wantField("cost", err); !strings.Contains(fmt.Sprint(err), "100") {
			b.Error(err)
		}
		b.settle("h", 100)

		b.define("few=1/1s,burst=10,max_charge=3")
		b.hold("late", 30*second, "few k 9")
		b.wait(time.Minute)
		_, err = b.trySettle("late", 10)
		if b.wantField("cost", err); !strings.Contains(fmt.Sprint(err), "9") {
			b.Error(err)
		}
		b.settle("late", 9) // the held amount can always be charged
		b.free("few k", 1)
	})},
	// With on_expire keep, the expiry of a hold gives nothing back, and a late settle gives
	// back or charges the difference like one in time.
	{"hold-kept", onHolds(func(b *caller) {
		b.define("kept=1/1h,burst=10,on_expire=keep")
		b.hold("h", 30*second, "kept k 10")
		b.hold("i", 30*second, "kept l 4")
		b.hold("j", 30*second, "kept m 4")
		b.settle("j", 1)
		b.free("kept m", 9)
		b.wait(time.Minute)
		b.take("kept k 1", false)
		b.settle("h", 3)
		b.free("kept k", 7)
		b.settle("i", 6)
		b.free("kept l", 4)
		if g := b.settle("h", 3); !g.Hold.Repeated {
			b.Errorf("%+v", g.Hold)
		}
		_, err := b.trySettle("h", 4)
		b.wantErr(store.ErrHoldConflict, err)
	})},
	// Tokens that time has returned since are not given back again: at most the smallest
	// number used since can be.
	{"hold-kept-touched", onHolds(func(b *caller) {
		b.define("kept=1/10ms,burst=5,on_expire=keep")
		b.define("day=1/1h,burst=10,on_expire=keep")
		b.hold("h", 1300, "kept k 1")
		b.take("kept k 2", true)
		b.wait(11700 * time.Microsecond)
		b.settle("h", 0)
		b.free("kept k", 4)
		b.hold("low", second, "kept l 4")
		b.wait(2 * time.Second) // the hold has expired, and all of its tokens came back
		b.take("kept l 3", true)
		b.settle("low", 0)
		b.free("kept l", 2)
		b.hold("refunded", second, "day k 6")
		b.wait(2 * time.Second)
		b.do(store.VerbRefund, "day k 4")
		b.take("day k 5", true)
		b.settle("refunded", 1)
		b.free("day k", 5)
		b.hold("reset", second, "day l 6")
		b.wait(2 * time.Second)
		b.do(store.VerbReset, "day l 0")
		b.take("day l 5", true)
		b.settle("reset", 1)
		b.free("day l", 5)
	})},
	// The record of an expired hold lives with the other records of its key, and goes when the
	// hold is forgotten.
	{"hold-kept-forgotten", onHolds(func(b *caller) {
		b.define("kept=1/1h,burst=10,on_expire=keep")
		b.hold("h", 2*second, "kept k 4")
		b.hold("i", 3*second, "kept k 3", "a k 2")
		b.wait(5 * time.Second)
		b.sweep()
		b.free("a k", 10)
		if op := b.take("kept k 4", false); !op.Bound {
			b.Errorf("a late settle may come first: %+v", op.Answer)
		}
		holds := store.AbilitiesOf(b.store).Holds
		if holds == nil {
			b.Fatal("the store has no ability Holds")
		}
		if list, err := holds(b.ctx, b.limits["kept"], "k"); err != nil || len(list) > 0 {
			b.Errorf("listed: %v, %v", list, err)
		}
		_, err := b.tryExtend("h", 9*second)
		b.wantErr(store.ErrHoldConflict, err)
		_, err = b.tryHold("h", 2*second, "kept k 4")
		b.wantErr(store.ErrHoldConflict, err)
		b.wait(time.Minute - 3*time.Second - time.Microsecond)
		b.settle("h", 1)
		b.free("kept k", 6)
		b.wait(time.Second + time.Microsecond)
		b.take("kept k 1", true)
		_, err = b.trySettle("i", 0, 0)
		b.wantErr(store.ErrUnknownHold, err)
		b.sweep()
		b.free("kept k", 5)
		if op := b.take("kept k 6", false); op.Bound {
			b.Errorf("no record is left: %+v", op.Answer)
		}
	})},
	// The limit changes between expiry and settle, and a hold is extended in time.
	{"hold-kept-changed", onHolds(func(b *caller) {
		b.define("kept=1/1h,burst=10,on_expire=keep")
		b.hold("h", 2*second, "kept k 6")
		b.hold("i", 2*second, "kept l 6")
		b.wait(time.Second)
		if _, err := b.tryExtend("i", 2*second); err != nil {
			b.Fatal(err)
		}
		b.wait(3 * time.Second)
		b.define("kept=2/1h,burst=20")
		b.settle("h", 1)
		b.free("kept k", 19)
		b.settle("i", 4)
		b.free("kept l", 16)
	})},
	// Records of ended holds stay for their ttl, a minute at least and an hour at most.
	{"hold-forgotten", onHolds(func(b *caller) {
		b.hold("h", 2*second, "a k 4")
		b.settle("h", 1)
		b.wait(time.Minute - time.Microsecond)
		b.settle("h", 1)
		b.wait(time.Microsecond)
		_, err := b.trySettle("h", 1)
		b.wantErr(store.ErrUnknownHold, err)
		b.hold("h", 200*second, "a k 1")
		b.wait(200*time.Second + 199*time.Second)
		b.settle("h", 1)
	})},
	{"hold-forgotten-hour", onHolds(func(b *caller) {
		b.define("day=1/1h,burst=100")
		b.hold("settled", 24*3600*second, "day k 4")
		b.hold("expired", 2*3600*second, "day k 4")
		b.hold("extended", 24*3600*second, "day k 4")
		b.settle("settled", 1)
		if _, err := b.tryExtend("extended", 2*3600*second); err != nil {
			b.Fatal(err)
		}
		b.wait(time.Hour - time.Microsecond)
		b.settle("settled", 1)
		b.wait(time.Microsecond)
		_, err := b.trySettle("settled", 1)
		b.wantErr(store.ErrUnknownHold, err)
		b.wait(2*time.Hour - time.Microsecond)
		b.settle("expired", 1)
		b.wait(time.Microsecond)
		_, err = b.trySettle("extended", 1)
		b.wantErr(store.ErrUnknownHold, err)
	})},
	// A repeated Hold call returns the same hold.
	{"hold-again", onHolds(func(b *caller) {
		first := b.hold("h", 30*second, "a k 4")
		b.wait(10 * time.Second)
		g := b.hold("h", 30*second, "a k 4")
		if !g.Hold.Repeated || g.Hold.Expires != first.Hold.Expires || g.Ops[0].Granted != 4 || g.Ops[0].Remaining != 6 {
			b.Errorf("%+v %+v", g, g.Hold)
		}
		b.free("a k", 6)
		for _, call := range []string{"a k 3", "a l 4", "b k 4", "a k 4 1"} {
			_, err := b.tryHold("h", 30*second, call)
			b.wantErr(store.ErrHoldConflict, err)
		}
		_, err := b.tryHold("h", 31*second, "a k 4")
		b.wantErr(store.ErrHoldConflict, err)
		b.free("a k", 6)
	})},
	// It does so also if an override decides the key, or the plan is unlimited.
	{"hold-again-override", onHolds(func(b *caller) {
		b.override("c", store.Override{Key: "k", Burst: 20})
		b.hold("h", 30*second, "c:free k 12")
		if g := b.hold("h", 30*second, "c:free k 12"); !g.Hold.Repeated || g.Ops[0].Granted != 12 || g.Ops[0].Remaining != 8 {
			b.Errorf("%+v %+v", g, g.Hold)
		}
		b.hold("i", 30*second, "c:free l 12")
		if g := b.hold("i", 30*second, "c:free l 12"); !g.Hold.Repeated || g.Ops[0].Granted != 12 || g.Ops[0].Remaining != store.MaxInt {
			b.Errorf("%+v %+v", g, g.Hold)
		}
		for id, call := range map[string]string{"h": "c k 12", "i": "c l 12"} { // without the plan
			_, err := b.tryHold(id, 30*second, call)
			b.wantErr(store.ErrHoldConflict, err)
		}
	})},
	// Repeating a Hold that has ended is an error until its record goes.
	{"hold-again-ended", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.settle("h", 1)
		_, err := b.tryHold("h", 30*second, "a k 4")
		b.wantErr(store.ErrHoldConflict, err)
		b.hold("i", 30*second, "a k 4")
		b.wait(89 * time.Second)
		_, err = b.tryHold("i", 30*second, "a k 4")
		b.wantErr(store.ErrHoldConflict, err)
		b.wait(time.Second)
		if g := b.hold("i", 30*second, "a k 4"); g.Hold.Repeated {
			b.Error("repeated")
		}
	})},
	// Extend moves a hold's expiry.
	{"extend", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(20 * time.Second)
		g, err := b.tryExtend("h", 30*second)
		if err != nil || !g.Allowed || g.Hold.Expires != b.clock.Load()+30*second || g.Ops[0].Granted != 10 {
			b.Errorf("%v %+v %+v", err, g, g.Hold)
		}
		b.wait(29 * time.Second)
		b.take("a k 1", false)
		b.wait(time.Second)
		_, err = b.tryExtend("h", 30*second)
		b.wantErr(store.ErrHoldConflict, err)
		b.take("a k 1", true)
	})},
	// Extend of a settled or unknown hold is an error.
	{"extend-ended", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.settle("h")
		_, err := b.tryExtend("h", second)
		b.wantErr(store.ErrHoldConflict, err)
		_, err = b.tryExtend("i", second)
		b.wantErr(store.ErrUnknownHold, err)
	})},
	// A hold of several limits is all or nothing.
	{"hold-several", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4", "b k 5")
		if g, err := b.tryHold("i", 30*second, "a k 4", "b k 6"); err != nil || g.Allowed || g.Ops[0].Granted != 0 || !g.Ops[1].Bound || g.Ops[0].Bound {
			b.Errorf("%v %+v", err, g)
		}
		b.free("a k", 6)
		g := b.settle("h", 2, 7)
		if len(g.Ops) != 2 || g.Ops[0].Remaining != 8 || g.Ops[1].Remaining != 3 {
			b.Errorf("%+v", g)
		}
	})},
	// A part of a hold that Reset ended neither gives back nor charges.
	{"hold-reset", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4", "b k 5")
		b.hold("i", 30*second, "a k 3")
		b.do(store.VerbReset, "a k 0")
		b.take("a k 5", true)
		b.settle("h", 9, 1)
		b.free("a k", 5)
		b.free("b k", 9)
		b.settle("i", 0)
		b.free("a k", 5)
	})},
	// Reset of an expired hold does not keep its record longer.
	{"hold-reset-forgotten", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.wait(80 * time.Second)
		b.do(store.VerbReset, "a k 0")
		b.wait(10 * time.Second)
		_, err := b.trySettle("h", 1)
		b.wantErr(store.ErrUnknownHold, err)
	})},
	// Reset of the last remaining part ends a hold.
	{"hold-reset-all", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4", "b k 5")
		b.do(store.VerbReset, "a k 0")
		if _, err := b.tryExtend("h", 30*second); err != nil {
			b.Error(err)
		}
		b.do(store.VerbReset, "b k 0")
		_, err := b.tryExtend("h", 30*second)
		b.wantErr(store.ErrHoldConflict, err)
		_, err = b.tryHold("h", 30*second, "a k 4", "b k 5")
		b.wantErr(store.ErrHoldConflict, err)
	})},
	// A part that had expired when it was reset still charges on settle.
	{"hold-reset-expired", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.wait(30 * time.Second)
		b.do(store.VerbReset, "a k 0")
		b.settle("h", 3)
		b.free("a k", 7)
	})},
	// The same is true if the row was full, and so deleted, before the hold expired.
	{"hold-reset-expired-full", func(e *env) {
		b := newCaller(e, "a=10/1s,burst=10")
		b.hold("h", 30*second, "a k 4")
		b.wait(2 * time.Second)
		b.hold("i", 30*second, "a k 2")
		b.settle("i", 0)
		b.wait(30 * time.Second)
		b.do(store.VerbReset, "a k 0")
		b.settle("h", 3)
		b.free("a k", 7)
	}},
	// A hold with cost 0 is an error, whatever would decide it.
	{"hold-nothing", onHolds(func(b *caller) {
		b.define("s=1/1h,burst=10,mode=shadow")
		b.define("slots=3,algorithm=concurrency")
		for _, calls := range [][]string{{"a k 0"}, {"s k 0"}, {"slots k 0"}, {"c:free k 0"}, {"a k 0 3"}} {
			_, err := b.tryHold("h", 30*second, calls...)
			b.wantField("cost", err)
		}
		b.hold("h", 30*second, "a k 1")
	})},
	{"hold-several-nothing", onHolds(func(b *caller) {
		_, err := b.tryHold("h", 30*second, "a k 0", "b k 0")
		b.wantField("cost", err)
		b.hold("h", 30*second, "a k 0", "b k 1")
	})},
	// A part that cost 0 can only be settled to 0.
	{"settle-several-nothing", onHolds(func(b *caller) {
		b.define("slots=3,algorithm=concurrency")
		b.hold("h", 30*second, "a k 4", "b k 0", "slots k 0")
		_, err := b.trySettle("h", 1, 3, 0)
		b.wantField("costs[1]", err)
		_, err = b.trySettle("h", 1, 0, 1)
		b.wantField("costs[2]", err)
		if g := b.settle("h", 1, 0, 0); g.Ops[1].Granted != 0 || g.Ops[2].Granted != 0 {
			b.Errorf("%+v", g.Ops)
		}
		b.free("a k", 9)
		b.free("b k", 10)
		b.hold("i", 30*second, "a k 4", "b k 0")
		b.settle("i")
		b.hold("j", 30*second, "a k 1", "b k 0")
		if _, err = b.tryExtend("j", 60*second); err != nil {
			b.Error(err)
		}
		b.wait(90 * time.Second)
		_, err = b.trySettle("j", 1, 1)
		b.wantField("costs[1]", err)
		b.settle("j", 1, 0)
	})},
	// A hold that took nothing leaves nothing in its key's row, and ends by settle or expiry.
	{"hold-free", onHolds(func(b *caller) {
		b.define("s=1/1h,burst=3,mode=shadow,keys=list")
		b.hold("h", 30*second, "s k 4")
		b.hold("i", 30*second, "s k 4")
		list := store.AbilitiesOf(b.store).Holds
		if list == nil {
			b.Fatal("the store has no ability Holds")
		}
		if list, err := list(b.ctx, b.limits["s"], "k"); err != nil || len(list) > 0 {
			b.Errorf("holds of the key: %v, %v", list, err)
		}
		if keys := store.AbilitiesOf(b.store).Keys; keys != nil {
			if list, err := keys(b.ctx, b.limits["s"], "", "", 10); err != nil || len(list) > 0 {
				b.Errorf("keys: %v, %v", list, err)
			}
		}
		if op := b.take("s k 3", true); op.Shadow || op.Remaining != 0 {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.take("s k 1", true); !op.Shadow || op.Bound {
			b.Errorf("%+v", op.Answer)
		}
		if g, err := b.tryExtend("h", 60*second); err != nil || g.Ops[0].Granted != 0 {
			b.Errorf("%v %+v", err, g)
		}
		b.settle("i", 4)
		_, err := b.tryExtend("i", 60*second)
		b.wantErr(store.ErrHoldConflict, err)
		b.wait(time.Minute)
		_, err = b.tryExtend("h", 60*second)
		b.wantErr(store.ErrHoldConflict, err)
	})},
	// A key has at most 10,000 live records, also if they took nothing; ended records do
	// not count.
	{"hold-too-many", onHolds(func(b *caller) {
		if b.part > 1 || b.Options.Parallel {
			return // on other stores it takes minutes, so those have tests of their own
		}
		b.define("n=1/1h,burst=100000,max_debt=1000000,plans=free:mode=unlimited")
		for _, call := range []string{"n:free free 3", "n paid 3"} {
			key := strings.Fields(call)[1]
			for i := range maxRecords {
				b.hold(fmt.Sprint(key, i), 30*second, call)
			}
			full := func() {
				b.Helper()
				for _, c := range []string{call, "n " + key + " 1"} {
					_, err := b.tryHold("x", 30*second, c)
					b.wantField("key", err)
				}
				_, err := b.try(store.VerbReserve, "n "+key+" 100001")
				b.wantField("key", err)
				if !b.OneKey {
					_, err = b.tryHold("x", 30*second, "n other 1", "n "+key+" 1")
					b.wantField("key", err)
				}
			}
			full()
			b.hold("other"+key, 30*second, "n other 1")
			if g := b.hold(key+"7", 30*second, call); !g.Hold.Repeated {
				b.Errorf("%+v", g.Hold)
			}
			b.settle(key + "7")
			b.hold(key, 20*second, "n "+key+" 1")
			full()
			b.wait(20 * time.Second)
			b.hold(key+"again", 30*second, call)
			full()
			b.wait(10 * time.Second)
			b.hold(key+"last", 30*second, call)
			b.settle("other" + key)
		}
	})},
	// A level whose plan is unlimited is not charged by a hold.
	{"hold-unlimited", onHolds(func(b *caller) {
		b.hold("h", 30*second, "c:free k 7")
		b.free("c k", 10)
		b.settle("h", 9)
		b.free("c k", 10)
	})},
	// A limit in shadow mode that would have refused is not charged by a hold.
	{"hold-shadow", onHolds(func(b *caller) {
		b.define("s=1/1h,burst=10,mode=shadow")
		b.hold("h", 30*second, "s k 7")
		if g := b.hold("i", 30*second, "s k 7"); g.Ops[0].Granted != 0 || !g.Ops[0].Shadow {
			b.Errorf("%+v", g.Ops[0])
		}
		b.settle("i", 9)
		b.free("s k", 3)
		b.settle("h", 9)
		b.free("s k", 1)
	})},
	// The same is true if the unlimited plan no longer decides, and for a part that cost 0.
	{"hold-several-free", onHolds(func(b *caller) {
		b.define("s=1/1h,burst=10,mode=shadow")
		b.do(store.VerbCharge, "s k 12")
		if op := b.hold("h", 30*second, "s k 0", "a k 1").Ops[0]; !op.Shadow {
			b.Errorf("a part of nothing in debt: %+v", op.Answer)
		}
		b.settle("h", 0, 0)
		b.do(store.VerbRefund, "s k 12")
		b.free("s k", 10)
		b.override("c", store.Override{Key: "k", Plan: "free"})
		b.hold("i", 30*second, "c k 2", "a k 3")
		b.endOverride("c", "k")
		b.settle("i", 3, 4)
		b.free("c k", 10)
		b.free("a k", 6)
		b.hold("j", 30*second, "c:free k 2")
		b.take("c k 4", true)
		b.settle("j", 3)
		b.free("c k", 6)
	})},
	// The answer to a settle describes the plan that the Hold call named.
	{"hold-plan", onHolds(func(b *caller) {
		b.define("p=1/1h,burst=10,plans=pro:burst=50")
		if op := b.hold("h", 30*second, "p:pro k 40").Ops[0]; op.Def.Plan != "pro" || op.Remaining != 10 {
			b.Errorf("%+v", op.Answer)
		}
		if op := b.settle("h", 20).Ops[0]; op.Def.Plan != "pro" || op.Remaining != 30 {
			b.Errorf("%s %+v", op.Def.Plan, op.Answer)
		}
		b.free("p k", 0)
	})},
	// A plan with mode blocked refuses holds.
	{"hold-blocked", onHolds(func(b *caller) {
		if g, err := b.tryHold("h", 30*second, "c:banned k 1"); err != nil || g.Allowed || !g.Ops[0].Never {
			b.Errorf("%v %+v", err, g)
		}
	})},
	// A floor.
	{"hold-floor", onHolds(func(b *caller) {
		if g, err := b.tryHold("h", 30*second, "a k 4 7"); err != nil || g.Allowed {
			b.Errorf("%v %+v", err, g)
		}
		b.hold("h", 30*second, "a k 4 6")
	})},
	// A leaky bucket has no holds.
	{"hold-leaky", onHolds(func(b *caller) {
		b.define("l=1/1s,algorithm=leaky_bucket,max_debt=5")
		_, err := b.tryHold("h", 30*second, "l k 1")
		b.wantField("limit", err)
	})},
	// Bad input.
	{"hold-bad-input", onHolds(func(b *caller) {
		for _, id := range []string{"", strings.Repeat("x", 65), "a b", "ä", "a\x00"} {
			_, err := b.tryHold(id, 30*second, "a k 1")
			b.wantField("id", err)
			_, err = b.trySettle(id, 1)
			b.wantField("id", err)
		}
		for _, ttl := range []int64{0, -1, 999, 24*3600*second + 1, 365 * 24 * 3600 * second} {
			_, err := b.tryHold("h", ttl, "a k 1")
			b.wantField("ttl", err)
		}
		b.define("short=1/1h,burst=10,ttl=5s")
		_, err := b.tryHold("h", 6*second, "a k 1", "short k 1")
		b.wantField("ttl", err)
		b.hold("h", 5*second, "a k 1", "short k 1")
		_, err = b.tryExtend("h", 6*second)
		b.wantField("ttl", err)
		_, err = b.trySettle("h", 1)
		b.wantField("costs", err)
		_, err = b.trySettle("h", 1, 1, 1)
		b.wantField("costs", err)
		_, err = b.trySettle("h", 1, -1)
		b.wantField("costs[1]", err)
		_, err = b.trySettle("h", 1, 200)
		b.wantField("costs[1]", err)
		b.free("a k", 9)
		b.settle("h", 1, 1)
	})},
	// The first call after the expiry gives the hold back, whatever it asks for.
	{"expired-hold-hides", onHolds(func(b *caller) {
		b.define("n=100/1d,burst=100")
		b.hold("h", 30*second, "n k 90")
		b.wait(30 * time.Second)
		for _, cost := range []string{"1", "50", "1"} {
			if op := b.do(store.VerbCheck, "n k "+cost).Ops[0]; !op.Allowed || op.Remaining != 100 || op.Reset != 0 {
				b.Errorf("check %s: %+v", cost, op.Answer)
			}
		}
		if op := b.take("n k 1", true); op.Remaining != 99 {
			b.Errorf("%+v", op.Answer)
		}
	})},
	{"hold-expires-first", onHolds(func(b *caller) {
		b.define("n=1/1h,burst=100")
		for i, touch := range []func(key string) int64{
			func(key string) int64 { return b.take("n "+key+" 1", true).Remaining + 1 },
			func(key string) int64 { return b.do(store.VerbTakeUpTo, "n "+key+" 1").Ops[0].Remaining + 1 },
			func(key string) int64 { return b.do(store.VerbReserve, "n "+key+" 1").Ops[0].Remaining + 1 },
			func(key string) int64 { return b.do(store.VerbCharge, "n "+key+" 1").Ops[0].Remaining + 1 },
			func(key string) int64 { return b.do(store.VerbRefund, "n "+key+" 1").Ops[0].Remaining - 1 },
			func(key string) int64 { return b.take("n "+key+" 101", false).Remaining },
			func(key string) int64 { return b.settle("live" + key).Ops[0].Remaining },
			func(key string) int64 { return b.settle("live"+key, 0).Ops[0].Remaining - 4 },
			func(key string) int64 { return b.hold("new", 60*second, "n "+key+" 1").Ops[0].Remaining + 1 },
		} {
			key := fmt.Sprint("k", i)
			b.hold("live"+key, 3600*second, "n "+key+" 4")
			for j := range 20 { // more calls than a few
				b.hold(fmt.Sprint(key, "-", j), int64(30-j)*second, "n "+key+" 2")
			}
			b.take("n "+key+" 6", true)
			b.wait(30 * time.Second)
			if free := touch(key); free != 90 {
				b.Errorf("call %d: %d are free beside what it took, want 90", i, free)
			}
		}
	})},
	// A refusal with "never" gives expired holds back too: what it reports as remaining is
	// free.
	{"hold-expires-never", onHolds(func(b *caller) {
		for _, call := range []string{"c k 11", "c:banned l 1"} {
			key := strings.Fields(call)[1]
			b.hold(key, 30*second, "c "+key+" 4")
			b.wait(30 * time.Second)
			if op := b.take(call, false); !op.Never || op.Remaining != 10 || op.Reset != 0 {
				b.Errorf("%s: %+v", call, op.Answer)
			}
		}
	})},
	// A check gives no expired hold back, but counts its tokens as free.
	{"hold-expires-check", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(30 * time.Second)
		if g := b.do(store.VerbCheck, "a k 10"); !g.Allowed {
			b.Errorf("%+v", g)
		}
	})},
	// A sweep gives back the remaining expired holds.
	{"hold-sweep", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.take("a k 1", true)
		b.sweep()
		b.wait(30 * time.Second)
		b.sweep()
		b.free("a k", 9)
	})},
	// A sweep counts a row that it deletes once, although the record of a hold outlives that
	// row.
	{"hold-sweep-again", func(e *env) {
		b := newCaller(e, "a=10/1s,burst=10")
		b.hold("h", 30*second, "a k 4")
		b.wait(2 * time.Second)
		b.sweep()
		if sweep := store.AbilitiesOf(e.store).Sweep; sweep != nil {
			if n, err := sweep(e.ctx, 1000); n != 0 || err != nil {
				b.Errorf("a sweep after a sweep: %d, %v", n, err)
			}
		}
		b.settle("h", 3)
		b.free("a k", 10)
	}},
	// Dropping a limit ends the part of a hold in it.
	{"hold-drop", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4", "b k 4")
		b.drop("a")
		b.sweep()
		b.define(slow)
		b.settle("h", 9, 1)
		b.free("a k", 10)
		b.free("b k", 9)
	})},
	// A part that ended before the drop is charged to the limit that has the name now, as
	// after a Reset.
	{"hold-drop-expired", onHolds(func(b *caller) {
		for _, id := range []string{"found", "unseen"} {
			b.hold(id, 30*second, "a "+id+" 4", "b "+id+" 4")
		}
		b.wait(30 * time.Second)
		b.take("a found 1", true)
		b.drop("a")
		b.define(slow)
		for _, id := range []string{"found", "unseen"} {
			b.settle(id, 3, 1)
			b.free("a "+id, 7)
			b.free("b "+id, 9)
		}
	})},
	// A part of a hold that took nothing lives as long as a limit of its name exists.
	{"hold-drop-free", onHolds(func(b *caller) {
		b.define("a=1/1h,burst=10,mode=shadow")
		b.take("a k 10", true)
		b.hold("h", 30*second, "a k 4", "b k 4")
		b.do(store.VerbReset, "b k 0")
		if _, err := b.tryExtend("h", 30*second); err != nil {
			b.Fatal(err)
		}
		b.drop("a")
		_, err := b.tryExtend("h", 30*second)
		b.wantErr(store.ErrHoldConflict, err)
		b.define(slow)
		if g, err := b.tryExtend("h", 30*second); err != nil || len(g.Ops) != 2 || g.Ops[0].Remaining != 10 || g.Ops[0].Granted != 0 {
			b.Errorf("%v, %+v", err, g)
		}
	})},
	// A hold settled while its limit does not exist is charged to no limit, also not to a
	// later one of that name.
	{"hold-drop-settled", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4", "b k 4")
		b.wait(30 * time.Second)
		b.drop("a")
		b.settle("h", 3, 1)
		b.define(slow)
		if g := b.settle("h", 3, 1); !g.Hold.Repeated || len(g.Ops) != 2 || g.Ops[0].Granted != 0 || g.Ops[1].Granted != 1 {
			b.Errorf("%+v, %+v", g.Hold, g.Ops)
		}
		b.free("a k", 10)
		b.free("b k", 9)
	})},
	// The later limit may have another algorithm.
	{"hold-drop-expired-other", onHolds(func(b *caller) {
		for i, c := range []struct {
			text string
			left int64
		}{
			{"a=10/1h,algorithm=sliding_window", 7},
			{"a=10/1h,algorithm=fixed_window,start=first_call", 7},
			{"a=10/1mo,algorithm=fixed_window,start=1 00:00 UTC", 7},
			{"a=1/1h,algorithm=leaky_bucket,max_debt=10", 0},
			{"a=10,algorithm=concurrency", 10},
			{"a=1/1h,burst=2", 0},
		} {
			id := fmt.Sprint("t/", i)
			b.hold(id, second, "a "+id+" 4", "b "+id+" 4")
			b.wait(time.Second)
			b.drop("a")
			b.define(c.text)
			for range 2 {
				if g := b.settle(id, 3, 1); len(g.Ops) != 2 || g.Ops[0].Granted != 3 || g.Ops[0].Remaining != c.left || g.Ops[1].Remaining != 9 {
					b.Errorf("%s: %+v", c.text, g.Ops)
				}
			}
			b.drop("a")
			b.define(slow)
		}
	})},
	// The hold had far more tokens than the limit can count now.
	{"settle-late-most", onHolds(func(b *caller) {
		b.define("a=1000000000000000/1h,algorithm=fixed_window")
		b.hold("h", second, "a k 1000000000000000")
		b.define("a=7/30d,burst=10")
		b.wait(time.Second)
		b.settle("h", 1e15)
		b.free("a k", 0)
	})},
	// A hold of several limits is settled after one of them was dropped.
	{"settle-beside-dropped", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4", "b k 4")
		b.drop("a")
		if g := b.settle("h", 9, 1); len(g.Ops) != 1 || g.Ops[0].Remaining != 9 {
			b.Errorf("%+v", g)
		}
		g, err := b.trySettle("h", 8, 1)
		b.wantErr(store.ErrHoldConflict, err)
		for i := range g.Ops {
			if g.Ops[i].Def == nil {
				b.Error("an op without a definition")
			}
		}
	})},
	// A hold is settled after all of its limits were dropped.
	{"settle-all-dropped", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.drop("a")
		for i := range 2 {
			if g, err := b.trySettle("h", 1); err != nil || !g.Allowed || len(g.Ops) != 0 || g.Hold.Repeated != (i > 0) {
				b.Errorf("settle %d: %v, %+v", i, err, g)
			}
		}
		_, err := b.trySettle("h", 2)
		b.wantErr(store.ErrHoldConflict, err)
	})},
	// Takes from one key in the same hold add up.
	{"hold-takes-add-up", onHolds(func(b *caller) {
		g := &store.Group{Hold: &store.HoldCall{ID: "h", TTL: second}, Ops: []store.Op{b.op(store.VerbTake, "a k 7"), b.op(store.VerbTake, "b k 4")}}
		g.Ops[0].Takes, g.Ops[1].Takes = 1|4, 2
		if g, err := b.decide(g); err != nil || !g.Allowed {
			b.Fatal(err, g)
		}
		_, err := b.trySettle("h", 1, 1)
		b.wantField("costs", err)
		b.settle("h", 1, 1, 2)
		b.free("a k", 7)
		b.free("b k", 9)
	})},
	// Each of these takes is settled to a cost of its own, and repeated settles agree.
	{"settle-takes-again", onHolds(func(b *caller) {
		for _, one := range []bool{true, false} {
			for i, c := range []struct {
				first, same, other []int64
			}{
				{[]int64{6, 0}, []int64{6, 0}, []int64{1, 5}},
				{[]int64{6, 0}, []int64{6, 0}, []int64{0, 6}},
				{nil, []int64{3, 4}, []int64{3, 5}},
				{[]int64{3, 4}, nil, []int64{4, 3}},
			} {
				id, costs := fmt.Sprintf("h%v/%d", one, i), slices.Clone(c.first)
				g := &store.Group{Hold: &store.HoldCall{ID: id, TTL: second}, Ops: []store.Op{b.op(store.VerbTake, "a "+id+" 7")}}
				if g.Ops[0].Takes = 1 | 2; !one {
					g.Ops = append(g.Ops, b.op(store.VerbTake, "b "+id+" 7"))
					g.Ops[1].Takes = 1 | 2
				}
				g, err := b.decide(g)
				if err != nil || !g.Allowed {
					b.Fatal(err, g)
				}
				b.holds[id] = g.Hold.ID
				_, err = b.trySettle(id, 6)
				b.wantField("costs", err)
				b.settle(id, costs...)
				for j := range costs {
					costs[j] = 9 // the slice belongs to the caller
				}
				for range 2 {
					if g := b.settle(id, c.same...); !g.Hold.Repeated {
						b.Errorf("%s, settled to %d and then to %d: %+v", id, c.first, c.same, g.Hold)
					}
				}
				_, err = b.trySettle(id, c.other...)
				b.wantErr(store.ErrHoldConflict, err)
			}
		}
	})},
	// The limit gets a later version.
	{"hold-change-sliding", holdChangeSliding},
	{"hold-change", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 4")
		b.define("a=1/1h,burst=20")
		b.settle("h", 1)
		b.free("a k", 19)
	})},
	// Under a slower version the hold can still be given back after the row would have been
	// full.
	{"hold-change-slower", func(e *env) {
		b := newCaller(e, "a=10/1s,burst=10")
		b.hold("h", second, "a k 5")
		b.define("a=1/1h,burst=10")
		b.wait(10 * time.Second)
		b.take("a k 10", true)
	}},
	// A live hold outlives a full row, which a store may have deleted.
	{"hold-outlives-row", func(e *env) {
		b := newCaller(e, "a=10/1s,burst=10,max_debt=10")
		for _, key := range []string{"a k ", "a l ", "a m "} {
			b.hold(key[2:3], 60*second, key+"5")
		}
		b.wait(10 * time.Second)
		b.do(store.VerbReset, "a l 0")
		for _, key := range []string{"a k ", "a m "} {
			b.take(key+"10", true)
			b.do(store.VerbReserve, key+"10")
		}
		b.settle("k")
		b.settle("l")
		b.settle("m", 0) // none of its tokens are in use
		b.free("a l", 10)
		for _, key := range []string{"a k ", "a m "} {
			if op := b.do(store.VerbCheck, key+"0").Ops[0]; op.Reset != 2*second {
				b.Errorf("%s is full in %d µs, want 2 s", key, op.Reset)
			}
		}
	}},
	// The clock steps back after a hold was given back.
	{"hold-clock-back", onHolds(func(b *caller) {
		b.hold("h", 30*second, "a k 10")
		b.wait(30 * time.Second)
		b.take("a k 10", true)
		b.wait(-20 * time.Second)
		_, err := b.tryExtend("h", 30*second)
		b.wantErr(store.ErrHoldConflict, err)
		b.settle("h", 2)
		b.wait(2*time.Hour + 20*time.Second)
		b.free("a k", 0)
	})},
	{"hold-before-later", func(e *env) {
		b := newCaller(e, "a=1/1s,burst=10,max_debt=100", "b=1/1s,burst=5")
		b.hold("h", 60*second, "a k 10")
		b.do(store.VerbReserve, "a k 5")
		b.wait(4900 * time.Millisecond)
		b.settle("h", 0)
		b.free("a k", 4) // hold-before-later
		b.hold("i", 60*second, "b k 2")
		b.wait(20 * time.Second)
		b.hold("j", 60*second, "b k 5")
		b.settle("i", 0)
		b.free("b k", 0) // remade-row
	}},
}

// concurrencyCases test limits with the algorithm concurrency.
var concurrencyCases = []testCase{
	// At most burst tokens are held at the same time.
	{"concurrency", onConcurrency(func(b *caller) {
		for i := range 5 {
			b.hold(fmt.Sprint(i), int64(10+i)*second, "c k 2")
		}
		g, err := b.tryHold("x", 10*second, "c k 1")
		if err != nil || g.Allowed || g.Ops[0].Retry != 10*second || !g.Ops[0].Bound || g.Ops[0].Reset != 14*second {
			b.Errorf("%v %+v", err, g.Ops[0])
		}
		if g, _ = b.tryHold("x", 10*second, "c k 3"); g.Ops[0].Retry != 11*second {
			b.Errorf("%+v", g.Ops[0])
		}
		if g, _ = b.tryHold("x", 10*second, "c k 11"); !g.Ops[0].Never || g.Ops[0].Retry != 0 || g.Ops[0].Bound {
			b.Errorf("%+v", g.Ops[0])
		}
	})},
	// Settle to any cost releases the held tokens.
	{"concurrency-settle", onConcurrency(func(b *caller) {
		for i, cost := range []int64{0, 3, 4, 5, store.MaxInt} {
			id := fmt.Sprint(i)
			b.hold(id, 10*second, "c k 4")
			b.hold(id+"x", 10*second, "c k 4")
			b.settle(id, cost)
			b.free("c k", 6)
			b.settle(id + "x")
			b.free("c k", 10)
		}
	})},
	// Held tokens come back when holds expire.
	{"concurrency-expires", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 10")
		b.wait(10*time.Second - time.Microsecond)
		if g, _ := b.tryHold("i", 10*second, "c k 10"); g.Allowed || g.Ops[0].Retry != 1 {
			b.Errorf("%+v", g.Ops[0])
		}
		b.wait(time.Microsecond)
		b.hold("i", 10*second, "c k 10")
		b.settle("h", 5) // charges nothing
		b.free("c k", 0)
		b.settle("i")
		b.free("c k", 10)
	})},
	// Expired holds occupy no tokens, whether or not a call has given them back.
	{"concurrency-expires-unused", onConcurrency(func(b *caller) {
		for _, key := range []string{"k", "l", "m"} {
			b.hold(key, second/10, "c "+key+" 10")
		}
		b.override("c", store.Override{Key: "m", Burst: 10})
		b.hold("m2", second, "c m 0", "a m 1")
		for i, after := range []time.Duration{300 * time.Millisecond, 5500 * time.Millisecond, 7 * time.Second} {
			key := []string{"k", "l", "m"}[i]
			b.wait(after - time.Duration(b.clock.Load()-epoch)*time.Microsecond)
			if op := b.do(store.VerbCheck, "c "+key+" 10").Ops[0]; op.Remaining != 10 {
				b.Errorf("after %v: %+v", after, op.Answer)
			}
			b.hold(key+"3", 60*second, "c "+key+" 10")
		}
	})},
	// No tokens come back by time.
	{"concurrency-time", onConcurrency(func(b *caller) {
		b.hold("h", 24*3600*second, "c k 10")
		b.wait(24*time.Hour - 1)
		b.free("c k", 0)
	})},
	// Extend.
	{"concurrency-extend", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 10")
		b.wait(5 * time.Second)
		if _, err := b.tryExtend("h", 20*second); err != nil {
			b.Error(err)
		}
		b.wait(19 * time.Second)
		if g, _ := b.tryHold("i", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != second {
			b.Errorf("%+v", g.Ops[0])
		}
	})},
	// Check.
	{"concurrency-check", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 8")
		if g := b.do(store.VerbCheck, "c k 2"); !g.Allowed || g.Ops[0].Remaining != 2 || g.Ops[0].Reset != 10*second || g.Ops[0].Retry != 0 {
			b.Errorf("%+v", g.Ops[0])
		}
		if g := b.do(store.VerbCheck, "c k 3"); g.Allowed || g.Ops[0].Retry != 10*second || !g.Ops[0].Bound {
			b.Errorf("%+v", g.Ops[0])
		}
		if g := b.do(store.VerbCheck, "c k 2 1"); g.Allowed || g.Ops[0].Retry != 10*second {
			b.Errorf("floor: %+v", g.Ops[0])
		}
	})},
	// Reset.
	{"concurrency-reset", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 8")
		b.do(store.VerbReset, "c k 0")
		b.free("c k", 10)
		b.hold("i", 10*second, "c k 10")
		b.settle("h")
		b.free("c k", 0)
		_, err := b.tryExtend("h", second)
		b.wantErr(store.ErrHoldConflict, err)
	})},
	// Verbs other than holds are errors on a concurrency limit.
	{"concurrency-verbs", onConcurrency(func(b *caller) {
		for _, v := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge, store.VerbRefund} {
			_, err := b.decide(&store.Group{Ops: []store.Op{b.op(v, "c k 1")}})
			b.wantField("limit", err)
		}
	})},
	// A burst below what is held refuses calls until enough holds have ended.
	{"concurrency-change", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 5")
		b.hold("i", 20*second, "c k 5")
		b.define("c=4,algorithm=concurrency")
		if g, _ := b.tryHold("x", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != 20*second || g.Ops[0].Remaining != 0 {
			b.Errorf("%+v", g.Ops[0])
		}
		b.settle("i")
		b.settle("h")
		b.free("c k", 4)
	})},
	// The mode unlimited counts holds without a bound.
	{"concurrency-unlimited", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c:free k 25")
		b.free("c k", 0)
		if g, _ := b.tryHold("x", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != 10*second {
			b.Errorf("%+v", g.Ops[0])
		}
		if op := b.hold("i", 20*second, "c:free k 5").Ops[0]; op.Remaining != store.MaxInt || op.Granted != 5 {
			b.Errorf("%+v", op)
		}
		if op := b.settle("h").Ops[0]; op.Remaining != store.MaxInt || op.Granted != 25 {
			b.Errorf("settle: %+v", op)
		}
		b.free("c k", 5)
		b.wait(20 * time.Second)
		b.hold("x", 10*second, "c k 10")
	})},
	// A temporary override of a concurrency limit ends.
	{"concurrency-override", onConcurrency(func(b *caller) {
		b.hold("h", 30*second, "c k 3")
		b.override("c", store.Override{Key: "k", Burst: 3, Until: b.clock.Load() + 10*second})
		if g, _ := b.tryHold("x", 10*second, "c k 1"); g.Allowed || g.Ops[0].Retry != 10*second {
			b.Errorf("%+v", g.Ops[0])
		}
		if g, _ := b.tryHold("x", 10*second, "c k 8"); g.Allowed || g.Ops[0].Retry != 10*second || g.Ops[0].Never || !g.Ops[0].Bound {
			b.Errorf("%+v", g.Ops[0])
		}
		b.wait(10 * time.Second)
		b.hold("x", 10*second, "c k 7")
	})},
	// Whoever calls when the key's override ends, the tokens of expired holds are free by
	// then.
	{"concurrency-override-expired", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 5")
		b.override("c", store.Override{Key: "k", Burst: 3, Until: b.clock.Load() + 30*second})
		b.wait(10 * time.Second)
		if op := b.do(store.VerbCheck, "c:banned k 2").Ops[0]; !op.Allowed {
			b.Errorf("%+v", op.Answer)
		}
		b.hold("i", 10*second, "c:banned k 2")
	})},
	// The algorithm of a concurrency limit cannot be changed.
	{"concurrency-algorithm", onConcurrency(func(b *caller) {
		for _, text := range []string{"c=10/1s", "a=10,algorithm=concurrency"} {
			l, err := dipwell.ParseLimit(text)
			if err != nil {
				b.Fatal(err)
			}
			_, err = b.l.Define(b.ctx, l, store.OwnerCode)
			var le *store.FieldError
			if !errors.As(err, &le) || le.Field != "algorithm" {
				b.Error(err)
			}
		}
	})},
	// A hold takes from a concurrency limit beside other limits.
	{"concurrency-beside", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "a k 9", "c k 10")
		if g, _ := b.tryHold("x", 10*second, "a k 2", "c k 1"); g.Allowed || g.Ops[0].Retry < 10*second || g.Ops[1].Retry != 10*second {
			b.Errorf("%+v", g.Ops)
		}
		b.settle("h", 2, 1)
		b.hold("i", 10*second, "a k 8", "c k 10")
	})},
	// The clock steps back.
	{"concurrency-clock-back", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 10")
		b.wait(10 * time.Second)
		b.hold("i", 10*second, "c k 10")
		b.wait(-5 * time.Second)
		_, err := b.tryExtend("h", 10*second)
		b.wantErr(store.ErrHoldConflict, err)
		b.settle("h")
		b.free("c k", 0)
	})},
	// The sweep.
	{"concurrency-sweep", onConcurrency(func(b *caller) {
		b.hold("h", 10*second, "c k 4")
		b.hold("i", 20*second, "c k 4")
		b.wait(10 * time.Second)
		b.sweep()
		b.free("c k", 6)
		b.wait(10 * time.Second)
		b.sweep()
	})},
}
