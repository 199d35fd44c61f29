package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// namedCases drop parents and plans that are named in rows, holds and overrides.
var namedCases = []testCase{
	{"hold-parent-drop", holdParentDrop},
	{"override-plan-drop", overridePlanDrop},
	{"override-unfit", overrideUnfit},
	{"override-unfit-race", overrideUnfitRace},
	{"hold-plan-drop", holdPlanDrop},
}

// A parent cannot be dropped while another limit names it. When none does, the drop ends
// the part of a live hold in the parent.
func holdParentDrop(e *env) {
	e.tree(20, 30, 40)
	take := func(n int64) dipwell.Take { return dipwell.Take{Limit: "user", Key: "acme/a", Cost: n} }
	held := func(n int64) string {
		e.Helper()
		d, err := e.l.Hold(e.ctx, time.Minute, "", take(n))
		if err != nil || !d.Allowed {
			e.Fatalf("hold %d: %+v, %v", n, d, err)
		}
		return d.Hold
	}
	first, second, last := held(4), held(5), held(6)
	for _, name := range []string{"tenant", "global"} {
		var bad *dipwell.FieldError
		if err := e.l.Drop(e.ctx, name, store.OwnerCode); !errors.As(err, &bad) || bad.Field != "parent" || bad.Limit != name {
			e.Fatalf("a drop of the parent %s: %v", name, err)
		}
	}
	e.level(store.VerbCheck, "acme/a", 0, true, 0, [3]int64{5, 15, 25})
	e.must(e.l.Settle(e.ctx, first, 1))
	e.level(store.VerbCheck, "acme/a", 0, true, 0, [3]int64{8, 18, 28})

	// Without its child the tenant can be dropped, and the global limit has no more children.
	e.must(e.l.Define(e.ctx, store.Limit{Name: "user", Rate: 20, Period: time.Hour, Parent: "global"}, store.OwnerCode))
	e.must(nil, e.l.Drop(e.ctx, "tenant", store.OwnerCode))
	if _, err := e.l.Check(e.ctx, "tenant", "acme", 0); !errors.Is(err, store.ErrUnknownLimit) {
		e.Fatalf("a check of a dropped limit: %v", err)
	}
	free := func(limit, key string, want int64) {
		e.Helper()
		d, err := e.l.Check(e.ctx, limit, key, 0)
		if err != nil || d.Limits != nil && d.Limits[0].Remaining != want || d.Limits == nil && d.Remaining != want {
			e.Fatalf("%s %q: %+v, %v; want %d remaining", limit, key, d, err, want)
		}
	}
	e.must(e.l.Settle(e.ctx, second, 1))
	free("global", dipwell.Shared, 32)
	e.must(e.l.Define(e.ctx, store.Limit{Name: "tenant", Rate: 30, Period: time.Hour, Parent: "global"}, store.OwnerCode))
	free("tenant", "acme", 30) // none of the held tokens come back to it
	e.must(e.l.Settle(e.ctx, last, 8))
	free("tenant", "acme", 30)
	free("global", dipwell.Shared, 30)

	// All limits of a hold are dropped, the lowest level first.
	lost := []string{}
	e.must(e.l.Define(e.ctx, store.Limit{Name: "user", Rate: 20, Period: time.Hour, Parent: "tenant"}, store.OwnerCode))
	for range 2 {
		d, err := e.l.Hold(e.ctx, time.Minute, "", dipwell.Take{Limit: "user", Key: "other/a", Cost: 1})
		e.must(d, err)
		lost = append(lost, d.Hold)
	}
	for _, name := range []string{"user", "tenant", "global"} {
		e.must(nil, e.l.Drop(e.ctx, name, store.OwnerCode))
	}
	if _, err := e.l.Take(e.ctx, "user", "other/a", 1); !errors.Is(err, store.ErrUnknownLimit) {
		e.Fatalf("a take of a dropped limit: %v", err)
	}
	for _, id := range lost {
		if d, err := e.l.Settle(e.ctx, id, 1); err != nil || !d.Allowed || len(d.Limits) > 0 {
			e.Fatalf("settle of a hold whose limits are dropped: %+v, %v", d, err)
		}
	}
	e.tree(5, 8, 10)
	e.level(store.VerbTake, "other/a", 5, true, 5, [3]int64{0, 3, 5})
}

// A row under a plan that is dropped is converted to the base definition of the limit.
// Callers who name the plan get an error that charges nothing.
func overridePlanDrop(e *env) {
	b := newCaller(e, "a=1/1s,burst=10,max_debt=20,plans=pro:rate=5;burst=50|banned:mode=blocked")
	b.override("a", store.Override{Key: "o", Plan: "pro"})
	b.override("a", store.Override{Key: "x", Plan: "banned"})
	b.take("a:pro k 45", true)
	b.take("a o 45", true)
	b.take("a x 1", false)
	b.wait(time.Second) // 40 used
	b.endOverride("a", "o")
	b.endOverride("a", "x")
	b.define("a=1/1s,burst=10,max_debt=20")
	b.take("a x 1", true)
	for _, key := range []string{"k", "o"} {
		var d dipwell.Decision
		var bad *dipwell.FieldError
		err := e.l.Do(e.ctx, &d, store.VerbTake, dipwell.Take{Limit: "a", Key: key, Cost: 1, Plan: "pro"})
		if !errors.As(err, &bad) || bad.Field != "plan" || !errors.Is(err, store.ErrUnknownPlan) || d.Allowed {
			e.Fatalf("a plan that was dropped, of %s: %+v, %v", key, d, err)
		}
	}
	for _, key := range []string{"k", "o"} {
		if op := b.do(store.VerbCheck, "a "+key+" 0").Ops[0]; op.Def.Rule.Burst != 10 || op.Reset != 40*second {
			e.Errorf("%s: a burst of %d, full after %d µs", key, op.Def.Rule.Burst, op.Reset)
		}
	}
	b.retry("a k 1", 31*time.Second)
	b.define("a=1/1s,burst=10,max_debt=20,plans=pro:rate=5;burst=50")
	b.override("a", store.Override{Key: "o", Plan: "pro"})
	b.take("a o 10", true)
}

// A change of a limit that would make an override invalid is refused, and the error names the
// first key with such an override. Overrides that have ended, or belong to other limits, do
// not count.
func overrideUnfit(e *env) {
	b := newCaller(e, "a=1/1s,burst=10,plans=pro:rate=5;burst=50|gold:burst=90", "w=1/1s,burst=10,plans=pro:rate=7")
	for _, key := range []string{"k2", "k1", "k3"} {
		b.override("a", store.Override{Key: key, Plan: "pro"})
	}
	b.override("a", store.Override{Key: "k0", Plan: "gold", Until: b.clock.Load() + 10*second})
	b.override("a", store.Override{Key: "k1", Rate: 2, Until: b.clock.Load() + 30*second})
	unfit := func(field, key, text string) {
		b.Helper()
		l, err := dipwell.ParseLimit(text)
		if err == nil {
			_, err = b.l.Define(b.ctx, l, store.OwnerCode)
		}
		if b.wantField(field, err); err != nil && !strings.Contains(err.Error(), fmt.Sprintf("the override of key %q", key)) {
			b.Errorf("%v does not name key %s", err, key)
		}
	}
	const rest = "a=1/1s,burst=10,plans="
	unfit("plans", "k1", rest+"gold:burst=90") // the standing override, which lies below one with numbers
	unfit("plans", "k0", rest+"pro:rate=5;burst=50")
	b.take("a k2 50", true)
	b.wait(10 * time.Second)
	b.define(rest + "pro:rate=5;burst=50") // the override of k0 has ended
	b.define(rest + "pro:rate=6;burst=50")
	b.define("w=1/1s,burst=10")
	b.override("a", store.Override{Key: "m", Burst: 9e9})
	b.override("a", store.Override{Key: "n", Burst: 9e9})
	unfit("burst", "m", "a=999983/30d,burst=10,plans=pro:rate=6;burst=50")
	b.endOverride("a", "m")
	unfit("burst", "n", "a=999983/30d,burst=10,plans=pro:rate=6;burst=50")
	b.endOverride("a", "n")
	b.define("a=999983/30d,burst=10,plans=pro:rate=6;burst=50")
	b.override("w", store.Override{Key: "x", Rate: 3, Period: time.Minute})
	unfit("per", "x", "w=1/1s,burst=10,algorithm=fixed_window")
}

// If an override and a change that it does not fit are made at the same time, at most one of
// them is in force afterwards. A store without locks may refuse both of them.
func overrideUnfitRace(e *env) {
	b := newCaller(e, "a=1/1s,burst=10,plans=pro:rate=5", "b=1/1s")
	b.override("a", store.Override{Key: "other", Rate: 3})
	for i := range 20 {
		b.define("a=1/1s,burst=10,plans=pro:rate=5")
		o := store.Override{Key: fmt.Sprint("k", i), Plan: "pro"}
		var start, done sync.WaitGroup
		start.Add(1)
		var set, changed error
		done.Go(func() {
			start.Wait()
			_, set = b.overrides().SetOverride(b.ctx, b.limits["a"], o)
		})
		done.Go(func() {
			start.Wait()
			_, changed = b.l.Define(b.ctx, dipwell.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 10}, store.OwnerCode)
		})
		start.Done()
		done.Wait()
		if set == nil && changed == nil {
			e.Errorf("round %d: the override is set, and the limit has changed", i)
		}
		if set != nil {
			b.wantField("plan", set)
		}
		if changed != nil {
			b.wantField("plans", changed)
		}
		b.endOverride("a", o.Key)
	}
}

// A hold under a dropped plan is settled, given back and listed as before.
func holdPlanDrop(e *env) {
	b := newCaller(e, "a=1/1h,burst=10,max_debt=20,plans=pro:rate=1;burst=50")
	for _, id := range []string{"less", "more", "expires"} {
		b.hold(id, 60*second, "a:pro "+id+" 30")
	}
	b.define("a=1/1h,burst=10,max_debt=20")
	b.settle("less", 4)
	b.free("a less", 6)
	b.settle("more", 33)
	if op := b.do(store.VerbCheck, "a more 0").Ops[0]; op.Reset <= 32*3600*second || op.Reset > 33*3600*second {
		e.Errorf("full after %d µs, want nearly 33 h", op.Reset)
	}
	b.take("a expires 1", false)
	b.wait(time.Minute)
	b.take("a expires 10", true)
}
