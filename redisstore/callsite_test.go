package redisstore_test

import (
	"errors"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestOldVersionsOfVariants checks that a limit that is changed very often keeps the
// versions that buckets under overrides, plans and definitions of call sites name.
func TestOldVersionsOfVariants(t *testing.T) {
	t.Parallel()
	s := newStore(t, client(t), redisstore.Config{Clock: func() int64 { return 1_800_000_000_000_000 }, Poll: -1})
	limit := drained("api", 10)
	limit.Plans = store.NewPlans(store.Plan{Name: "pro", Burst: 20})
	l := limiter(t, s, limit)
	if _, err := l.SetOverride(t.Context(), "api", dipwell.Override{Key: "override", Burst: 20}); err != nil {
		t.Fatal(err)
	}
	site := limit
	site.Burst = 20
	for _, take := range []dipwell.Take{{Limit: "api", Key: "override", Cost: 15}, {Limit: "api", Key: "plan", Plan: "pro", Cost: 15}, {With: &site, Key: "site", Cost: 15}} {
		if d, err := l.TakeAll(t.Context(), take); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	for i := range 530 { // unused versions go beyond 512
		limit.Rate = 1 + int64(i%2)
		if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	for key, want := range map[string]int64{"override": 5, "plan": 0, "site": 0} {
		if d, err := l.Check(t.Context(), "api", key, 0); err != nil || d.Remaining != want {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
}

// TestManyCallSites checks that a limit has at most 256 definitions of call sites that
// buckets name, and that unused ones give way.
func TestManyCallSites(t *testing.T) {
	t.Parallel()
	now := int64(1_800_000_000_000_000)
	db := client(t)
	c := redisstore.Config{Prefix: "sites", Clock: func() int64 { return now }, Poll: -1}
	s := newStore(t, db, c)
	limit := drained("api", 10)
	l := limiter(t, s, limit)
	take := func(l *dipwell.Limiter, burst int64, key string) (dipwell.Decision, error) {
		with := limit
		with.Burst = burst
		return l.TakeWith(t.Context(), with, key, 1)
	}
	for i := range int64(256) {
		if d, err := take(l, 11+i, "k"); err != nil || !d.Allowed && i > 0 && d.Remaining > 0 {
			t.Fatalf("%d: %+v, %v", i, d, err)
		}
	}
	// All but one are unused: they end. Another program sees what remains.
	s2 := newStore(t, db, c)
	l2 := limiter(t, s2)
	for i := range int64(256) {
		burst := 1000 + i
		if i == 0 {
			burst = 11 + 255 // of the bucket k
		}
		key := string(rune('a' + i))
		if _, err := take(l2, burst, key); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	var limitErr *store.FieldError
	if _, err := take(l2, 5000, "x"); !errors.As(err, &limitErr) {
		t.Errorf("the 257th that is used: %v", err)
	}
	if d, err := l.Check(t.Context(), "api", "b", 0); err != nil || d.Remaining != 9 { // under another program's definition: read then
		t.Errorf("%+v, %v", d, err)
	}
}
