package dipwell_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// tree is a limiter with users inside tenants inside one global limit, and a clock
// that stands still.
func tree(t *testing.T, more ...dipwell.Limit) *dipwell.Limiter {
	t.Helper()
	st, err := memstore.New(memstore.Config{MaxKeys: 1000, Clock: func() int64 { return 1e15 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	l, err := dipwell.New(st, append([]dipwell.Limit{
		{Name: "user", Rate: 5, Period: time.Minute, Parent: "tenant"},
		{Name: "tenant", Rate: 8, Period: time.Minute, Parent: "global", MaxDebt: dipwell.NoDebt},
		{Name: "global", Rate: 10, Period: time.Minute},
		{Name: "alone", Rate: 2, Period: time.Minute},
	}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// left returns what is free at each level of a user.
func left(t *testing.T, l *dipwell.Limiter, key string) (out [3]int64) {
	t.Helper()
	d, err := l.Check(t.Context(), "user", key, 0)
	if err != nil || len(d.Limits) != 3 {
		t.Fatal(d, err)
	}
	for i := range out {
		out[i] = d.Limits[i].Remaining
	}
	return out
}

func TestParentsTakeTogether(t *testing.T) {
	l := tree(t)
	key := dipwell.Key("acme", "u/7")
	steps := []struct {
		verb    store.Verb
		key     string
		n       int64
		allowed bool
		top     string // the limit that decides
		granted int64
		left    [3]int64 // of acme/u%2F7
	}{
		{store.VerbTake, key, 3, true, "user", 3, [3]int64{2, 5, 7}},
		{store.VerbTake, key, 3, false, "user", 0, [3]int64{2, 5, 7}},
		{store.VerbTake, "acme/b", 5, true, "user", 5, [3]int64{2, 0, 2}},
		{store.VerbTake, key, 1, false, "tenant", 0, [3]int64{2, 0, 2}},
		{store.VerbTakeUpTo, "other/c", 5, true, "global", 2, [3]int64{2, 0, 0}},
		{store.VerbTakeUpTo, "other/c", 5, false, "global", 0, [3]int64{2, 0, 0}},
		{store.VerbRefund, "acme/b", 4, true, "user", 0, [3]int64{2, 4, 4}},
		{store.VerbCheck, key, 2, true, "user", 0, [3]int64{2, 4, 4}},
		{store.VerbCharge, key, 4, true, "user", 4, [3]int64{0, 0, 0}},
		{store.VerbReset, key, 0, true, "user", 0, [3]int64{5, 0, 0}},
	}
	for i, s := range steps {
		var d dipwell.Decision
		err := l.Do(t.Context(), &d, s.verb, dipwell.Take{Limit: "user", Key: s.key, Cost: s.n})
		if err != nil || d.Allowed != s.allowed || d.Limit != s.top || d.Granted != s.granted && s.verb != store.VerbRefund {
			t.Errorf("step %d: %+v, %v", i, d, err)
		}
		if s.verb != store.VerbReset && (len(d.Limits) != 3 || d.Limits[0].Limit != "user" || d.Limits[1].Limit != "tenant" || d.Limits[2].Limit != "global" || d.Limits[2].Key != "") {
			t.Errorf("step %d: limits %+v", i, d.Limits)
		}
		if got := left(t, l, key); got != s.left {
			t.Errorf("step %d leaves %v, want %v", i, got, s.left)
		}
	}
}

// TestTakesOfOneParent checks that a parent that several takes share is asked once, for
// the sum of their costs, and that it is listed after the takes.
func TestTakesOfOneParent(t *testing.T) {
	l := tree(t)
	take := func(limit, key string, n int64) dipwell.Take {
		return dipwell.Take{Limit: limit, Key: key, Cost: n}
	}
	d, err := l.TakeAll(t.Context(), take("user", "acme/a", 4), take("alone", "x", 1), take("user", "acme/b", 5))
	if err != nil || d.Allowed || d.Limit != "tenant" || d.Never != true || d.Cost != 9 {
		t.Errorf("9 of 8: %+v, %v", d, err)
	}
	d, err = l.TakeAll(t.Context(), take("user", "acme/a", 3), take("alone", "x", 1), take("user", "acme/b", 4))
	var got []string
	for _, e := range d.Limits {
		got = append(got, e.Limit+":"+e.Key)
	}
	if err != nil || !d.Allowed || strings.Join(got, " ") != "user:acme/a alone:x user:acme/b tenant:acme global:" ||
		d.Limits[3].Cost != 7 || d.Limits[3].Remaining != 1 || d.Limits[2].Granted != 4 {
		t.Errorf("%s: %+v, %v", got, d, err)
	}
	// The parent is a take too.
	d, err = l.TakeAll(t.Context(), take("global", dipwell.Shared, 1), take("user", "b/a", 1))
	if err != nil || !d.Allowed || len(d.Limits) != 3 || d.Limits[0].Cost != 1 || d.Limits[0].Granted != 1 || d.Limits[0].Remaining != 1 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestPathErrors(t *testing.T) {
	l := tree(t, dipwell.Limit{Name: "region", Rate: 1, Period: time.Minute, Parts: 2}, dipwell.Limit{Name: "site", Rate: 1, Period: time.Minute, Parent: "region"})
	for _, c := range []struct{ limit, key, reason string }{
		{"user", "acme", "has 1 part; "},
		{"user", "acme/u/7", "has 3 parts"},
		{"user", "acme/", "is empty"},
		{"user", "/u7", "is empty"},
		{"user", dipwell.Shared, "has 0 parts"},
		{"user", "", "is empty"},
		{"global", "k", "takes no key"},
		{"region", "eu", "has 1 part; "},
		{"site", "eu/west", "has 2 parts"},
	} {
		for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReset, store.VerbCharge} {
			var d dipwell.Decision
			var field *dipwell.FieldError
			if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: c.limit, Key: c.key, Cost: 1}); !errors.As(err, &field) || field.Field != "key" || !strings.Contains(field.Reason, c.reason) {
				t.Errorf("%s of %s %q: %v", verb, c.limit, c.key, err)
			}
		}
		var d dipwell.Decision
		var field *dipwell.FieldError
		if err := l.DoAll(t.Context(), &d, store.VerbTake, []dipwell.Take{{Limit: "alone", Key: "k"}, {Limit: c.limit, Key: c.key}}); !errors.As(err, &field) || field.Field != "takes[1].key" {
			t.Errorf("in a list: %v", err)
		}
	}
	if d, err := l.Take(t.Context(), "site", "eu/west/1", 1); err != nil || !d.Allowed || d.Limits[1].Key != "eu/west" {
		t.Error(d, err)
	}
	if _, err := l.TakeWith(t.Context(), *limitOf(l, "user"), "acme", 1); err == nil {
		t.Error("TakeWith takes a key that is no path")
	}
	if got := left(t, l, "acme/u7"); got != [3]int64{5, 8, 10} {
		t.Errorf("something was taken: %v", got)
	}
}

func limitOf(l *dipwell.Limiter, name string) *dipwell.Limit { return &l.Limit(name).Limit }

// TestTooManyLevels checks that takes and parents are at most 16 ops.
func TestTooManyLevels(t *testing.T) {
	l := tree(t)
	var takes []dipwell.Take
	for _, c := range "abcdefg" {
		takes = append(takes, dipwell.Take{Limit: "user", Key: string(c) + "/u"})
	}
	if d, err := l.TakeAll(t.Context(), takes...); err != nil || len(d.Limits) != 15 {
		t.Errorf("15 ops: %d, %v", len(d.Limits), err)
	}
	var field *dipwell.FieldError
	if _, err := l.TakeAll(t.Context(), append(takes, dipwell.Take{Limit: "user", Key: "h/u"})...); !errors.As(err, &field) || field.Field != "takes[7].limit" {
		t.Errorf("17 ops: %v", err)
	}
}

// TestReserveWithParents checks that a reservation waits for the level that is due last.
func TestReserveWithParents(t *testing.T) {
	l := tree(t, dipwell.Limit{Name: "team", Rate: 60, Period: time.Minute, Burst: 1}, dipwell.Limit{Name: "member", Rate: 60, Period: time.Minute, Burst: 9, Parent: "team"})
	if d, err := l.Reserve(t.Context(), "member", "m", 1); err != nil || !d.Allowed || d.Delay != 0 {
		t.Fatal(d, err)
	}
	d, err := l.Reserve(t.Context(), "member", "m", 1)
	if err != nil || !d.Allowed || d.Delay != time.Second || d.Reservation == (dipwell.Reservation{}) {
		t.Errorf("%+v, %v", d, err)
	}
	if err := l.Cancel(t.Context(), d.Reservation); err != nil {
		t.Error(err)
	}
	if d, err = l.Check(t.Context(), "member", "m", 0); err != nil || d.Limits[0].Remaining != 8 || d.Limits[1].Remaining != 0 {
		t.Errorf("after Cancel: %+v, %v", d, err)
	}
}

// TestPlanAndFloorOfOneLevel checks that a plan, a floor and an override mean the limit
// that is named, and that an unlimited plan frees its own level only.
func TestPlanAndFloorOfOneLevel(t *testing.T) {
	l := tree(t, dipwell.Limit{Name: "seat", Rate: 3, Period: time.Minute, Parent: "tenant", Plans: dipwell.NewPlans(
		dipwell.Plan{Name: "free", Mode: dipwell.Unlimited}, dipwell.Plan{Name: "wide", Burst: 7})})
	do := func(verb store.Verb, n int64, plan string, floor int64, allowed bool, seat, tenant int64) {
		t.Helper()
		var d dipwell.Decision
		err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "seat", Key: "acme/1", Cost: n, Plan: plan, Floor: floor})
		if err != nil || d.Allowed != allowed || len(d.Limits) != 3 || d.Limits[0].Remaining != seat || d.Limits[1].Remaining != tenant || d.Limits[0].Plan != plan || d.Limits[1].Plan != "" {
			t.Errorf("%s %d of plan %q with a floor of %d: %+v, %v", verb, n, plan, floor, d, err)
		}
	}
	do(store.VerbTake, 2, "", 2, false, 3, 8)
	do(store.VerbTake, 1, "", 2, true, 2, 7) // the tenant has no floor
	do(store.VerbTake, 4, "wide", 0, true, 2, 3)
	do(store.VerbTake, 1, "free", 0, true, store.MaxInt, 2)
	do(store.VerbTakeUpTo, 9, "free", 0, true, store.MaxInt, 0)
	do(store.VerbTake, 1, "free", 0, false, store.MaxInt, 0)
	if _, err := l.SetOverride(t.Context(), "seat", dipwell.Override{Key: "acme", Plan: "free"}); err == nil {
		t.Error("an override of a key that is no seat's")
	}
	if _, err := l.SetOverride(t.Context(), "seat", dipwell.Override{Key: "acme/1", Plan: "free"}); err != nil {
		t.Error(err)
	}
	if d, err := l.Take(t.Context(), "seat", "acme/1", 1); err != nil || d.Allowed || d.Limit != "tenant" || d.Limits[0].Plan != "free" {
		t.Errorf("an override of one level: %+v, %v", d, err)
	}
}
