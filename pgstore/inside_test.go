package pgstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestLimitsInsideATransaction checks that a store in the caller's transaction
// reads limits through it. The transaction has the pool's only connection, so
// that anything that asks the pool blocks until the context ends.
func TestLimitsInsideATransaction(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(string) error{"functions": migrated, "portable": migratedPortable} {
		gone := store.ErrUnknownLimit
		if name == "portable" { // charges a row of the dropped limit, as a Take does
			gone = nil
		}
		for _, c := range []struct {
			name   string
			change func(t *testing.T, s, other *pgstore.Store)
			want   error
		}{
			{"defined meanwhile", func(t *testing.T, _, other *pgstore.Store) { defineX(t, other) }, nil},
			{"dropped meanwhile", func(t *testing.T, s, other *pgstore.Store) {
				defineX(t, s)
				drop(t, other, "x")
			}, gone},
			{"limits read an hour ago", func(t *testing.T, s, _ *pgstore.Store) {
				defineX(t, s)
				pgstore.ForgetLimits(s)
			}, nil},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				dsn := pgtest.Database(t, name, prepare)
				config, err := pgxpool.ParseConfig(dsn)
				if err != nil {
					t.Fatal(err)
				}
				config.MaxConns = 1
				pool, err := pgxpool.NewWithConfig(ctx, config)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				s := newStore(t, pool, pgstore.Config{Poll: -1})
				other := newStore(t, connect(t, dsn), pgstore.Config{Poll: -1})
				c.change(t, s, other)
				tx, err := pool.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(ctx) }()
				var b store.Batch
				g, _ := b.Single()
				g.Ops = nil
				for _, key := range []string{"k", "l"} {
					g.Ops = append(g.Ops, store.Op{Def: limittest.Definition(limitX), Key: key, Cost: 9})
				}
				if err := s.With(tx).Apply(ctx, &b); err != nil {
					t.Fatal(err)
				}
				if !errors.Is(g.Err, c.want) || g.Allowed != (c.want == nil) {
					t.Errorf("allowed: %v, %v; want %v", g.Allowed, g.Err, c.want)
				}
			})
		}
	}
}

// TestAcquiredConnection checks that a store on an acquired connection notices
// a transaction begun there by a statement. Rows that it has written must not
// count as new, and a refused call must not abort it.
func TestAcquiredConnection(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("one", 10), drained("two", 10))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	must(t, conn, "begin")
	in := l.With(s.With(conn))
	for i := range 4 {
		if d, err := in.TakeAll(t.Context(), takesOf("k", 4, "one", "two")...); err != nil || d.Allowed != (i < 2) {
			t.Errorf("call %d: %+v, %v", i, d, err)
		}
	}
	must(t, conn, "rollback")
	if d, err := l.Check(t.Context(), "one", "k", 1); err != nil || d.Remaining != 10 {
		t.Errorf("after the rollback: %+v, %v", d, err)
	}
}

var limitX = store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 9}

func defineX(t *testing.T, s *pgstore.Store) {
	t.Helper()
	if _, err := s.Define(context.Background(), limitX, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
}

func drop(t *testing.T, s *pgstore.Store, name string) {
	t.Helper()
	if err := s.Drop(context.Background(), name, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
}

// TestEmptySnapshot checks that a transaction whose snapshot is older than every limit
// does not take the limits away from the rest of the program.
func TestEmptySnapshot(t *testing.T) {
	t.Parallel()
	for name, newPool := range map[string]func(testing.TB) *pgxpool.Pool{"functions": newPool, "portable": portablePool} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t)
			s := newStore(t, pool, pgstore.Config{Poll: -1})
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			var n int
			if err := tx.QueryRow(t.Context(), "select count(*) from dipwell.limits").Scan(&n); err != nil || n != 0 {
				t.Fatal(n, err)
			}
			defineX(t, s)
			pgstore.ForgetLimits(s)
			var b store.Batch
			_, op := b.Single()
			*op = store.Op{Def: limittest.Definition(limitX), Key: "k", Cost: 1}
			_ = s.With(tx).Apply(t.Context(), &b)
			if s.Registry().Lookup("x") == nil {
				t.Error("the limit is gone")
			}
		})
	}
}
