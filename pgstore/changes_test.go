package pgstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// asker asks a verb of the key k of limit x and returns what was granted.
type asker func(ctx context.Context, verb store.Verb, cost int64) (int64, error)

// A wayIn is a way to ask about limits of one database.
type wayIn struct {
	name string
	pool func(t testing.TB) *pgxpool.Pool
	open func(t *testing.T, pool *pgxpool.Pool) asker
}

// waysIn are the functions, the store with and without news of changes, the
// store behind coalesced batches, and the portable statements.
var waysIn = []wayIn{
	{"SQL", newPool, func(t *testing.T, pool *pgxpool.Pool) asker {
		return func(ctx context.Context, verb store.Verb, cost int64) (n int64, err error) {
			err = pool.QueryRow(ctx, fmt.Sprintf("select granted from dipwell.%s('x', 'k', $1)", verb), cost).Scan(&n)
			return n, err
		}
	}},
	{"Go", newPool, func(t *testing.T, pool *pgxpool.Pool) asker { return limiting(t, newStore(t, pool, pgstore.Config{})) }},
	{"never told", newPool, func(t *testing.T, pool *pgxpool.Pool) asker {
		return limiting(t, newStore(t, pool, pgstore.Config{Poll: -1}))
	}},
	{"coalesced", newPool, func(t *testing.T, pool *pgxpool.Pool) asker {
		st := newStore(t, pool, pgstore.Config{})
		together, err := coalesce.New(store.Lanes{Stores: []store.Store{st, st}}, coalesce.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return limiting(t, together)
	}},
	{"portable", portablePool, func(t *testing.T, pool *pgxpool.Pool) asker { return limiting(t, newStore(t, pool, pgstore.Config{})) }},
}

func limiting(t *testing.T, st store.Store) asker {
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

// definer changes limit x between one a day and one an hour, from elsewhere.
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

// TestChangeRace: 12 callers of one key take, charge and reserve on the server's
// clock while its limit changes 300 times. What was granted is what is missing:
// less than a thousandth of a token comes back meanwhile.
func TestChangeRace(t *testing.T) {
	t.Parallel()
	const callers, calls, changes, burst = 12, 375, 300, 5000
	for _, way := range waysIn {
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

// remaining are the tokens left of key k of limit x, as a store sees it that has
// just read the limits.
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

// TestChangeBehindALock: a call waits for a row that another transaction holds;
// meanwhile the limit changes and the transaction takes once more, under the new
// version. The call gets what is left and no more.
func TestChangeBehindALock(t *testing.T) {
	t.Parallel()
	for _, way := range waysIn {
		if way.name == "portable" { // has no functions to hold the row with
			continue
		}
		for _, verb := range []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbCharge, store.VerbReserve} {
			for _, to := range []time.Duration{time.Hour, day} {
				t.Run(fmt.Sprint(way.name, "/", verb, " to 1 per ", to), func(t *testing.T) {
					pool := way.pool(t)
					define := definer(t, pool, 100)
					from := day + time.Hour - to
					if err := define(from); err != nil {
						t.Fatal(err)
					}
					behindALock(t, pool, way.open(t, pool), verb, func() error { return define(to) })
				})
			}
		}
	}
}

func behindALock(t *testing.T, pool *pgxpool.Pool, ask asker, verb store.Verb, change func() error) {
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
	until(t, "waiting for the row", func() (waits bool) {
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

// TestChangeInATransaction: a store inside a transaction meets a row of a version
// that it has not heard of, while the only other connection of its pool waits
// for that row. It decides on the transaction's own connection.
func TestChangeInATransaction(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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
	until(t, "waiting for the row", func() (waits bool) {
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

// TestVersionsAreKept: a version that no row names is kept while somebody may
// still insert a row that names it, and is forgotten afterwards.
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
		if _, err := s.Sweep(ctx, 100); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := pool.QueryRow(ctx, "select count(*) from dipwell.versions").Scan(&n); err != nil || n != c.want {
			t.Errorf("%v later there are %d versions, want %d; %v", c.after, n, c.want, err)
		}
	}
}

// TestVersionsOutliveTransactions: by the server's clock a version is kept while
// a transaction is open that began before it was superseded, however long ago.
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
		// As if the change had been made an hour ago, and still after the transaction began.
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
	until(t, "forgotten", func() bool { return retired() == 1 })
}
