package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// counted counts the statements of a pool.
type counted struct{ n atomic.Int64 }

func (c *counted) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *counted) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestMergedExact: many callers of one row, or of one key with shards, of which some give up, get exactly the tokens
// that there are, with fewer statements than calls.
func TestMergedExact(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"row", "levels", "shards"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			config, err := pgxpool.ParseConfig(pgtest.Database(t, "dipwell", migrated) + "&synchronous_commit=on&pool_max_conns=8")
			if err != nil {
				t.Fatal(err)
			}
			statements := new(counted)
			config.ConnConfig.Tracer = statements
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			const callers, rounds, burst = 64, 20, 1000
			s := newStore(t, pool, pgstore.Config{Poll: -1})
			l, err := dipwell.New(s,
				store.Limit{Name: "all", Rate: 1, Period: 24 * time.Hour, Burst: burst},
				store.Limit{Name: "tenant", Rate: 1, Period: 24 * time.Hour, Burst: burst, Parent: "all"},
				store.Limit{Name: "user", Rate: 1, Period: 24 * time.Hour, Burst: burst, Parent: "tenant"},
				store.Limit{Name: "spread", Rate: 1, Period: 24 * time.Hour, Burst: burst, Shards: 4})
			if err != nil {
				t.Fatal(err)
			}
			take := func(ctx context.Context, caller int) (dipwell.Decision, error) {
				switch kind {
				case "shards":
					return l.Take(ctx, "spread", dipwell.Shared, 1)
				case "levels":
					return l.Take(ctx, "user", dipwell.Key(fmt.Sprint("t", caller%3), fmt.Sprint("u", caller)), 1)
				}
				return l.Take(ctx, "all", dipwell.Shared, 1)
			}
			for caller := range callers {
				if _, err := take(t.Context(), caller); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := pool.Exec(t.Context(), scatterSQL, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := take(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			statements.n.Store(0)
			var taken, unknown atomic.Int64
			taken.Store(callers + 1)
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := range rounds {
						ctx, cancel := context.WithCancel(t.Context())
						if caller%8 == 0 {
							ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
						}
						d, err := take(ctx, caller)
						cancel()
						switch {
						case errors.Is(err, store.ErrOutcomeUnknown):
							unknown.Add(1)
						case err != nil && ctx.Err() == nil:
							t.Error(err)
						case d.Allowed:
							taken.Add(1)
						}
					}
				})
			}
			all.Wait()
			d, err := l.Check(t.Context(), map[string]string{"row": "all", "levels": "all", "shards": "spread"}[kind], dipwell.Shared, 0)
			if err != nil {
				t.Fatal(err)
			}
			if used := burst - d.Remaining; used < taken.Load() || used > taken.Load()+unknown.Load() {
				t.Errorf("%d used, %d taken, %d unknown", used, taken.Load(), unknown.Load())
			}
			if kind == "levels" {
				const sum = "select round(sum(b.used) / 86400e6)::bigint from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id where l.name = "
				if all, tenants, users := number(t, pool, sum+"'all'"), number(t, pool, sum+"'tenant'"), number(t, pool, sum+"'user'"); all != tenants || all != users {
					t.Errorf("used of all %d, of tenants %d, of users %d", all, tenants, users)
				}
			}
			if n := statements.n.Load(); n >= callers*rounds { // how many fewer depends on the load of the machine
				t.Errorf("%d statements for %d calls", n, callers*rounds)
			} else {
				t.Logf("%d statements for %d calls", n, callers*rounds)
			}
		})
	}
}

// TestMergedLock: a statement for calls of different rows does not wait long for a row
// that another transaction has locked, because the caller who has locked it may wait for
// the answer.
func TestMergedLock(t *testing.T) {
	t.Parallel()
	for _, settings := range []string{"", "&lock_timeout=20ms", "&lock_timeout=1h"} {
		pool, s, l := gated(t, settings)
		for range 2 {
			if err := pgstore.TakeTogether(t.Context(), s, [2]string{"first", "k"}, [2]string{"second", "k"}); err != nil {
				t.Errorf("without locks: %v", err)
			}
		}
		tx, _ := held(t, pool, s, l, "k", "")
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		if err := pgstore.TakeTogether(ctx, s, [2]string{"first", "k"}, [2]string{"second", "k"}); !errors.Is(err, store.ErrLocked) {
			t.Errorf("while a row is locked: %v", err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Check(t.Context(), "second", "k", 0); err != nil || d.Remaining != 100-5 {
			t.Errorf("%d remain, %v; want 95", d.Remaining, err)
		}
		if wait := text(t, pool, "show lock_timeout"); wait != map[string]string{"": "0", "&lock_timeout=20ms": "20ms", "&lock_timeout=1h": "1h"}[settings] {
			t.Errorf("lock_timeout is %s after the statements", wait)
		}
	}
}

func text(t *testing.T, db pgstore.DB, sql string) (s string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}
