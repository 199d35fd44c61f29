package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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
		hold("first", 1) // inserts the row
		settle("first", cond[int64](limit == "slots", 50, 46))
		hold("a", 1)
		settle("a", cond[int64](limit == "slots", 50, 42))
		hold("b", 1)
		hold("c", 1) // beside b
		hold("d", 1)
		settle("c", cond[int64](limit == "slots", 30, 18))
		settle("b", cond[int64](limit == "slots", 40, 24))
		settle("d", cond[int64](limit == "slots", 50, 30))
		hold("e", 1)
		if before := sent.n; limit != "slots" { // beside a live hold
			if d, err := l.Take(ctx, limit, "k", 1); err != nil || !d.Allowed || sent.n-before > 1 {
				t.Errorf("take of %s beside a hold: %+v %v, %d statements", limit, d, err, sent.n-before)
			}
			if _, err := l.Refund(ctx, limit, "k", 1); err != nil {
				t.Error(err)
			}
		}
		settle("e", cond[int64](limit == "slots", 50, 26))
		if d, err := l.Settle(ctx, limit+"e", 4); err != nil || !d.Repeated {
			t.Errorf("the settle of %s again: %+v %v", limit, d, err)
		}
	}
}

func cond[T any](b bool, x, y T) T {
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

// A busyRowDB runs each statement of one hold while another transaction has changed the row
// that it waits for, and notes calls of the functions that decide any hold.
type busyRowDB struct {
	pgstore.DB
	change func() // begins the transaction, which commits when somebody waits
	called *[]string
}

func (d busyRowDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	switch {
	case strings.Contains(sql, "_group("):
		*d.called = append(*d.called, sql)
	case strings.Contains(sql, "_one("):
		d.change()
	}
	return d.DB.Query(ctx, sql, args...)
}

// TestHoldsOfBusyKey checks that holds of a key whose row others change all the time
// do not need the functions that decide any hold, which cost several times as much.
func TestHoldsOfBusyKey(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('bucket', 1, interval '1 hour', burst => 1000)")
	must(t, pool, "select dipwell.hold('bucket', 'k', 1, interval '1 hour')")
	ctx := t.Context()
	changes := 0
	var called []string
	var committed sync.WaitGroup
	db := busyRowDB{pool, func() {
		committed.Wait()
		changes++
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		must(t, tx, "select dipwell.hold('bucket', 'k', 1, interval '1 hour')")
		committed.Go(func() {
			waits := false
			for err := error(nil); !waits && err == nil; {
				err = pool.QueryRow(ctx, "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())").Scan(&waits)
			}
			if err := tx.Commit(ctx); err != nil || !waits {
				t.Errorf("no statement waited for the row: %v", err)
			}
		})
	}, &called}
	l, err := dipwell.New(newStore(t, db, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	took := int64(1)
	for i := range 6 {
		id := fmt.Sprint("id", i)
		d, err := l.Hold(ctx, time.Hour, id, dipwell.Take{Limit: "bucket", Key: "k", Cost: 5})
		if err != nil || !d.Allowed {
			t.Fatalf("hold: %+v, %v", d, err)
		}
		if d, err = l.Settle(ctx, id, 2); err != nil || !d.Allowed {
			t.Fatalf("settle: %+v, %v", d, err)
		}
		took += 2
	}
	committed.Wait()
	if d, err := l.Check(ctx, "bucket", "k", 0); err != nil || d.Remaining != 1000-took-int64(changes) {
		t.Errorf("%+v, %v; want %d remaining", d, err, 1000-took-int64(changes))
	}
	if len(called) > 0 || changes < 12 {
		t.Errorf("%d changes by others; %d calls of functions:\n%s", changes, len(called), strings.Join(called, "\n"))
	}
}

// TestSlotAfterRefusal checks that the settle of a slot that was got after a refusal needs
// no function: on a limit that is always full, most holds are such.
func TestSlotAfterRefusal(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('slots', burst => 1, algorithm => 'concurrency')")
	var called []string
	l, err := dipwell.New(newStore(t, busyRowDB{pool, func() {}, &called}, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	hold := func(id string, allowed bool) {
		t.Helper()
		if d, err := l.Hold(t.Context(), time.Minute, id, dipwell.Take{Limit: "slots", Key: "k", Cost: 1}); err != nil || d.Allowed != allowed {
			t.Fatalf("%s: %+v, %v", id, d, err)
		}
	}
	settle := func(id string) {
		t.Helper()
		called = nil
		if d, err := l.Settle(t.Context(), id); err != nil || d.Remaining != 1 || d.ResetAfter != 0 || len(called) > 0 {
			t.Errorf("%s: %+v, %v; calls of functions: %q", id, d, err, called)
		}
	}
	for i := range 3 {
		first, next := fmt.Sprint("first", i), fmt.Sprint("next", i)
		hold(first, true)
		hold(next, false)
		settle(first)
		hold(next, true)
		settle(next)
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
		dipwell.Limit{Name: "window", Algorithm: dipwell.FixedWindow, Rate: 10, Period: time.Hour},
		dipwell.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 10, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for limit, key := range map[string]string{"bucket": "k", "window": "k", "all": dipwell.Shared} {
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

// TestNewHoldIDs checks that an id that is made begins with the time, so that those of
// one second are neighbours in the index.
func TestNewHoldIDs(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('slots', burst => 10, algorithm => 'concurrency')")
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	begin := time.Now().UnixMilli()
	for _, sql := range []string{"select hold from dipwell.hold('slots', 'k', 1, interval '1 minute')", "select hold from dipwell.hold_all('{slots}', '{k}', '{1}', interval '1 minute')"} {
		var id string
		if err := pool.QueryRow(t.Context(), sql).Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	d, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: "slots", Key: "k", Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().UnixMilli()
	for _, id := range append(ids, d.Hold) {
		uuid := regexp.MustCompile("^([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$").FindStringSubmatch(id)
		if uuid == nil {
			t.Errorf("%s is not a UUID of version 7", id)
		} else if ms, err := strconv.ParseInt(uuid[1]+uuid[2], 16, 64); err != nil || ms < begin || ms > end {
			t.Errorf("%s was made %d ms after the start, and the last was %d ms after it", id, ms-begin, end-begin)
		}
	}
}

// TestReservationBesideSettle checks that a reservation which another transaction makes
// while a hold or its settle waits for the row can be cancelled in full.
func TestReservationBesideSettle(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"settle", "hold", "settle beside", "hold beside", "settle in SQL", "hold in SQL"} {
		t.Run(name, func(t *testing.T) {
			ctx, pool := t.Context(), newPool(t)
			must(t, pool, "select dipwell.define('bucket', 1, interval '1 hour', burst => 100), dipwell.define('debt', 1, interval '1 hour', burst => 1, max_debt => 10)")
			must(t, pool, "select dipwell.hold('bucket', 'k', 5, interval '1 hour', 'h')")
			s := newStore(t, pool, pgstore.Config{Poll: -1})
			l, err := dipwell.New(s)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, "beside") { // the store knows that the key has other holds
				for _, id := range []string{"x", "y"} {
					if d, err := l.Hold(ctx, time.Hour, id, dipwell.Take{Limit: "bucket", Key: "k", Cost: 5}); err != nil || !d.Allowed {
						t.Fatalf("%+v, %v", d, err)
					}
				}
			}
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx) //nolint:errcheck // committed
			var d dipwell.Decision
			err = l.With(s.With(tx)).DoAll(ctx, &d, store.VerbReserve, []dipwell.Take{{Limit: "bucket", Key: "k", Cost: 1}, {Limit: "debt", Key: "k", Cost: 5}})
			if err != nil || d.Reservation == (dipwell.Reservation{}) {
				t.Fatalf("%+v, %v", d, err)
			}
			done := make(chan error, 1)
			call, want := func() (err error) { _, err = l.Settle(ctx, "h"); return err }, int64(95)
			switch name {
			case "hold":
				call, want = func() (err error) {
					_, err = l.Hold(ctx, time.Hour, "i", dipwell.Take{Limit: "bucket", Key: "k", Cost: 3})
					return err
				}, 92
			case "settle beside":
				call, want = func() (err error) { _, err = l.Settle(ctx, "y", 1); return err }, 89
			case "hold beside":
				call, want = func() (err error) {
					_, err = l.Hold(ctx, time.Hour, "i", dipwell.Take{Limit: "bucket", Key: "k", Cost: 3})
					return err
				}, 82
			case "settle in SQL":
				call = func() (err error) { _, err = pool.Exec(ctx, "select dipwell.settle('h')"); return err }
			case "hold in SQL":
				call, want = func() (err error) {
					_, err = pool.Exec(ctx, "select dipwell.hold('bucket', 'k', 3, interval '1 hour', 'i')")
					return err
				}, 92
			}
			go func() { done <- call() }()
			for waits := false; !waits && err == nil; {
				err = pool.QueryRow(ctx, "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())").Scan(&waits)
			}
			if err = errors.Join(err, tx.Commit(ctx), <-done, l.Cancel(ctx, d.Reservation)); err != nil {
				t.Fatal(err)
			}
			if d, err := l.Check(ctx, "bucket", "k", 0); err != nil || d.Remaining != want {
				t.Errorf("%d remaining, %v; want %d", d.Remaining, err, want)
			}
		})
	}
}

// TestHoldThatWaited checks the reset of a hold that waited for its row for longer than its
// tokens take to come back.
func TestHoldThatWaited(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 1000, interval '1 second'), dipwell.take('api', 'k')")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it has ended
	must(t, tx, "select dipwell.take('api', 'k')")
	held := make(chan error, 1)
	reset := -1.0
	go func() {
		held <- pool.QueryRow(t.Context(), "select extract(epoch from reset_after)::float from dipwell.hold('api', 'k', ttl => interval '1 minute')").Scan(&reset)
	}()
	eventually(t, "waiting for the row", func() bool {
		return number(t, pool, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()") == 1
	})
	must(t, tx, "select pg_sleep(0.1)")
	if err := errors.Join(tx.Commit(t.Context()), <-held); err != nil || reset < 0 {
		t.Errorf("%v s: %v", reset, err)
	}
}
