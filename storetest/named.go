package storetest

import (
	"errors"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// namedCases drop what rows and holds name.
var namedCases = []testCase{
	{"hold-parent-drop", holdParentDrop},
}

// A parent is not dropped while another limit names it. When none does, the drop ends the
// part of a live hold in it.
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

	// Without its child the tenant can be dropped, and the global limit is a child of none.
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
	free("tenant", "acme", 30) // nothing of the holds comes back to it
	e.must(e.l.Settle(e.ctx, last, 8))
	free("tenant", "acme", 30)
	free("global", dipwell.Shared, 30)

	// All limits of a hold are dropped, from below.
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
