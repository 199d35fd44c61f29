package away

import (
	"testing"

	"github.com/dipwell/dipwell"
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
