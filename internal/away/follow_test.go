package away

import (
	"fmt"
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
// PostgreSQL does. Its keys are full then, and its rate the new one, whether or not a call has
// seen that it was gone.
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
			if err := s.learnLimit(name); err != nil { // as a settle does
				t.Fatal(err)
			}
		}
		now += 60e6
		install(8)
		d, err := l.Take(t.Context(), name, "k", 1)
		if err != nil || d.Capacity != 8 || d.Remaining != 7 {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

// TestLocalRowsOfForgottenVersions changes a limit while keys are used only here. The store
// forgets versions that no row of its own is under. The keys refill at the rate of each
// version that is known when the next call is decided here.
func TestLocalRowsOfForgottenVersions(t *testing.T) {
	for _, past := range []int{16, 40} { // of 41: without the first, and without that of the last call
		now := int64(1e15)
		s, inner := setup(t, func() int64 { return now })
		l, err := dipwell.New(s, store.Limit{Name: "tells the time", Rate: 1, Period: time.Hour, OnStoreError: store.FailLocal})
		if err == nil {
			_, err = l.Take(t.Context(), "tells the time", "k", 1)
		}
		if err != nil {
			t.Fatal(err)
		}
		inner.fail = errAway
		var versions []*store.Version
		install := func(rate int64) {
			d := limittest.Definition(store.Limit{Name: "a", Rate: rate, Period: time.Minute, Burst: 10000, OnStoreError: store.FailLocal})
			d.Number, d.Since = uint32(len(versions)+1), now
			d.Past = versions[max(0, len(versions)-past):]
			inner.Registry().InstallOne("a", []*store.Definition{d})
			versions = append(versions, &store.Version{Number: d.Number, Since: now, Rule: d.Rule, Limit: d.Limit})
		}
		install(1)
		if _, err := l.Take(t.Context(), "a", "taken", 10000); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Hold(t.Context(), time.Hour, "", dipwell.Take{Limit: "a", Key: "held", Cost: 10000}); err != nil {
			t.Fatal(err)
		}
		install(2)
		if _, err := l.Check(t.Context(), "a", "other", 1); err != nil {
			t.Fatal(err)
		}
		for rate := range int64(40) {
			now += 60e6
			install(3 + rate)
		}
		now += 60e6
		want := int64(2 * (40 - past)) // a minute each
		for rate := int64(42 - past); rate <= 42; rate++ {
			want += rate
		}
		for _, key := range []string{"taken", "held"} {
			if d, err := l.Check(t.Context(), "a", key, 0); err != nil || d.Remaining != want {
				t.Errorf("the store knows %d older versions: %d of %s left, %v; want %d", past, d.Remaining, key, err, want)
			}
		}
	}
}

// TestLocalBlockEnds begins a block here, which the store's next answer ends, since the store
// knows of none.
func TestLocalBlockEnds(t *testing.T) {
	now := int64(1e15)
	s, inner := setup(t, func() int64 { return now })
	for _, refusals := range []int{1, 2} {
		name := fmt.Sprint("l", refusals)
		l, err := dipwell.New(s, store.Limit{Name: name, Rate: 2, Period: time.Hour, OnStoreError: store.FailLocal, Block: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		take := func(cost int64, want bool) {
			t.Helper()
			if d, err := l.Take(t.Context(), name, "k", cost); err != nil || d.Allowed != want {
				t.Errorf("%d refusals: %+v, %v; want %v", refusals, d, err, want)
			}
		}
		take(1, true)
		inner.fail = errAway
		take(1, true)
		for range refusals {
			take(1, false)
		}
		inner.fail = nil
		take(1, true) // which it has not seen
		inner.fail = errAway
		now += 1800e6
		take(1, true)
		inner.fail = nil
	}
}

// TestLocalBlockOverOverride begins a block here of a key with a standing override, under which
// the store's next answer is.
func TestLocalBlockOverOverride(t *testing.T) {
	now := int64(1e15)
	s, inner := setup(t, func() int64 { return now })
	l, err := dipwell.New(s, store.Limit{Name: "a", Rate: 2, Period: time.Hour, OnStoreError: store.FailLocal, Block: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.SetOverride(t.Context(), "a", dipwell.Override{Key: "k", Burst: 4}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		away          bool
		cost          int64
		allowed, wait bool
	}{{cost: 2, allowed: true}, {away: true, cost: 2, allowed: true}, {away: true, cost: 1}, {cost: 2, allowed: true}, {away: true, cost: 1, allowed: true, wait: true}} {
		if inner.fail = nil; c.away {
			inner.fail = errAway
		}
		if c.wait {
			now += 1800e6
		}
		if d, err := l.Take(t.Context(), "a", "k", c.cost); err != nil || d.Allowed != c.allowed || d.Allowed && d.Capacity != 4 {
			t.Errorf("call %d: %+v, %v", i, d, err)
		}
	}
}

// TestLocalBlockOfAChild begins blocks here, of a limit with a parent. A refusal by the parent
// begins none. The store's next answer ends the block.
func TestLocalBlockOfAChild(t *testing.T) {
	now := int64(1e15)
	s, inner := setup(t, func() int64 { return now })
	l, err := dipwell.New(s, store.Limit{Name: "tenant", Rate: 4, Period: time.Hour, Parts: 1, OnStoreError: store.FailLocal},
		store.Limit{Name: "user", Rate: 2, Period: time.Hour, Parent: "tenant", OnStoreError: store.FailLocal, Block: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		key     string
		cost    int64
		away    bool
		after   time.Duration
		allowed bool
		blocked bool
		retry   time.Duration
	}{
		{key: "t/a", cost: 1, allowed: true},
		{key: "t/a", cost: 1, away: true, allowed: true},
		{key: "t/a", cost: 1, away: true, blocked: true, retry: time.Hour},
		{key: "t/b", cost: 2, away: true, allowed: true},
		{key: "t/c", cost: 1, away: true, retry: 15 * time.Minute},                                         // by the parent
		{key: "t/c", cost: 2, away: true, after: 30 * time.Minute, allowed: true},                          // 2 came back to it
		{key: "t/c", cost: 1, away: true, blocked: true, retry: time.Hour},                                 // by both
		{key: "t/a", cost: 1, away: true, after: 15 * time.Minute, blocked: true, retry: 15 * time.Minute}, // there is one again
		{key: "t/a", cost: 1, allowed: true},                                                               // the store knows of no block
		{key: "t/a", cost: 1, away: true, allowed: true},
		{key: "t/c", cost: 1, away: true, blocked: true, retry: 45 * time.Minute}, // it has not said so of this key
	} {
		if inner.fail = nil; c.away {
			inner.fail = errAway
		}
		now += c.after.Microseconds()
		d, err := l.Take(t.Context(), "user", c.key, c.cost)
		if err != nil || d.Allowed != c.allowed || d.RetryAfter != c.retry {
			t.Errorf("call %d: %+v, %v; want allowed %v, retry %v", i, d, err, c.allowed, c.retry)
		}
		own := d.Definition
		for _, level := range d.Limits {
			if level.Limit == "user" {
				own = level.Definition
			}
		}
		if blocked := own.Mode == store.Blocked; blocked != c.blocked {
			t.Errorf("call %d: blocked %v; want %v", i, blocked, c.blocked)
		}
	}
}

// TestOverridesOfDroppedLimits drops a limit and defines it again while the store answers, with
// the version that it had, as in PostgreSQL, or the next one, as in other stores. The override
// that an answer had of a key is gone when the store fails next, also if the new limit has
// answered for another key before.
func TestOverridesOfDroppedLimits(t *testing.T) {
	for _, next := range []bool{false, true} {
		now := int64(1e15)
		s, inner := setup(t, func() int64 { return now })
		limit := store.Limit{Name: "a", Rate: 5, Period: time.Hour, OnStoreError: store.FailLocal}
		l, err := dipwell.New(s, limit)
		if err == nil {
			_, err = l.SetOverride(t.Context(), "a", dipwell.Override{Key: "k", Rate: 50})
		}
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), "a", "k", 1); err != nil || d.Capacity != 50 {
			t.Fatalf("%+v, %v", d, err)
		}
		again := *l.Limit("a")
		again.Since += 60e6
		now += 60e6
		if next {
			if err = l.Drop(t.Context(), "a", store.OwnerCode); err == nil {
				_, err = l.Define(t.Context(), limit, store.OwnerCode)
			}
			if err == nil {
				_, err = l.Take(t.Context(), "a", "other", 1)
			}
			if err != nil {
				t.Fatal(err)
			}
		} else {
			inner.Registry().InstallOne("a", []*store.Definition{&again})
		}
		inner.fail = errAway
		if d, err := l.Take(t.Context(), "a", "k", 1); err != nil || d.Capacity != 5 || d.Remaining != 4 {
			t.Errorf("next version %v: %+v, %v", next, d, err)
		}
		if d, err := l.Check(t.Context(), "a", "other", 1); err != nil || next && d.Remaining != 4 {
			t.Errorf("next version %v, another key: %+v, %v", next, d, err)
		}
	}
}
