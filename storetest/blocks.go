package storetest

import (
	"fmt"
	"math"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// blockCases test limits with the setting block: a call refused for want of tokens blocks its
// key.
var blockCases = []testCase{
	{"block-begins", blockBegins},
	{"block-begins-with-others", blockBeginsWithOthers},
	{"block-begins-not", blockBeginsNot},
	{"block-waits-begin-none", blockWaits},
	{"block-ends", blockEnds},
	{"block-clock-back", blockClockBack},
	{"block-changes-no-row", blockChangesNoRow},
	{"block-by-hand", blockByHand},
	{"block-over-standing", blockOverStanding},
	{"block-reset", blockReset},
	{"block-holds", blockHolds},
	{"block-after-expiry", blockAfterExpiry},
	{"block-redefined", blockRedefined},
	{"block-limits", blockLimits},
}

// blocker is a caller on a limit with a block.
func blocker(e *env, limits ...string) *caller {
	return newCaller(e, append([]string{"login=5/15m,max_debt=0,block=20m,plans=pro:burst=20;callable=false|seen:mode=shadow;callable=false"}, limits...)...)
}

// after returns the time of the store after a given duration, in µs.
func (b *caller) after(d time.Duration) int64 { return b.clock.Load() + d.Microseconds() }

// blocked checks that an op was refused as any call of a key is that is blocked until a
// time, with the given retry.
func (b *caller) blocked(op *store.Op, until int64, retry time.Duration) {
	b.Helper()
	o := op.Def.Override
	switch {
	case o == nil || op.Def.Mode != store.Blocked || o.Kind() != store.AutomaticOverride || o.Until != until || o.Note != "automatic":
		b.Errorf("%s of %s: not under a block until %d: %+v, %+v", op.Verb, op.Key, until, o, op.Answer)
	case op.Allowed || op.Never || op.Bound || op.Retry != retry.Microseconds() || op.Granted != 0 || op.Delay != 0:
		b.Errorf("%s of %s: %+v; want a retry after %v", op.Verb, op.Key, op.Answer, retry)
	}
}

// begins checks that a call is refused and begins a block of its key, and that all later
// calls are told so.
func (b *caller) begins(op *store.Op, length time.Duration) {
	b.Helper()
	until := b.after(length)
	b.blocked(op, until, length)
	call := op.Def.Name + " " + op.Key + " 1"
	for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve} {
		b.blocked(&b.do(verb, call).Ops[0], until, length)
	}
	b.wait(length - time.Microsecond)
	b.blocked(&b.do(store.VerbCheck, call).Ops[0], until, time.Microsecond)
	b.wait(time.Microsecond)
	b.take(call, true)
}

// notBlocked checks that a key is not blocked.
func (b *caller) notBlocked(what, call string) {
	b.Helper()
	if op := &b.do(store.VerbCheck, call).Ops[0]; op.Def.Mode == store.Blocked || op.Def.Override.Of(store.AutomaticOverride) != nil {
		b.Errorf("%s: %+v", what, op.Answer)
	}
}

func blockBegins(e *env) {
	b := blocker(e, "leaky=1/10s,algorithm=leaky_bucket,max_debt=2,block=1m", "debt=1/10s,burst=2,max_debt=2,block=1m",
		"window=3/1h,algorithm=fixed_window,block=90m")
	for _, verb := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve} {
		key := verb.String()
		b.take("login "+key+" 5", true)
		b.begins(&b.do(verb, "login "+key+" 1").Ops[0], 20*time.Minute)
	}
	b.take("login most 5", true)
	b.begins(&b.do(store.VerbTakeUpTo, fmt.Sprint("login most ", int64(store.MaxInt))).Ops[0], 20*time.Minute)
	b.take("login hold 4", true)
	g, err := b.tryHold("one", 30e6, "login hold 2")
	if err != nil || g.Allowed {
		b.Fatalf("a hold of more than there is: %+v, %v", g, err)
	}
	b.begins(&g.Ops[0], 20*time.Minute)

	b.take("window k 3", true)
	b.begins(&b.do(store.VerbTake, "window k 1").Ops[0], 90*time.Minute)
	for range 3 {
		b.take("leaky k 1", true)
	}
	b.begins(&b.do(store.VerbTake, "leaky k 1").Ops[0], time.Minute)
	b.take("leaky up 1", true)
	b.begins(&b.do(store.VerbTakeUpTo, "leaky up 1").Ops[0], time.Minute)
	b.do(store.VerbReserve, "debt k 4")
	b.begins(&b.do(store.VerbReserve, "debt k 1").Ops[0], time.Minute)
	// Other keys of the limit are not blocked, also if a second key is soon after.
	b.take("login a 5", true)
	b.take("login a 1", false)
	b.take("login b 1", true)
	b.notBlocked("another key", "login b 0")
}

// In a group, only a bucket that refused begins a block, and no other.
func blockBeginsWithOthers(e *env) {
	b := blocker(e, "other=5/15m,max_debt=0,block=10m", "top=3/15m,max_debt=0,parts=1", "sub=5/15m,max_debt=0,block=10m,parent=top")
	b.take("login k 5", true)
	g := b.do(store.VerbTake, "login k 1", "other k 1")
	b.blocked(&g.Ops[0], b.after(20*time.Minute), 20*time.Minute)
	if op := &g.Ops[1]; g.Allowed || !op.Allowed || op.Remaining != 5 || op.Granted != 0 {
		b.Errorf("a neighbour: %+v", op.Answer)
	}
	b.notBlocked("refused by a neighbour", "other k 1")
	b.take("login both 5", true)
	b.take("other both 5", true)
	g = b.do(store.VerbTake, "other both 1", "login both 2")
	b.blocked(&g.Ops[0], b.after(10*time.Minute), 10*time.Minute)
	b.blocked(&g.Ops[1], b.after(20*time.Minute), 20*time.Minute)

	take := func(n int64, allowed bool) dipwell.Decision {
		b.Helper()
		d, err := b.l.Take(b.ctx, "sub", "x/k", n)
		if err != nil || d.Allowed != allowed {
			b.Fatalf("take %d: %+v, %v", n, d, err)
		}
		return d
	}
	take(3, true)
	take(1, false)
	b.notBlocked("refused by the parent", "sub x/k 1")
	if d := take(3, false); d.Limits[0].Definition.Mode != store.Blocked || d.Limits[1].Definition.Mode == store.Blocked {
		b.Errorf("refused by both: %+v", d)
	}
	b.notBlocked("the parent", "top x 1")
}

func blockBeginsNot(e *env) {
	b := blocker(e, "dry=5/15m,max_debt=0,block=10m,mode=shadow")
	for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReserve} {
		if op := &b.do(verb, "login k 6").Ops[0]; !op.Never || op.Retry != 0 {
			b.Errorf("never %s: %+v", verb, op.Answer)
		}
	}
	b.take("login k 4", true)
	b.take("login k 1 1", false)
	b.notBlocked("refused by its floor alone", "login k 1")
	b.take("login k 1 5", false)
	b.notBlocked("never for its floor", "login k 1")
	b.take("login price 1", true)
	b.priced(512, store.VerbTake, "login price 4")
	b.notBlocked("refused by its price alone", "login price 4")
	b.do(store.VerbCharge, "login k 3") // in debt
	if op := &b.do(store.VerbCheck, "login k 1").Ops[0]; op.Allowed || op.Retry != 9*60*second || op.Def.Override != nil {
		b.Errorf("a check: %+v", op.Answer)
	}
	for _, verb := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve} {
		b.do(verb, "login k 0")
		b.notBlocked("a call of nothing", "login k 1")
	}
	if op := &b.do(store.VerbCharge, "login k 201").Ops[0]; op.Allowed {
		b.Errorf("too large a charge: %+v", op.Answer)
	}
	b.do(store.VerbRefund, "login k 1")
	b.notBlocked("the verbs that need no tokens", "login k 1")
	op := b.take("login k 1", false) // holds also where a decorator remembers the refused checks
	b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)

	b.take("dry k 5", true)
	if op := b.take("dry k 1", true); !op.Shadow {
		b.Errorf("in shadow mode: %+v", op.Answer)
	}
	b.notBlocked("shadow mode", "dry k 1")
	b.override("login", store.Override{Key: "seen", Plan: "seen"})
	b.take("login seen 5", true)
	b.take("login seen 1", true)
	b.notBlocked("a plan in shadow mode", "login seen 1")

	// A temporary override that exists already is not replaced by a block.
	set := b.override("login", store.Override{Key: "raised", Burst: 10, Until: b.after(time.Minute)})
	b.take("login raised 10", true)
	if op := b.take("login raised 1", false); op.Def.Override == nil || op.Def.Override.ID != set.ID {
		b.Errorf("beside a temporary override: %+v", op.Def.Override)
	}
	b.wait(time.Minute)
	op = b.take("login raised 1", false)
	b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
	// A take with a floor begins a block only if the tokens would be missing without the floor
	// too.
	b.take("login both 5", true)
	op = b.take("login both 1 1", false)
	b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
}

// The attempts of a Wait begin no block, whatever their cost; a block ends the wait.
func blockWaits(e *env) {
	b := blocker(e, "debt=5/15m,max_debt=5,block=20m")
	for _, limit := range []string{"login", "debt"} {
		b.do(store.VerbReserve, limit+" k 5")
		b.do(store.VerbCharge, limit+" k 5")
		for _, within := range []time.Duration{0, time.Minute} {
			var d dipwell.Decision
			if err := b.l.DoWait(b.ctx, &d, []dipwell.Take{{Limit: limit, Key: "k", Cost: 1}}, within); err != nil || d.Allowed {
				b.Errorf("a wait: %+v, %v", d, err)
			}
			b.notBlocked("a wait", limit+" k 1")
		}
		op := b.op(store.VerbReserve, limit+" k 1")
		op.Bounded, op.MaxDelay = true, store.MaxInt
		if _, err := b.decide(&store.Group{Ops: []store.Op{op}, ID: store.Reservation{9}}); err != nil {
			b.Error(err)
		}
		b.notBlocked("a wait without a bound", limit+" k 1")
		b.take(limit+" k 5", false)
		var d dipwell.Decision
		if err := b.l.DoWait(b.ctx, &d, []dipwell.Take{{Limit: limit, Key: "k", Cost: 1}}, 0); err != nil || d.Allowed || d.Definition.Mode != store.Blocked {
			b.Errorf("a wait of a blocked key: %+v, %v", d, err)
		}
	}
	if op := b.take("login other 1", true); op.Remaining != 4 {
		b.Errorf("%+v", op.Answer)
	}
}

// The retry of a blocked call is the later of the block's end and the first time at which
// the row allows it. From the end of the block on, the limit decides, and may begin another
// block.
func blockEnds(e *env) {
	b := newCaller(e, "login=5/15m,max_debt=0,block=1m")
	b.take("login k 5", true)
	op := b.take("login k 1", false)
	b.blocked(&op, b.after(time.Minute), 3*time.Minute)
	op = b.take("login k 2", false)
	b.blocked(&op, b.after(time.Minute), 6*time.Minute)
	if op = b.take("login k 6", false); !op.Never || op.Retry != 0 {
		b.Errorf("more than the limit holds: %+v", op.Answer)
	}
	b.wait(time.Minute)
	b.notBlocked("after its end", "login k 0")
	if list, err := b.overrides().Overrides(b.ctx, b.limits["login"], "", "", 10); err != nil || len(list) > 0 {
		b.Errorf("after its end: %+v, %v", list, err)
	}
	op = b.take("login k 1", false)
	b.blocked(&op, b.after(time.Minute), 2*time.Minute)
	b.sweep()
	b.wait(2 * time.Minute)
	b.sweep()
	b.take("login k 1", true)
	op = b.take("login k 1", false)
	b.blocked(&op, b.after(time.Minute), 3*time.Minute)
	b.wait(time.Hour)
	b.sweep()
	b.free("login k", 5)
}

// A block that begins after the clock has stepped back lasts its full length, though it
// ends before the time of the row.
func blockClockBack(e *env) {
	b := newCaller(e, "login=1/10s,burst=2,max_debt=0,block=10s")
	b.wait(time.Hour)
	b.take("login k 2", true)
	b.wait(-30 * time.Second)
	for _, left := range []time.Duration{40 * time.Second, 30 * time.Second} {
		op := b.take("login k 1", false)
		until := b.after(10 * time.Second)
		b.blocked(&op, until, left)
		b.wait(10*time.Second - time.Microsecond)
		b.blocked(&b.do(store.VerbCheck, "login k 1").Ops[0], until, left-10*time.Second+time.Microsecond)
		b.wait(time.Microsecond)
		b.notBlocked("at its end", "login k 1")
	}
	b.sweep()
	if op := &b.do(store.VerbCheck, "login k 1").Ops[0]; op.Retry != 20e6 {
		b.Errorf("%+v", op.Answer)
	}
	b.wait(20 * time.Second)
	b.take("login k 1", true)
}

// A temporary override set after the clock has stepped back decides until its end, though
// that is before the time of the row. An override that had ended before the clock stepped back
// stays ended.
func overrideClockBack(e *env) {
	b := newCaller(e, "a=1/1s,burst=10,max_debt=0,plans=pro:burst=40")
	b.override("a", store.Override{Key: "ended", Plan: "pro", Until: b.after(5 * time.Second)})
	b.wait(30 * time.Second)
	for _, key := range []string{"k", "l", "ended"} {
		b.take("a "+key+" 10", true)
	}
	b.wait(-28 * time.Second)
	if op := b.take("a ended 1", false); op.Def.Override != nil {
		b.Errorf("an override that had ended: %+v under %+v", op.Answer, op.Def.Override)
	}
	b.override("a", store.Override{Key: "l", Burst: 12})
	for _, key := range []string{"k", "l"} {
		b.override("a", store.Override{Key: key, Plan: "pro", Until: b.after(10 * time.Second)})
		b.take("a "+key+" 5", true)
	}
	b.wait(10*time.Second - time.Microsecond)
	b.sweep()
	b.free("a k", 25)
	b.take("a k 25", true)
	b.take("a l 25", true)
	b.wait(time.Microsecond)
	for key, most := range map[string]int64{"k": 10, "l": 12} { // the row's time is 18 s later
		if op := b.take("a "+key+" 1", false); op.Retry != (18+40+1-most)*1e6 || op.Def.Rule.Burst != most {
			b.Errorf("%s at its end: %+v under %+v", key, op.Answer, op.Def.Override)
		}
	}
	b.sweep()
	b.wait(18 * time.Second)
	b.take("a k 1", false)
	b.wait(30 * time.Second)
	b.free("a k", 0)
	b.free("a l", 2)
	b.retry("a k 1", time.Second)
}

// After a block, a key has the tokens that it would have without it: during the block
// its row refills, and is charged and refunded, under the setting below.
func blockChangesNoRow(e *env) {
	b := newCaller(e, "login=7/15m,max_debt=0,block=10m", "free=7/15m,max_debt=0",
		"window=7/7m,algorithm=fixed_window,start=0s,block=10m", "open=7/7m,algorithm=fixed_window,start=0s",
		"first=7/7m,algorithm=fixed_window,start=first_call,block=10m", "call=7/7m,algorithm=fixed_window,start=first_call")
	for _, l := range [][2]string{{"login", "free"}, {"window", "open"}, {"first", "call"}} {
		all := func(verb store.Verb, n string) (answers [2]store.Answer) {
			for j := range l {
				answers[j] = b.do(verb, l[j]+" k "+n).Ops[0].Answer
			}
			return answers
		}
		b.wait(1234567 * time.Microsecond)
		all(store.VerbTake, "7")
		b.wait(7654321 * time.Microsecond)
		all(store.VerbTake, "3")
		b.wait(time.Minute + time.Microsecond)
		all(store.VerbCharge, "2")
		b.wait(time.Minute)
		all(store.VerbRefund, "1")
		for range 12 {
			b.wait(58 * time.Second)
			if a := all(store.VerbCheck, "0"); a[0].Remaining != a[1].Remaining || a[0].Reset != a[1].Reset {
				b.Errorf("%s: %+v; without a block %+v", l[0], a[0], a[1])
			}
		}
		b.notBlocked("after its end", l[0]+" k 1")
	}
}

// A block is listed, ended and replaced like any other override.
func blockByHand(e *env) {
	b := blocker(e)
	block := func(key string) store.Op {
		b.Helper()
		b.take("login "+key+" 5", true)
		op := b.take("login "+key+" 1", false)
		b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
		return op
	}
	op := block("k")
	list, err := b.overrides().Overrides(b.ctx, b.limits["login"], "", "", 10)
	if err != nil || len(list) != 1 || list[0].Key != "k" || list[0].Kind() != store.AutomaticOverride || list[0].Until != op.Def.Override.Until || list[0].Note != "automatic" {
		b.Errorf("the list: %+v, %v", list, err)
	}
	if b.endKind("login", "k", store.StandingOverride) != nil || b.endKind("login", "other", store.AutomaticOverride) != nil {
		b.Error("ended what is not there")
	}
	b.wait(3 * time.Minute)
	if o := b.endKind("login", "k", store.AutomaticOverride); o == nil || o.Until != op.Def.Override.Until || o.Kind() != store.AutomaticOverride {
		b.Errorf("ended: %+v", o)
	}
	b.take("login k 1", true) // the token that came back in three minutes
	op = b.take("login k 1", false)
	b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
	for i, kind := range []store.OverrideKind{store.AnyOverride, store.TemporaryOverride} {
		if o := b.endKind("login", "k", kind); o == nil {
			b.Errorf("%d: nothing ended", i)
		}
		b.take("login k 1", false)
	}
	// A temporary override that is set replaces a block, and no block begins over it.
	block("raised")
	set := b.override("login", store.Override{Key: "raised", Burst: 7, Until: b.after(time.Hour)})
	if set.Replaced.Of(store.AutomaticOverride) == nil {
		b.Errorf("replaced %+v", set.Replaced)
	}
	b.take("login raised 2", true)
	b.take("login raised 1", false)
	if o := b.endKind("login", "raised", store.AutomaticOverride); o != nil {
		b.Errorf("ended %+v", o)
	}
	// Only a refusal begins a block.
	_, err = b.overrides().SetOverride(b.ctx, b.limits["login"], store.Override{Key: "x", Until: b.after(time.Hour), Note: "automatic", ID: 5})
	b.wantField("plan", err)
}

// A standing override lies under a block, and decides again at its end.
func blockOverStanding(e *env) {
	b := blocker(e)
	b.override("login", store.Override{Key: "plan", Plan: "pro"})
	b.override("login", store.Override{Key: "numbers", Burst: 8})
	for key, burst := range map[string]int64{"plan": 20, "numbers": 8} {
		call := "login " + key + " "
		b.do(store.VerbTake, call+"5")
		b.do(store.VerbTakeUpTo, call+"20")
		op := b.take(call+"1", false)
		b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
		if o := op.Def.Override; o.Under == nil || op.Def.Rule.Burst != burst {
			b.Errorf("%s: over %+v, with a burst of %d", key, o.Under, op.Def.Rule.Burst)
		}
		b.wait(19 * time.Minute)
		if op := &b.do(store.VerbCheck, call+"7").Ops[0]; op.Remaining != 6 {
			b.Errorf("%s: %+v", key, op.Answer)
		}
		b.wait(time.Minute)
		if op := b.take(call+"6", true); op.Def.Override.Of(store.StandingOverride) == nil || op.Def.Rule.Burst != burst {
			b.Errorf("%s: after its end under %+v", key, op.Def.Override)
		}
	}
	// A standing override can be set, and ended, below a block.
	b.take("login k 5", true)
	op := b.take("login k 1", false)
	until := op.Def.Override.Until
	b.override("login", store.Override{Key: "k", Burst: 9})
	op = b.take("login k 1", false)
	b.blocked(&op, until, 20*time.Minute)
	if op.Remaining != 4 {
		b.Errorf("a higher burst below: %+v", op.Answer)
	}
	b.endKind("login", "k", store.StandingOverride)
	op = b.take("login k 1", false)
	b.blocked(&op, until, 20*time.Minute)
	b.override("login", store.Override{Key: "k", Burst: 9})
	b.endKind("login", "k", store.AutomaticOverride)
	b.take("login k 4", true)
}

// Reset ends a block, and leaves the overrides that people set.
func blockReset(e *env) {
	b := blocker(e)
	b.override("login", store.Override{Key: "under", Burst: 6})
	b.override("login", store.Override{Key: "raised", Burst: 6, Until: b.after(time.Hour)})
	for key, burst := range map[string]int64{"k": 5, "under": 6, "raised": 6} {
		call := "login " + key + " "
		b.do(store.VerbTakeUpTo, call+"20")
		b.take(call+"1", false)
		if op := &b.do(store.VerbReset, call+"0").Ops[0]; !op.Allowed || op.Def.Mode == store.Blocked || op.Remaining != burst || op.Def.Rule.Burst != burst {
			b.Errorf("reset of %s: %+v under %+v", key, op.Answer, op.Def.Override)
		}
		b.free("login "+key, burst)
		if op := b.take(call+"1", true); (op.Def.Override != nil) != (burst == 6) {
			b.Errorf("%s: after a reset under %+v", key, op.Def.Override)
		}
	}
}

// Holds made before a block are settled, extended and expire during it.
func blockHolds(e *env) {
	b := blocker(e)
	b.hold("a", 60e6, "login k 3")
	b.hold("b", 60e6, "login k 2")
	op := b.take("login k 1", false)
	b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
	if g := b.hold("a", 60e6, "login k 3"); !g.Hold.Repeated {
		b.Error("not repeated")
	}
	if _, err := b.tryHold("c", 60e6, "login k 1"); err != nil {
		b.Error(err)
	}
	if op := &b.settle("a", 1).Ops[0]; op.Remaining != 2 {
		b.Errorf("settled: %+v", op.Answer)
	}
	if _, err := b.tryExtend("b", 90e6); err != nil {
		b.Error(err)
	}
	b.wait(91 * time.Second)
	b.sweep()
	b.free("login k", 4)
	op = b.take("login k 1", false)
	b.blocked(&op, op.Def.Override.Until, 20*time.Minute-91*time.Second)
	b.wait(20*time.Minute - 91*time.Second)
	b.take("login k 5", true)
}

// A block outlives a change of its limit; the new definition decides about the row.
// The refusal that begins a block gives back an expired hold, but only once.
func blockAfterExpiry(e *env) {
	b := blocker(e, "wait=1/1h,burst=5,max_debt=5,block=20m", "other=1/1h,burst=5,max_debt=5")
	b.hold("h", 60e6, "login k 2")
	b.take("login k 3", true)
	b.hold("g", 600e6, "wait k 1")
	b.hold("i", 60e6, "wait k 1")
	b.take("wait k 3", true)
	b.do(store.VerbReserve, "wait k 3", "other k 1")
	b.do(store.VerbCharge, "wait k 1")
	b.wait(time.Minute)
	if op := b.take("login k 3", false); op.Remaining != 2 {
		b.Errorf("of a hold of 2: %+v", op.Answer)
	}
	b.free("login k", 2)
	full := 8*time.Hour - time.Minute // time until 8 of 9 tokens are back
	g, err := b.tryHold("j", 60e6, "other k 1", "wait k 1")
	if err != nil || g.Allowed || g.Ops[1].Reset != full.Microseconds() {
		b.Errorf("of a hold of 1: %+v, %v", g.Ops[1].Answer, err)
	}
	if op := b.do(store.VerbCheck, "wait k 0").Ops[0]; op.Reset != full.Microseconds() {
		b.Errorf("then: %+v", op.Answer)
	}
}

func blockRedefined(e *env) {
	b := blocker(e)
	block := func(key string) int64 {
		b.Helper()
		b.do(store.VerbTakeUpTo, "login "+key+" 100")
		op := b.take("login "+key+" 1", false)
		return op.Def.Override.Of(store.AutomaticOverride).Until
	}
	until := block("k")
	b.define("login=5/15m,max_debt=0,block=1m")
	op := b.take("login k 1", false)
	b.blocked(&op, until, 20*time.Minute)
	b.define("login=10/10m,burst=20,max_debt=0,block=1m")
	op = b.take("login k 1", false)
	b.blocked(&op, until, 20*time.Minute)
	if op.Remaining != 15 {
		b.Errorf("%+v", op.Answer)
	}
	b.define("login=10/10m,burst=20,max_debt=0")
	op = b.take("login k 1", false)
	b.blocked(&op, until, 20*time.Minute)
	b.take("login other 20", true)
	b.take("login other 1", false)
	b.notBlocked("without the setting", "login other 1")
	b.wait(20 * time.Minute)
	b.take("login k 20", true)
	b.define("login=10/10m,burst=20,max_debt=0,block=20m")
	op = b.take("login k 1", false)
	b.blocked(&op, b.after(20*time.Minute), 20*time.Minute)
	b.drop("login")
	b.define("login=10/10m,burst=20,max_debt=0,block=20m")
	b.take("login k 20", true)
}

// A block can be defined only for limits where it hits nobody but the key that ran out.
func blockLimits(e *env) {
	b := newCaller(e, "old=1/1s,parts=1", "child=1/1s,parent=old", "plain=1/1s,plans=pro:rate=2")
	for _, text := range []string{
		"x=1/1s,block=10m,shared=true", "x=1/1s,burst=10,block=10m,shards=2", "x=100/1s,burst=100,block=10m,lease=10ms",
		"x=1/1s,block=10m,adaptive=floor=1;errors=1%", "x=1/1s,block=10m,plans=pro:rate=2", "x=1/1s,block=10m,plans=pro:rate=2;callable=children",
		"x=5,algorithm=concurrency,block=10m", "x=5/1m,algorithm=sliding_window,block=10m", "old=1/1s,block=10m", "plain=1/1s,block=10m,plans=pro:rate=2",
	} {
		l, err := dipwell.ParseLimit(text)
		if err == nil {
			_, err = b.l.Define(b.ctx, l, store.OwnerCode)
		}
		b.wantField("block", err)
	}
	for _, length := range []time.Duration{time.Microsecond, 367 * 24 * time.Hour, -time.Second, time.Minute + 1, math.MaxInt64} {
		_, err := b.l.Define(b.ctx, store.Limit{Name: "x", Rate: 1, Period: time.Second, Block: length}, store.OwnerCode)
		b.wantField("block", err)
	}
	b.define("login=5/15m,block=366d,plans=pro:rate=9;callable=false")
	_, err := b.l.Define(b.ctx, store.Limit{Name: "below", Rate: 1, Period: time.Second, Parent: "login"}, store.OwnerCode)
	b.wantField("block", err)
	_, err = b.l.Define(b.ctx, store.Limit{Name: "login", Rate: 5, Period: 15 * time.Minute, Block: time.Minute, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 9})}, store.OwnerCode)
	b.wantField("block", err)
	if d := b.l.Limit("login"); d == nil || d.Block != 366*24*time.Hour {
		b.Errorf("after a refused change: %+v", d)
	}
}
