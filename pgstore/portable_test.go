package pgstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestPortableAgreesWithModel plays random histories of plans, overrides, holds,
// reservations and changed limits.
func TestPortableAgreesWithModel(t *testing.T) {
	for seed := range uint64(8) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			now := int64(1e15)
			s := newStore(t, portablePool(t), pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
			limittest.Agree(t, s, &now, seed, 400, limittest.Differences{})
		})
	}
}

// TestPortableAbsentAtStart checks what a lazy store can do once its server answers, if
// its tables are portable.
func TestPortableAbsentAtStart(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "fsync=off")
	ctx := context.Background()
	if err := migratedPortable(server.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	s, err := pgstore.Open(ctx, server.DSN("postgres"), pgstore.Config{Lazy: true, Poll: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ab := s.Abilities()
	l, err := dipwell.New(s, store.Limit{Name: "a", Rate: 5, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovered", func() bool {
		d, err := l.Take(ctx, "a", "k", 1)
		return err == nil && d.Allowed && d.Source == store.SourceStore
	})
	d := ab.Limits.Registry().Lookup("a")
	if _, err := ab.Overrides.SetOverride(ctx, d, store.Override{Key: "k", Burst: 100}); err != nil {
		t.Error(err)
	}
	if list, err := ab.Overrides.Overrides(ctx, d, "", "", 10); err != nil || len(list) != 1 {
		t.Errorf("overrides: %v %v", list, err)
	}
	if _, err := l.Hold(ctx, time.Minute, "h", dipwell.Take{Limit: "a", Key: "k", Cost: 3}); err != nil {
		t.Error(err)
	}
	if list, err := ab.Holds(ctx, d, "k"); err != nil || len(list) != 1 {
		t.Errorf("holds: %v %v", list, err)
	}
	if ended, err := ab.Overrides.EndOverride(ctx, d, "k", store.AnyOverride); err != nil || ended == nil {
		t.Errorf("end override: %v %v", ended, err)
	}
}

// TestPortableTakeByPlan counts the statements of a take by a plan.
func TestPortableTakeByPlan(t *testing.T) {
	config := portablePool(t).Config()
	sent := &countingTracer{}
	config.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}),
		store.Limit{Name: "a", Rate: 5, Period: time.Hour, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 10})})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		before := sent.n
		d, err := l.TakeAll(context.Background(), dipwell.Take{Limit: "a", Key: "k", Cost: 1, Plan: "pro"})
		if err != nil || d.Plan != "pro" || d.Remaining != 9-i || sent.n-before != 1 {
			t.Errorf("take %d: %+v %v, %d statements", i, d, err, sent.n-before)
		}
	}
}

// TestPortableTakeBesideHolds checks that a take of a key with live holds is one statement,
// which lowers what they can give back.
func TestPortableTakeBesideHolds(t *testing.T) {
	config := portablePool(t).Config()
	sent := &countingTracer{}
	config.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	now, ctx := int64(1e15), t.Context()
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1, Clock: func() int64 { return now }}), store.Limit{Name: "a", Rate: 1, Period: time.Second, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"h1", "h2"} {
		if d, err := l.Hold(ctx, time.Minute, id, dipwell.Take{Limit: "a", Key: "k", Cost: 5}); err != nil || !d.Allowed {
			t.Fatalf("%+v %v", d, err)
		}
	}
	now += 8e6 // 2 of 10 are still used
	before := sent.n
	if d, err := l.Take(ctx, "a", "k", 4); err != nil || d.Remaining != 14 || sent.n-before != 1 {
		t.Errorf("%+v %v, %d statements", d, err, sent.n-before)
	}
	if d, err := l.Settle(ctx, "h1", 0); err != nil || d.Remaining != 16 {
		t.Errorf("a settle of 5, of which 2 had not come back by time: %+v %v", d, err)
	}
}

// TestPortableKeepsVersionsOfOverrides checks that a sweep keeps the version of a
// limit that an override was compiled of, as long as its row was not written under a
// later one.
func TestPortableKeepsVersionsOfOverrides(t *testing.T) {
	pool := portablePool(t)
	now := int64(1e15)
	s := newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
	ctx, ab := context.Background(), s.Abilities()
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	define := func(rate int64) *store.Definition {
		t.Helper()
		d, err := s.Define(ctx, store.Limit{Name: "a", Rate: rate, Period: time.Hour, Burst: 10}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		now += 30 * 60e6
		for range 3 {
			if _, err := ab.Sweep(ctx, 1000); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	first := func() (number int) {
		if err := pool.QueryRow(ctx, "select coalesce(definition::json->'past'->0->>'number', definition::json->'present'->>'number')::int from dipwell.limits").Scan(&number); err != nil {
			t.Fatal(err)
		}
		return number
	}
	d := define(1)
	if _, err := ab.Overrides.SetOverride(ctx, d, store.Override{Key: "k", Rate: 2, Burst: 100}); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "a", "k", 100); err != nil || !d.Allowed {
		t.Fatalf("%+v %v", d, err)
	}
	define(5)
	define(6)
	if n := first(); n != 1 {
		t.Errorf("the oldest version is %d", n)
	}
	if d, err := l.Take(ctx, "a", "k", 2); err != nil || !d.Allowed || d.Remaining != 0 { // 2 an hour
		t.Errorf("%+v %v", d, err)
	}
	define(7)
	define(8)
	if n := first(); n != 3 {
		t.Errorf("the oldest version is %d after the row was written under version 3", n)
	}
}

// TestPortableReservedAgain makes a reservation with the id of one that a Reset ended.
func TestPortableReservedAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t, portablePool(t), pgstore.Config{Poll: -1})
	def, err := s.Define(t.Context(), store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 2, MaxDebt: 5}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	for i, verb := range []store.Verb{store.VerbReserve, store.VerbReset, store.VerbReserve} {
		var b store.Batch
		g, op := b.Single()
		op.Def, op.Key, op.Verb = def, "k", verb
		if verb == store.VerbReserve {
			g.ID, op.Cost = store.Reservation{1}, 3
		}
		if err := s.Apply(t.Context(), &b); err != nil || g.Err != nil || !g.Allowed || g.Reserved != (verb == store.VerbReserve) {
			t.Errorf("call %d: %+v, %v", i, g, err)
		}
	}
}

// TestPortableRetiresTogether checks that a sweep deletes the old versions of all limits in one
// change, and the next sweep finds none.
func TestPortableRetiresTogether(t *testing.T) {
	t.Parallel()
	pool := portablePool(t)
	now := int64(1e15)
	s := newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
	for rate := range int64(3) {
		for i := range 10 {
			if _, err := s.Define(t.Context(), store.Limit{Name: fmt.Sprint("limit", i), Rate: rate + 1, Period: time.Hour}, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
		}
		now += time.Hour.Microseconds()
	}
	before := number(t, pool, pgstore.RevisionSQL)
	for range 2 {
		if _, err := s.Abilities().Sweep(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
	}
	if after, versions := number(t, pool, pgstore.RevisionSQL), number(t, pool, versionsSQL(t, pool)); after != before+1 || versions != 10 {
		t.Errorf("%d changes, %d versions; want 1 and 10", after-before, versions)
	}
}
