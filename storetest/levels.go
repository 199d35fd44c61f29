package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// levelCases test limits with parents. The Limiter makes a group of all levels of a
// take, so a store needs only groups that are all or nothing, and the least grant
// of a TakeUpTo.
var levelCases = []testCase{
	{"levels", levels},
	{"levels-take-up-to", levelsTakeUpTo},
	{"levels-take-up-to-above-burst", levelsTakeUpToAboveBurst},
	{"levels-take-up-to-shadow", levelsTakeUpToShadow},
	{"levels-reserve", levelsReserve},
	{"plan-levels", levelsPlan},
	{"race-levels", raceLevels},
}

// tree defines users inside tenants inside one global limit. Cancel and refills
// need a clock that the case moves.
func (e *env) tree(user, tenant, global int64) {
	e.Helper()
	e.define(store.Limit{Name: "global", Rate: global, Period: time.Hour, Shared: true})
	e.define(store.Limit{Name: "tenant", Rate: tenant, Period: time.Hour, Parent: "global"})
	e.define(store.Limit{Name: "user", Rate: user, Period: time.Hour, Parent: "tenant"})
}

// level calls the limit user, and checks whether the call was allowed, what was
// granted, and what is left of the user, the tenant and the global limit.
func (e *env) level(verb store.Verb, key string, n int64, allowed bool, granted int64, left [3]int64) dipwell.Decision {
	e.Helper()
	var d dipwell.Decision
	what := fmt.Sprintf("%s user %s %d", verb, key, n)
	if err := e.l.Do(e.ctx, &d, verb, dipwell.Take{Limit: "user", Key: key, Cost: n}); err != nil {
		e.Fatalf("%s: %v", what, err)
	}
	if d.Allowed != allowed || d.Granted != granted && verb < store.VerbRefund {
		e.Fatalf("%s: allowed %v, granted %d, want %v, %d: %+v", what, d.Allowed, d.Granted, allowed, granted, d)
	}
	c, err := e.l.Check(e.ctx, "user", key, 0)
	if err != nil || len(c.Limits) != 3 {
		e.Fatalf("%s: a check of 0 after it: %+v, %v", what, c, err)
	}
	for i, want := range left {
		if got := c.Limits[i].Remaining; got != want {
			e.Fatalf("%s leaves %d of %s, want %d", what, got, c.Limits[i].Limit, want)
		}
	}
	return d
}

func levels(e *env) {
	e.tree(5, 8, 10)
	e.level(store.VerbTake, "acme/a", 3, true, 3, [3]int64{2, 5, 7})
	if d := e.level(store.VerbTake, "acme/a", 3, false, 0, [3]int64{2, 5, 7}); d.Limit != "user" || d.RetryAfter != 12*time.Minute {
		e.Fatalf("the user refuses: %+v", d)
	}
	e.level(store.VerbTake, "acme/b", 5, true, 5, [3]int64{0, 0, 2})
	if d := e.level(store.VerbTake, "acme/a", 1, false, 0, [3]int64{2, 0, 2}); d.Limit != "tenant" || d.Key != "acme" || d.RetryAfter != 450*time.Second {
		e.Fatalf("the tenant refuses: %+v", d)
	}
	e.level(store.VerbTake, "other/c", 2, true, 2, [3]int64{3, 6, 0})
	if d := e.level(store.VerbCheck, "other/c", 1, false, 0, [3]int64{3, 6, 0}); d.Limit != "global" || d.Key != "" {
		e.Fatalf("the global limit refuses: %+v", d)
	}
	e.level(store.VerbCharge, "other/c", 1, true, 1, [3]int64{2, 5, 0}) // the global limit lacks one token
	e.level(store.VerbRefund, "acme/b", 4, true, 0, [3]int64{4, 4, 3})
	e.level(store.VerbReset, "acme/b", 0, true, 0, [3]int64{5, 4, 3})
	for key, reason := range map[string]string{"acme": "a part too few", "acme/a/x": "a part too many", "acme/": "an empty part", dipwell.Shared: "no key"} {
		var field *dipwell.FieldError
		if d, err := e.l.Take(e.ctx, "user", key, 1); !errors.As(err, &field) || field.Field != "key" || d.Allowed {
			e.Errorf("%s: %+v, %v", reason, d, err)
		}
	}
	e.level(store.VerbCheck, "acme/b", 3, true, 0, [3]int64{5, 4, 3})
}

// A TakeUpTo takes from every level the smallest amount that a level grants.
func levelsTakeUpTo(e *env) {
	e.tree(20, 9, 12)
	e.level(store.VerbTakeUpTo, "a/1", 4, true, 4, [3]int64{16, 5, 8})
	e.level(store.VerbTakeUpTo, "a/1", 10, true, 5, [3]int64{11, 0, 3})
	e.level(store.VerbTakeUpTo, "a/1", 1, false, 0, [3]int64{11, 0, 3})
	e.level(store.VerbTakeUpTo, "b/1", 10, true, 3, [3]int64{17, 6, 0})
	e.level(store.VerbTakeUpTo, "b/1", 0, true, 0, [3]int64{17, 6, 0})
	e.level(store.VerbTakeUpTo, "b/2", 1, false, 0, [3]int64{20, 6, 0})
}

// A level that could never grant the cost also counts for the smallest amount.
func levelsTakeUpToAboveBurst(e *env) {
	e.tree(5, 8, 30)
	for day := range 3 { // first with new rows, then with existing ones
		e.at(time.Duration(day) * 24 * time.Hour)
		e.level(store.VerbTakeUpTo, "a/1", 7, true, 5, [3]int64{0, 3, 25})
		e.level(store.VerbTakeUpTo, "a/2", 9, true, 3, [3]int64{2, 0, 22})
	}
}

// A level in shadow mode counts for the smallest amount while it would allow the call.
func levelsTakeUpToShadow(e *env) {
	e.define(store.Limit{Name: "global", Rate: 12, Period: time.Hour, Shared: true})
	e.define(store.Limit{Name: "seen", Rate: 3, Period: time.Hour, Mode: store.Shadow, Parent: "global"})
	for i, want := range []struct{ cost, granted, left int64 }{{1, 1, 11}, {4, 2, 9}, {4, 0, 5}} {
		d, err := e.l.TakeUpTo(e.ctx, "seen", "a", want.cost)
		if err != nil || !d.Allowed || d.Granted != want.granted {
			e.Fatalf("call %d takes %d: %+v, %v; want %d", i, d.Granted, d, err, want.granted)
		}
		if c, err := e.l.Check(e.ctx, "global", dipwell.Shared, 0); err != nil || c.Remaining != want.left {
			e.Fatalf("call %d leaves %d, %v; want %d", i, c.Remaining, err, want.left)
		}
	}
}

// A parent's plan with callable: children is chosen by calls of its children, but not by its
// own calls.
func levelsPlan(e *env) {
	pro := store.Plan{Name: "pro", Rate: 100, Burst: 100}
	e.must(e.l.Define(e.ctx, store.Limit{Name: "org", Rate: 1, Period: time.Hour, Burst: 10, Parts: 1,
		Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 50, Burst: 50, Children: true}, store.Plan{Name: "team", Burst: 20})}, store.OwnerCode))
	e.must(e.l.Define(e.ctx, store.Limit{Name: "tokens", Rate: 2, Period: time.Hour, Burst: 8, Parent: "org", Plans: store.NewPlans(pro, store.Plan{Name: "team", Burst: 30})}, store.OwnerCode))
	do := func(verb store.Verb, plan string, n int64, allowed bool, child, org int64, decided string) {
		e.Helper()
		var d dipwell.Decision
		err := e.l.Do(e.ctx, &d, verb, dipwell.Take{Limit: "tokens", Key: "acme/u7", Cost: n, Plan: plan})
		if err != nil || d.Allowed != allowed || d.Limits[0].Remaining != child || d.Limits[1].Remaining != org || d.Limits[1].Plan != decided {
			e.Fatalf("%s %d under %q: %+v, %v", verb, n, plan, d, err)
		}
	}
	do(store.VerbTake, "pro", 40, true, 60, 10, "pro")
	do(store.VerbTake, "pro", 11, false, 60, 10, "pro")
	do(store.VerbTake, "team", 11, false, 0, 0, "") // team is a plan of the child; the org's plan is not for children
	do(store.VerbCheck, "", 1, false, 0, 0, "")
	e.at(time.Hour)
	do(store.VerbCheck, "pro", 50, true, 100, 50, "pro")
	if store.AbilitiesOf(e.store).Holds != nil {
		d, err := e.l.Hold(e.ctx, time.Minute, "", dipwell.Take{Limit: "tokens", Key: "acme/u7", Cost: 50, Plan: "pro"})
		if err != nil || !d.Allowed || d.Limits[1].Plan != "pro" || d.Limits[1].Remaining != 0 {
			e.Fatalf("hold: %+v, %v", d, err)
		}
		e.must(e.l.Settle(e.ctx, d.Hold, 20))
		do(store.VerbCheck, "pro", 30, true, 80, 30, "pro")
	}
	_, err := e.l.TakeAll(e.ctx, dipwell.Take{Limit: "org", Key: "acme", Cost: 1, Plan: "pro"})
	if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || !strings.HasSuffix(field.Field, "plan") {
		e.Errorf("a call of the org names pro: %v", err)
	}
	_, err = e.l.TakeAll(e.ctx, dipwell.Take{Limit: "tokens", Key: "acme/u7", Cost: 1}, dipwell.Take{Limit: "org", Key: "acme", Cost: 1})
	if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || field.Field != "takes[0].limit" {
		e.Errorf("a parent beside its child: %v", err)
	}
}

// A reservation of several levels is due when the last level's part is, and Cancel gives back
// to all levels.
func levelsReserve(e *env) {
	e.tree(20, 6, 12)
	e.level(store.VerbTake, "a/1", 6, true, 6, [3]int64{14, 0, 6})
	d := e.level(store.VerbReserve, "a/2", 2, true, 2, [3]int64{18, 0, 4})
	if d.Delay != 20*time.Minute || d.Reservation == (store.Reservation{}) {
		e.Fatalf("2 of a tenant that is empty, at 6 an hour: %+v", d)
	}
	e.must(nil, e.l.Cancel(e.ctx, d.Reservation))
	e.level(store.VerbCheck, "a/2", 0, true, 0, [3]int64{20, 0, 6})
	e.at(10 * time.Minute)
	e.level(store.VerbTake, "a/2", 1, true, 1, [3]int64{19, 0, 7})
}

// Users of one tenant call at the same time: together they take exactly what the
// tenant has.
func raceLevels(e *env) {
	e.define(store.Limit{Name: "tenant", Rate: 40, Period: time.Hour, Parts: 1})
	e.define(store.Limit{Name: "user", Rate: 3, Period: time.Hour, Parent: "tenant"})
	for round := range e.rounds {
		granted := race(e, 16, 4, func(caller, _ int) (int64, error) {
			d, err := e.l.Take(e.ctx, "user", fmt.Sprintf("%d/%d", round, caller), 1)
			return d.Granted, err
		})
		d, err := e.l.Check(e.ctx, "user", fmt.Sprintf("%d/0", round), 0)
		if err != nil {
			e.Fatal(err)
		}
		if granted != 40 || d.Limits[1].Remaining != 0 {
			e.Fatalf("round %d: %d of 40 granted to 16 users with 3 each, and the tenant has %d left", round, granted, d.Limits[1].Remaining)
		}
	}
}
