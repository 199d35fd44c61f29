package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// impatient is a pool whose statements give up waiting for a lock instead of hanging.
func impatient(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	return connect(t, pool.Config().ConnString()+"&lock_timeout=20s")
}

// TestOpenTransactionStopsNobody checks that changes of limits and overrides in a
// transaction that stays open stop neither changes of other limits and keys nor decisions.
func TestOpenTransactionStopsNobody(t *testing.T) {
	t.Parallel()
	for _, held := range []string{
		"dipwell.override('a', 'k', burst => 9)",
		"dipwell.define('open', 6, interval '1 minute')",
		"dipwell.define('new', 6, interval '1 minute')",
		"dipwell.define_plan('open', 'pro', rate => 60)",
		"dipwell.define('child', 6, interval '1 minute', parent => 'org')",
		"dipwell.drop('dropped')",
		"dipwell_internal.retire(dipwell_internal.now_us() + 3600000000)",
	} {
		t.Run(held, func(t *testing.T) {
			pool := newPool(t)
			must(t, pool, `select dipwell.define(n, 5, interval '1 minute', parts => case n when 'org' then 1 end) from unnest('{a,b,open,org,dropped,retired}'::text[]) n;
				select dipwell.define('retired', 7, interval '1 minute')`)
			others := impatient(t, pool)
			inTx(t, pool, func(tx pgx.Tx) {
				must(t, tx, "select "+held)
				for _, sql := range []string{
					"dipwell.override('a', 'm', burst => 8)",
					"dipwell.end_override('a', 'm')",
					"dipwell.override('b', 'k', burst => 8)",
					"dipwell.define('b', 7, interval '1 minute')",
					"dipwell.define_plan('b', 'pro', rate => 70)",
					"dipwell.define('mine', 7, interval '1 minute')",
					"dipwell.define('mychild', 7, interval '1 minute', parent => 'org')",
					"dipwell.drop('b')",
					"dipwell.take('a', 'n')",
					"dipwell.sweep(10)",
				} {
					must(t, others, "select "+sql)
				}
				s := newStore(t, others, pgstore.Config{Poll: -1})
				if _, err := s.Define(t.Context(), store.Limit{Name: "go", Rate: 1, Period: time.Minute}, store.OwnerCode); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRevision checks that the revision differs whenever the limits do, though changes
// commit in another order than they were made, and sweeps sum them up meanwhile.
func TestRevision(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	seed := limittest.NewSeed(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for i := range uint64(6) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, i))
			for n := range 60 {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					for range 1 + r.IntN(3) {
						if _, err := tx.Exec(ctx, fmt.Sprintf("select dipwell.define('l%d', %d, interval '1 minute'), pg_sleep(%f)", i, n+1, r.Float64()/200)); err != nil {
							return err
						}
					}
					if r.IntN(3) == 0 {
						return errors.New("rolled back")
					}
					return nil
				})
				if err != nil && err.Error() != "rolled back" {
					t.Error(err)
				}
			}
		})
	}
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		limits := map[int64]string{}
		for ctx.Err() == nil {
			var revision int64
			var is string
			err := pool.QueryRow(t.Context(), "select ("+pgstore.RevisionSQL+"), coalesce((select string_agg(concat(l.name, ' ', l.rate, ' ', l.version), ',' order by l.name) from dipwell.limits l), '')").Scan(&revision, &is)
			if err != nil {
				t.Error(err)
				return
			}
			if was, seen := limits[revision]; seen && was != is {
				t.Errorf("revision %d is of %s, and of %s", revision, was, is)
				return
			}
			limits[revision] = is
			must(t, pool, "select dipwell.sweep(1)")
		}
	}()
	wg.Wait()
	stop()
	<-watching
	must(t, pool, "select dipwell.sweep(1)")
	if n := number(t, pool, "select count(*) from dipwell.revision"); n > 100 {
		t.Errorf("%d rows are left", n)
	}
}

// TestLateCommit checks that a program sees a change that commits after one that was made
// later.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	look := func(want ...string) {
		t.Helper()
		if err := store.AbilitiesOf(s).Limits.(interface{ Refresh(context.Context) error }).Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if s.Registry().Lookup(name) == nil {
				t.Errorf("%s was not seen", name)
			}
		}
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(t, tx, "select dipwell.define('first', 5, interval '1 minute')")
	must(t, pool, "select dipwell.define('second', 5, interval '1 minute')")
	look("second")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	look("first", "second")
}

// TestDefineLocked checks that a lazy store keeps a change of a limit that another
// transaction has locked, or that its role's statement_timeout ends, and stores it later.
// The callers of the API get the error.
func TestDefineLocked(t *testing.T) {
	t.Parallel()
	pool := connect(t, pgtest.Database(t, "dipwell", migrated))
	reports := make(chan error, 100)
	s := newStore(t, pool, pgstore.Config{Lazy: true, Poll: 200 * time.Millisecond, OnError: func(err error) {
		if !errors.Is(err, context.DeadlineExceeded) { // a look may be late on a busy machine
			reports <- err
		}
	}})
	l, err := dipwell.New(s, store.Limit{Name: "api", Rate: 5, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	rate := func() int64 { return l.Limit("api").Rate }
	eventually(t, "the limits are read", func() bool { _, err := l.Check(t.Context(), "api", "k", 1); return err == nil })
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(t, tx, "select dipwell_internal.lock_limit('api')")
	if _, err := l.Define(t.Context(), store.Limit{Name: "api", Rate: 9, Period: time.Minute}, terms.OwnerAPI); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a change by the API: %v", err)
	}
	if _, err := l.Define(t.Context(), store.Limit{Name: "api", Rate: 6, Period: time.Minute}, store.OwnerCode); err != nil || rate() != 5 {
		t.Errorf("%v, and the rate is %d", err, rate())
	}
	if err := l.Drop(t.Context(), "api", store.OwnerCode); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a drop: %v", err)
	}
	if d, err := l.Take(t.Context(), "api", "k", 1); err != nil || d.Capacity != 5 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := <-reports; !errors.Is(err, store.ErrLocked) {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "stored", func() bool { return rate() == 6 })
}
