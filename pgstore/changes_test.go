package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// A verbFunc calls a verb for key k of limit x and returns the tokens granted.
type verbFunc func(ctx context.Context, verb store.Verb, cost int64) (int64, error)

// An entryPoint is a way to call the limits of a database.
type entryPoint struct {
	name string
	pool func(t testing.TB) *pgxpool.Pool
	open func(t *testing.T, pool *pgxpool.Pool) verbFunc
}

// entryPoints are the SQL functions, the store with and without notifications,
// the store behind coalesce, and the portable statements.
var entryPoints = []entryPoint{
	{"SQL", newPool, func(t *testing.T, pool *pgxpool.Pool) verbFunc {
		return func(ctx context.Context, verb store.Verb, cost int64) (n int64, err error) {
			err = pool.QueryRow(ctx, fmt.Sprintf("select granted from dipwell.%s('x', 'k', $1)", verb), cost).Scan(&n)
			return n, err
		}
	}},
	{"Go", newPool, func(t *testing.T, pool *pgxpool.Pool) verbFunc {
		return limiterVerb(t, newStore(t, pool, pgstore.Config{}))
	}},
	{"never told", newPool, func(t *testing.T, pool *pgxpool.Pool) verbFunc {
		return limiterVerb(t, newStore(t, pool, pgstore.Config{Poll: -1}))
	}},
	{"coalesced", newPool, func(t *testing.T, pool *pgxpool.Pool) verbFunc {
		st := newStore(t, pool, pgstore.Config{})
		together, err := coalesce.New(store.Lanes{Stores: []store.Store{st, st}}, coalesce.Config{Timeout: testTimeout})
		if err != nil {
			t.Fatal(err)
		}
		return limiterVerb(t, together)
	}},
	{"portable", portablePool, func(t *testing.T, pool *pgxpool.Pool) verbFunc {
		return limiterVerb(t, newStore(t, pool, pgstore.Config{}))
	}},
}

func limiterVerb(t *testing.T, st store.Store) verbFunc {
	t.Helper()
	l, err := dipwell.New(st)
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[store.Verb]func(context.Context, string, string, int64) (dipwell.Decision, error){
		store.VerbTake: l.Take, store.VerbCharge: l.Charge, store.VerbReserve: l.Reserve, store.VerbTakeUpTo: l.TakeUpTo}
	return func(ctx context.Context, verb store.Verb, cost int64) (int64, error) {
		d, err := verbs[verb](ctx, "x", "k", cost)
		return d.Granted, err
	}
}

// definer returns a function that changes limit x between one a day and one an
// hour, through another connection.
func definer(t *testing.T, pool *pgxpool.Pool, burst int64) func(per time.Duration) error {
	t.Helper()
	st := newStore(t, pool, pgstore.Config{Poll: -1})
	define := func(per time.Duration) error {
		_, err := st.Define(context.Background(), store.Limit{Name: "x", Rate: 1, Period: per, Burst: burst, MaxCharge: burst}, store.OwnerCode)
		return err
	}
	if err := define(day); err != nil {
		t.Fatal(err)
	}
	return define
}

const day = 24 * time.Hour

// TestChangeRace has 12 callers of one key take, charge and reserve by the
// server's clock while its limit changes 300 times. The tokens granted must be
// the tokens missing; less than a thousandth of a token comes back during the
// test.
func TestChangeRace(t *testing.T) {
	t.Parallel()
	const callers, calls, changes, burst = 12, 150, 120, 5000
	for _, way := range entryPoints {
		t.Run(way.name, func(t *testing.T) {
			pool := way.pool(t)
			define := definer(t, pool, burst)
			ask := way.open(t, pool)
			turn := make(chan struct{})
			var granted atomic.Int64
			var done sync.WaitGroup
			for c := range callers {
				done.Go(func() {
					for i := range calls {
						if (c+i)%15 == 0 {
							turn <- struct{}{}
						}
						verb := []store.Verb{store.VerbTake, store.VerbCharge, store.VerbReserve}[(c+i)%3]
						n, err := ask(context.Background(), verb, 1)
						if err != nil {
							t.Error(verb, err)
						}
						granted.Add(n)
					}
				})
			}
			for i := range changes {
				<-turn
				if err := define([]time.Duration{time.Hour, day}[i%2]); err != nil {
					t.Error(err)
				}
			}
			done.Wait()
			left := remaining(t, pool)
			t.Logf("%d granted beside %d changes, %d left: %+d minted", granted.Load(), changes, left, granted.Load()+left-burst)
			if granted.Load()+left != burst {
				t.Errorf("%+d minted of %d granted", granted.Load()+left-burst, granted.Load())
			}
		})
	}
}

// remaining returns the tokens left for key k of limit x, according to a store
// that has just read the limits.
func remaining(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Check(context.Background(), "x", "k", 0)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// TestChangeDuringLockWait has a call wait for a row locked by another
// transaction. Meanwhile the limit changes and that transaction takes once
// more, under the new version. The call must get what is left and no more.
func TestChangeDuringLockWait(t *testing.T) {
	t.Parallel()
	for _, way := range entryPoints {
		if way.name == "portable" { // has no function to lock the row
			continue
		}
		pool := way.pool(t)
		define := definer(t, pool, 100)
		for _, verb := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbCharge, store.VerbReserve} {
			for _, to := range []time.Duration{time.Hour, day} {
				t.Run(fmt.Sprint(way.name, "/", verb, " to 1 per ", to), func(t *testing.T) {
					from := day + time.Hour - to
					if err := define(from); err != nil {
						t.Fatal(err)
					}
					must(t, pool, "delete from dipwell.buckets")
					takeWhileLocked(t, pool, way.open(t, pool), verb, func() error { return define(to) })
				})
			}
		}
	}
}

func takeWhileLocked(t *testing.T, pool *pgxpool.Pool, ask verbFunc, verb store.Verb, change func() error) {
	ctx := context.Background()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	must(t, tx, "select dipwell.take('x', 'k', 50)")
	cost := int64(49)
	if verb == store.VerbTakeUpTo {
		cost = 100
	}
	got := make(chan int64, 1)
	go func() {
		n, err := ask(ctx, verb, cost)
		if err != nil {
			t.Error(err)
		}
		got <- n
	}()
	eventually(t, "waiting for the row", func() (waits bool) {
		err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())").Scan(&waits)
		return err == nil && waits
	})
	if err := change(); err != nil {
		t.Fatal(err)
	}
	must(t, tx, "select dipwell.take('x', 'k', 1)")
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if n, left := <-got, remaining(t, pool); n != 49 || left != 0 {
		t.Errorf("it got %d, and %d are left; want 49 and 0", n, left)
	}
}

// TestChangeInTransaction checks that a store in a transaction that finds a row
// of an unknown version reads the limits on the transaction's connection, while
// the only other connection of the pool waits for that row.
func TestChangeInTransaction(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	dsn := pgtest.Database(t, "dipwell", migrated)
	define := definer(t, connect(t, dsn), 100)
	pool := connect(t, dsn+"&pool_max_conns=2")
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := define(time.Hour); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(t, tx, "select dipwell.take('x', 'k', 50)")
	waited := make(chan error, 1)
	go func() {
		_, err := pool.Exec(ctx, "select dipwell.take('x', 'k', 1)")
		waited <- err
	}()
	eventually(t, "waiting for the row", func() (waits bool) {
		err := tx.QueryRow(ctx, "select exists (select from pg_locks where not granted and pg_backend_pid() = any (pg_blocking_pids(pid)))").Scan(&waits)
		return err == nil && waits
	})
	if d, err := l.With(s.With(tx)).Take(ctx, "x", "k", 40); err != nil || !d.Allowed || d.Remaining != 10 {
		t.Error(d, err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if left := remaining(t, connect(t, dsn)); left != 9 {
		t.Errorf("%d left, want 9", left)
	}
}

// TestVersionsAreKept checks that a version without rows is kept while a
// program may still insert a row of it, and then deleted.
func TestVersionsAreKept(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	var now atomic.Int64
	now.Store(time.Now().UnixMicro())
	s := newStore(t, pool, pgstore.Config{Poll: -1, Clock: now.Load})
	for _, rate := range []int64{1, 2} {
		if _, err := s.Define(ctx, store.Limit{Name: "x", Rate: rate, Period: time.Hour}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 2}, {10*time.Minute - time.Second, 2}, {2 * time.Second, 1}} {
		now.Add(c.after.Microseconds())
		if _, err := store.AbilitiesOf(s).Sweep(ctx, 100); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := pool.QueryRow(ctx, versionsSQL(t, pool)).Scan(&n); err != nil || n != c.want {
			t.Errorf("%v later there are %d versions, want %d; %v", c.after, n, c.want, err)
		}
	}
}

// TestVersionsOutliveTransactions checks that, by the server's clock, a version
// is kept while a transaction is open that began before the version was
// superseded.
func TestVersionsOutliveTransactions(t *testing.T) {
	ctx := context.Background()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 1, interval '1 day', burst => 10)")
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	must(t, tx, "select dipwell.take('x', 'k', 9)")
	must(t, pool, "select dipwell.define('x', 1, interval '1 hour', burst => 10)")
	retired := func() (n int) {
		t.Helper()
		// Pretend that the change was made an hour ago, but after the
		// transaction began.
		if err := pool.QueryRow(ctx, "select dipwell_internal.retire()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	must(t, pool, "create or replace function dipwell_internal.now_us() returns bigint language sql volatile as $$ select (date_part('epoch', clock_timestamp()) * 1000000)::bigint + 3600000000 $$")
	if n := retired(); n != 0 {
		t.Errorf("%d versions were forgotten beside a transaction that used them", n)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := pool.QueryRow(ctx, "select remaining from dipwell.check('x', 'k')").Scan(&left); err != nil || left != 2 { // an hour later
		t.Errorf("%d left, %v", left, err)
	}
	must(t, pool, "delete from dipwell.buckets; update dipwell.versions set since = since - 3600000000")
	eventually(t, "forgotten", func() bool { return retired() == 1 })
}

// TestManyChanges changes a limit a thousand times, once a minute, while keys that are rarely
// called are in use: plain ones, some under a plan or an override, and some with a hold. With
// a sweep now and then few versions are stored, and no key gains a token or loses one.
func TestManyChanges(t *testing.T) {
	for name, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, now := t.Context(), int64(1767225600e6)
			most := 20 + 10 + 1 // since the sweep before, and in ten minutes
			if name == "portable" {
				most += 64
			}
			s := newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
			l, err := dipwell.New(s)
			if err != nil {
				t.Fatal(err)
			}
			limit := store.Limit{Name: "api", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 100, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 200})}
			change := func(i int) {
				limit.Burst = 100 + int64(i%7)
				if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
					t.Fatal(i, err)
				}
			}
			change(0)
			overrides := store.AbilitiesOf(s).Overrides
			left := map[string]int64{}
			for i := range 40 {
				key := fmt.Sprint("k", i)
				left[key] = -40
				take := dipwell.Take{Limit: "api", Key: key, Cost: 40}
				switch i % 4 {
				case 1:
					take.Plan, left[key] = "pro", 160
				case 2:
					left[key] = 210
					if _, err := overrides.SetOverride(ctx, l.Limit("api"), store.Override{Key: key, Burst: 250}); err != nil {
						t.Fatal(err)
					}
				case 3:
					if d, err := l.Hold(ctx, 24*time.Hour, key, take); err != nil || !d.Allowed {
						t.Fatal(d, err)
					}
					continue
				}
				if d, err := l.TakeAll(ctx, take); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			for i := range 1000 {
				now += 60e6
				change(i + 1)
				if i%20 > 0 {
					continue
				}
				if _, err := store.AbilitiesOf(s).Sweep(ctx, 1000); err != nil {
					t.Fatal(err)
				}
				var n int
				if err := pool.QueryRow(ctx, versionsSQL(t, pool)).Scan(&n); err != nil || n > most {
					t.Fatalf("%d versions after %d changes: %v", n, i+1, err)
				}
			}
			for key, want := range left {
				if want < 0 {
					want += limit.Burst
				}
				plan := ""
				if want == 160 {
					plan = "pro"
				}
				var d dipwell.Decision
				if err := l.Do(ctx, &d, store.VerbCheck, dipwell.Take{Limit: "api", Key: key, Plan: plan}); err != nil || d.Remaining != want {
					t.Errorf("key %s: %+v, %v; want %d", key, d, err, want)
				}
			}
			if d, err := l.Settle(ctx, "k3", 10); err != nil || d.Remaining != limit.Burst-10 {
				t.Errorf("settled: %+v, %v", d, err)
			}
		})
	}
}

// TestChangesWithoutASweep changes a limit more often than a definition can have versions,
// in a program beside which nobody sweeps, while a key is in use.
func TestChangesWithoutASweep(t *testing.T) {
	for name, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, now := t.Context(), int64(1767225600e6)
			l, err := dipwell.New(newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: -1}))
			if err != nil {
				t.Fatal(err)
			}
			limit := store.Limit{Name: "api", Rate: 1, Period: 365 * 24 * time.Hour}
			for i := range 1100 {
				limit.Burst = 100 + int64(i%7)
				now += 60e6
				if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
					t.Fatal(i, err)
				}
				if i > 0 {
					continue
				}
				if d, err := l.Take(ctx, "api", "k", 40); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			if d, err := l.Check(ctx, "api", "k", 0); err != nil || d.Remaining != limit.Burst-40 {
				t.Errorf("%+v, %v; want %d", d, err, limit.Burst-40)
			}
			var n int
			if err := pool.QueryRow(ctx, versionsSQL(t, pool)).Scan(&n); err != nil || n > 3*64 {
				t.Errorf("%d versions: %v", n, err)
			}
		})
	}
}

// TestChangesBesideALockedRow checks that a program which retires versions itself does not
// wait for a row that another transaction has locked.
func TestChangesBesideALockedRow(t *testing.T) {
	for name, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}))
			if err != nil {
				t.Fatal(err)
			}
			limit := store.Limit{Name: "api", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 100}
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			for i := range 140 {
				limit.Burst = 100 + int64(i%7)
				if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
					t.Fatal(i, err)
				}
				if i > 0 {
					continue
				}
				if _, err := l.Take(ctx, "api", "k", 40); err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(ctx, "select from dipwell.buckets for update"); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestKeysOfOldVersions lists a key whose row is of an older version than those that programs
// read.
func TestKeysOfOldVersions(t *testing.T) {
	for name, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		s := newStore(t, pool, pgstore.Config{Poll: -1})
		l, err := dipwell.New(s)
		if err != nil {
			t.Fatal(err)
		}
		limit := store.Limit{Name: "api", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 100, ListKeys: true}
		for i := range 120 {
			limit.Burst = 100 + int64(i)
			if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				if d, err := l.Take(t.Context(), "api", "k", 40); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
		}
		d := l.Limit("api")
		keys, err := store.AbilitiesOf(s).Keys(t.Context(), d, "", "", 10)
		if err != nil || len(keys) != 1 {
			t.Fatalf("%s: %v, %v", name, keys, err)
		}
		op := store.Op{Def: d, Key: "k", Verb: store.VerbCheck}
		if _, _, err = op.Step(keys[0].TS, keys[0].State, true); err != nil || op.Remaining != limit.Burst-40 {
			t.Errorf("%s: %+v leaves %+v, %v", name, keys[0], op.Answer, err)
		}
	}
}

// A rowCounter counts the rows that queries return.
type rowCounter struct{ rows atomic.Int64 }

func (*rowCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (c *rowCounter) TraceQueryEnd(_ context.Context, _ *pgx.Conn, end pgx.TraceQueryEndData) {
	if end.CommandTag.Select() {
		c.rows.Add(end.CommandTag.RowsAffected())
	}
}

// TestChangeReadsWhatIsNew counts the rows that a change of a limit reads, in the program
// that makes it and in another one: they do not grow with the number of versions.
func TestChangeReadsWhatIsNew(t *testing.T) {
	for name, pool := range map[string]*pgxpool.Pool{"functions": newPool(t), "portable": portablePool(t)} {
		t.Run(name, func(t *testing.T) {
			counts := make([]*rowCounter, 2)
			stores := make([]*pgstore.Store, 2)
			for i := range stores {
				config := pool.Config()
				counts[i] = &rowCounter{}
				config.ConnConfig.Tracer = counts[i]
				counted, err := pgxpool.NewWithConfig(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(counted.Close)
				stores[i] = newStore(t, counted, pgstore.Config{Poll: -1})
			}
			limit := store.Limit{Name: "api", Period: time.Hour, Burst: 100}
			change := func() (rows [2]int64) {
				counts[0].rows.Store(0)
				counts[1].rows.Store(0)
				limit.Rate++
				if _, err := stores[0].Define(t.Context(), limit, store.OwnerCode); err != nil {
					t.Fatal(err)
				}
				if err := pgstore.Refresh(t.Context(), stores[1]); err != nil {
					t.Fatal(err)
				}
				for i := range rows {
					rows[i] = counts[i].rows.Load()
					d := stores[i].Registry().Lookup("api")
					if int64(d.Number) != limit.Rate || len(d.Past) != int(limit.Rate)-1 || d.Rate != limit.Rate {
						t.Fatalf("version %d with a past of %d, want %d", d.Number, len(d.Past), limit.Rate)
					}
				}
				return rows
			}
			change()
			first := change()
			for range 50 {
				change()
			}
			if last := change(); last != first {
				t.Errorf("the last change reads %v rows, the second one %v", last, first)
			}
		})
	}
}

// versionsSQL returns the statement that counts the versions of all limits in a database.
func versionsSQL(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var columns bool
	if err := pool.QueryRow(t.Context(), "select to_regclass('dipwell.versions') is not null").Scan(&columns); err != nil {
		t.Fatal(err)
	}
	if columns {
		return "select count(*) from dipwell.versions"
	}
	return "select count(*) + coalesce(sum(json_array_length(definition::json->'past')), 0)::int from dipwell.limits"
}
