package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestPlainHoldsTakeOneStatement counts the statements of holds of keys that have a
// row, and of their settles.
func TestPlainHoldsTakeOneStatement(t *testing.T) {
	config := newPool(t).Config()
	sent := &countingTracer{}
	config.ConnConfig.Tracer, config.MaxConns = sent, 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}),
		dipwell.Limit{Name: "bucket", Rate: 5, Period: time.Hour, Burst: 50},
		dipwell.Limit{Name: "window", Algorithm: dipwell.FixedWindow, Rate: 50, Period: time.Hour},
		dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 50})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, limit := range []string{"bucket", "window", "slots"} {
		hold := func(id string, most int) {
			t.Helper()
			before := sent.n
			d, err := l.Hold(ctx, time.Minute, limit+id, dipwell.Take{Limit: limit, Key: "k", Cost: 10})
			if err != nil || !d.Allowed || sent.n-before > most {
				t.Fatalf("hold %s of %s: %+v %v, %d statements", id, limit, d, err, sent.n-before)
			}
		}
		settle := func(id string, remaining int64) {
			t.Helper()
			before := sent.n
			d, err := l.Settle(ctx, limit+id, 4)
			if limit == "slots" {
				remaining = remaining / 10 * 10
			}
			if err != nil || d.Remaining != remaining || sent.n-before > 1 {
				t.Fatalf("settle %s of %s: %+v %v, %d statements; want %d remaining", id, limit, d, err, sent.n-before, remaining)
			}
		}
		hold("first", 2) // makes the row
		settle("first", cond(limit == "slots", 50, 46))
		hold("a", 1)
		settle("a", cond(limit == "slots", 50, 42))
		hold("b", 1)
		hold("c", 1) // beside b
		hold("d", 1)
		settle("c", cond(limit == "slots", 30, 18))
		settle("b", cond(limit == "slots", 40, 24))
		settle("d", cond(limit == "slots", 50, 30))
		hold("e", 1)
		settle("e", cond(limit == "slots", 50, 26))
		if d, err := l.Settle(ctx, limit+"e", 4); err != nil || !d.Repeated {
			t.Errorf("the settle of %s again: %+v %v", limit, d, err)
		}
	}
}

func cond(b bool, x, y int64) int64 {
	if b {
		return x
	}
	return y
}

// TestPlainHoldsAtOnce settles holds of a key from several programs at once, each
// twice. What is used in the end is what they were settled to, once.
func TestPlainHoldsAtOnce(t *testing.T) {
	pool := newPool(t)
	stores := [2]*pgstore.Store{newStore(t, pool, pgstore.Config{}), newStore(t, pool, pgstore.Config{})}
	limits := []dipwell.Limit{{Name: "bucket", Rate: 1, Period: 24 * time.Hour, Burst: 100_000}, {Name: "slots", Algorithm: dipwell.Concurrency, Burst: 100_000}}
	var ls [2]*dipwell.Limiter
	for i, s := range stores {
		var err error
		if ls[i], err = dipwell.New(s, limits...); err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	const workers, each = 8, 30
	var all sync.WaitGroup
	var mu sync.Mutex
	once := map[string]int{}
	for w := range workers {
		all.Go(func() {
			for i := range each {
				for _, limit := range []string{"bucket", "slots"} {
					id := fmt.Sprintf("%s-%d-%d", limit, w, i)
					d, err := ls[w%2].Hold(ctx, time.Minute, id, dipwell.Take{Limit: limit, Key: "k", Cost: 5})
					if err != nil || !d.Allowed {
						t.Errorf("hold: %+v %v", d, err)
						return
					}
					var both sync.WaitGroup
					for s := range ls {
						both.Go(func() {
							d, err := ls[s].Settle(ctx, id, 2)
							if err != nil {
								t.Errorf("settle: %v", err)
							}
							mu.Lock()
							defer mu.Unlock()
							if !d.Repeated {
								once[id]++
							}
						})
					}
					both.Wait()
				}
			}
		})
	}
	all.Wait()
	for id, n := range once {
		if n != 1 {
			t.Errorf("hold %s was settled %d times", id, n)
		}
	}
	for _, c := range []struct {
		limit string
		want  int64
	}{{"bucket", 100_000 - workers*each*2}, {"slots", 100_000}} {
		d, err := ls[0].Check(ctx, c.limit, "k", 0)
		if err != nil || d.Remaining != c.want && d.Remaining != c.want+1 {
			t.Errorf("%s: %+v %v, want %d remaining", c.limit, d, err, c.want)
		}
	}
	var listed bool
	if err := pool.QueryRow(ctx, "select bool_or(lows is not null) from dipwell.buckets").Scan(&listed); err != nil || listed {
		t.Errorf("a row without live holds has lows: %v %v", listed, err)
	}
}

// TestHoldBeginsAfterTheWait checks that a hold that waited for its bucket longer than
// its ttl lives for its ttl from then on.
func TestHoldBeginsAfterTheWait(t *testing.T) {
	pool := newPool(t)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{}),
		dipwell.Limit{Name: "bucket", Rate: 1, Period: time.Hour, Burst: 50},
		dipwell.Limit{Name: "window", Algorithm: dipwell.FixedWindow, Rate: 50, Period: time.Hour},
		dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 50})
	if err != nil {
		t.Fatal(err)
	}
	ctx, ttl := t.Context(), 20*time.Millisecond
	hold := func(ttl time.Duration, id string, takes ...dipwell.Take) dipwell.Decision {
		d, err := l.Hold(ctx, ttl, id, takes...)
		if err != nil || !d.Allowed {
			t.Errorf("%s: %+v, %v", id, d, err)
		}
		return d
	}
	bucket, window, slots := dipwell.Take{Limit: "bucket", Key: "k", Cost: 1}, dipwell.Take{Limit: "window", Key: "k", Cost: 1}, dipwell.Take{Limit: "slots", Key: "k", Cost: 1}
	beside := bucket
	beside.Key = "beside"
	hold(time.Hour, "other", bucket, window, slots, beside)
	for id, takes := range map[string][]dipwell.Take{"bucket": {bucket}, "window": {window}, "slots": {slots}, "beside": {beside}, "several": {bucket, slots}} {
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if _, err = tx.Exec(ctx, "select from dipwell.buckets for update"); err != nil {
			t.Fatal(err)
		}
		var d dipwell.Decision
		var wait sync.WaitGroup
		wait.Go(func() { d = hold(ttl, id, takes...) })
		for waited := false; !waited; {
			if err := pool.QueryRow(ctx, `select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
				and query_start + $1::interval < clock_timestamp()) from pg_sleep(0.002)`, ttl).Scan(&waited); err != nil {
				t.Fatal(err)
			}
		}
		var began time.Time
		if err = tx.QueryRow(ctx, "select clock_timestamp()").Scan(&began); err != nil {
			t.Fatal(err)
		}
		if err = tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if wait.Wait(); d.Expires.Before(began.Add(ttl)) {
			t.Errorf("%s expires %v before its ttl is over", id, began.Add(ttl).Sub(d.Expires))
		}
	}
}

// TestHoldOfOverriddenKey checks that the answers to a hold name the override that
// decides, also by the functions that need the server's clock.
func TestHoldOfOverriddenKey(t *testing.T) {
	pool := newPool(t)
	limit := dipwell.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 50})}
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), limit)
	if err != nil {
		t.Fatal(err)
	}
	other, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1})) // a program that has not heard of the override
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	want := func(what string, remaining int64, repeated bool, d dipwell.Decision, err error) {
		t.Helper()
		if err != nil || !d.Allowed || d.Repeated != repeated || d.Plan != "pro" || d.Capacity != 50 || d.Remaining != remaining {
			t.Errorf("%s: %+v, %v", what, d, err)
		}
	}
	if _, err = l.SetOverride(ctx, "api", dipwell.Override{Key: "k", Plan: "pro"}); err != nil {
		t.Fatal(err)
	}
	remaining := int64(50)
	for name, l := range map[string]*dipwell.Limiter{"here": l, "elsewhere": other} {
		d, err := l.Hold(ctx, time.Minute, name, dipwell.Take{Limit: "api", Key: "k", Cost: 20})
		want("hold "+name, remaining-20, false, d, err)
		d, err = l.Hold(ctx, time.Minute, name, dipwell.Take{Limit: "api", Key: "k", Cost: 20})
		want("again "+name, remaining-20, true, d, err)
		d, err = l.Settle(ctx, name, 5)
		want("settle "+name, remaining-5, false, d, err)
		remaining -= 5
		d, err = l.Settle(ctx, name, 5)
		want("settled again "+name, remaining, true, d, err)
	}
}

// TestRefusedHoldIsBoundBesideLiveHolds checks that a refusal says that it may end
// sooner if, and only if, its key has a hold that is not settled: the hold by each of its
// statements as any other call.
func TestRefusedHoldIsBoundBesideLiveHolds(t *testing.T) {
	l, err := dipwell.New(newStore(t, newPool(t), pgstore.Config{Poll: -1}),
		dipwell.Limit{Name: "bucket", Rate: 1, Period: time.Hour, Burst: 10},
		dipwell.Limit{Name: "window", Algorithm: dipwell.FixedWindow, Rate: 10, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, limit := range []string{"bucket", "window"} {
		for _, key := range []string{"k", dipwell.Shared} {
			bound := func(want bool) {
				t.Helper()
				take := dipwell.Take{Limit: limit, Key: key, Cost: 5}
				refused := map[string]func() (dipwell.Decision, error){
					"take": func() (dipwell.Decision, error) { return l.TakeAll(ctx, take) },
					"hold": func() (dipwell.Decision, error) { return l.Hold(ctx, time.Minute, "", take) },
					"hold with a floor": func() (dipwell.Decision, error) {
						return l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: limit, Key: key, Cost: 4, Floor: 1})
					},
				}
				for verb, call := range refused {
					if d, err := call(); err != nil || d.Allowed || d.RetryIsBound != want {
						t.Errorf("%s of %s %q: %+v, %v; want bound %v", verb, limit, key, d, err, want)
					}
				}
			}
			id := fmt.Sprintf("%s%q", limit, key)
			if d, err := l.Hold(ctx, time.Minute, id, dipwell.Take{Limit: limit, Key: key, Cost: 8}); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			bound(true)
			if _, err := l.Settle(ctx, id, 8); err != nil {
				t.Fatal(err)
			}
			bound(false)
		}
	}
}
