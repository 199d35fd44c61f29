package away

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestLocalFollowsDefinitions changes, drops and defines a limit while calls are decided
// here. A call of several keys, and a settle, go by the limits as they are then. A change of
// the mode begins no version.
func TestLocalFollowsDefinitions(t *testing.T) {
	now := int64(1e15)
	s, inner := setup(t, func() int64 { return now })
	a := store.Limit{Name: "a", Rate: 2, Period: 3600e9, OnStoreError: store.FailLocal}
	b := store.Limit{Name: "b", Rate: 20, Period: 3600e9, OnStoreError: store.FailLocal}
	l, err := dipwell.New(s, a, b)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	both := func(key string) []dipwell.Take {
		return []dipwell.Take{{Limit: "a", Key: key, Cost: 1}, {Limit: "b", Key: key, Cost: 1}}
	}
	inner.fail = errAway
	for _, want := range []bool{true, true, false} {
		if d, err := l.TakeAll(t.Context(), both("k")...); err != nil || d.Allowed != want {
			t.Errorf("%+v, %v; want %v", d, err, want)
		}
	}
	for _, mode := range []store.Mode{store.Shadow, store.Enforce} {
		a.Mode = mode
		_, err = l.Define(t.Context(), a, store.OwnerCode)
		check(err)
		if d, err := l.TakeAll(t.Context(), both("k")...); err != nil || d.Allowed != (mode == store.Shadow) {
			t.Errorf("mode %v: %+v, %v", mode, d, err)
		}
	}
	held, err := l.Hold(t.Context(), 1e9, "", both("h")...)
	check(err)
	now += 1e6
	check(l.Drop(t.Context(), "a", store.OwnerCode))
	a.Rate = 10
	_, err = l.Define(t.Context(), a, store.OwnerCode)
	check(err)
	d, err := l.Settle(t.Context(), held.Hold, 1, 1)
	if err != nil || len(d.Limits) != 2 || d.Limits[0].Capacity != 10 || d.Limits[0].Remaining != 9 {
		t.Errorf("settle: %+v, %v", d, err)
	}
}

// TestVersionsBeginAnew drops a limit and defines it again with a version that it has had, as
// PostgreSQL does. Its rate is the new one then, and if a call has seen that it was gone, its keys are full.
func TestVersionsBeginAnew(t *testing.T) {
	now := int64(1e15)
	s, inner := setup(t, func() int64 { return now })
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	inner.fail = errAway
	for name, seen := range map[string]bool{"seen": true, "unseen": false} {
		install := func(rate int64) {
			d := limittest.Definition(store.Limit{Name: name, Rate: rate, Period: time.Hour, OnStoreError: store.FailLocal})
			d.Number, d.Since = 1, now
			inner.Registry().InstallOne(name, []*store.Definition{d})
		}
		install(4)
		if d, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: name, Key: "k", Cost: 4}); err != nil || !d.Allowed || d.Remaining != 0 {
			t.Fatalf("%+v, %v", d, err)
		}
		inner.Registry().InstallOne(name, nil)
		if seen {
			s.forgetDropped() // as a call of another limit does
		}
		now += 60e6
		install(8)
		d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: name, Key: "k", Cost: 1})
		if err != nil || d.Capacity != 8 || seen && d.Remaining != 7 {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}
