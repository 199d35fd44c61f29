package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// A fault is a row that makes every statement with it fail.
type fault struct {
	name string
	dsn  string // connection parameters
	want error
	make func(t *testing.T, dsn string)
}

var rowFaults = []fault{
	{"locked", "&lock_timeout=20", store.ErrLocked, func(t *testing.T, dsn string) { otherTx(t, dsn, "select dipwell.take('one', 'bad')") }},
	{"new and locked", "&lock_timeout=20", store.ErrLocked, func(t *testing.T, dsn string) {
		otherTx(t, dsn, "delete from dipwell.buckets where key = 'bad'") // a delete is committed
		otherTx(t, dsn, "select dipwell.take('one', 'bad')")
	}},
	{"locked, with a statement timeout", "&statement_timeout=300", store.ErrStore, func(t *testing.T, dsn string) { otherTx(t, dsn, "select dipwell.take('one', 'bad')") }},
	{"bad numbers", "", store.ErrStore, func(t *testing.T, dsn string) {
		if err := execute(dsn, fmt.Sprintf("update dipwell.buckets set ts = %d where key = 'bad'", int64(math.MinInt64+1))); err != nil {
			t.Fatal(err)
		}
	}},
}

// otherTx runs a statement in a transaction that stays open until the test
// ends. A delete is committed at once.
func otherTx(t *testing.T, dsn, sql string) {
	t.Helper()
	ctx := context.Background()
	if sql[:6] == "delete" {
		if err := execute(dsn, sql); err != nil {
			t.Fatal(err)
		}
		return
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	if _, err = conn.Exec(ctx, "begin; "+sql); err != nil {
		t.Fatal(err)
	}
}

// newFaultyStore returns a store on a database with two limits, in which the
// row of limit "one" and key "bad" is the fault.
func newFaultyStore(t *testing.T, f *fault) (*pgstore.Store, *pgxpool.Pool) {
	t.Helper()
	dsn := pgtest.Database(t, "dipwell", migrated)
	s := newStore(t, connect(t, dsn), pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("one", 100_000), drained("two", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Take(context.Background(), "one", "bad", 1); err != nil {
		t.Fatal(err)
	}
	f.make(t, dsn)
	pool := connect(t, dsn+f.dsn) // limits are defined and read without these timeouts
	return s.With(pool), pool
}

// TestOneRowAtFault checks that in a batch of many rows and two limits only the
// callers of the row that makes the statement fail get its error; all others
// are answered and charged once.
func TestOneRowAtFault(t *testing.T) {
	for _, f := range rowFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s, _ := newFaultyStore(t, &f)
			ctx := context.Background()
			var b store.Batch
			for i := range 300 {
				limit, key := "one", fmt.Sprint("k", i%100)
				switch {
				case i%3 == 1:
					limit = "two"
				case i%20 == 0:
					key = "bad"
				}
				b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: s.Registry().Lookup(limit), Key: key, Verb: store.VerbTake, Cost: 1}}})
			}
			if err := s.Apply(ctx, &b); err != nil {
				t.Fatal(err)
			}
			asked := map[[2]string]int64{}
			for i := range b.Groups {
				g := &b.Groups[i]
				op := &g.Ops[0]
				if op.Key == "bad" {
					if !errors.Is(g.Err, f.want) || errors.Is(g.Err, store.ErrOutcomeUnknown) {
						t.Errorf("the row at fault: %v", g.Err)
					}
					continue
				}
				asked[[2]string{op.Def.Name, op.Key}]++
				if g.Err != nil || !g.Allowed {
					t.Errorf("%s %s: %v %v", op.Def.Name, op.Key, g.Allowed, g.Err)
				}
			}
			for row, n := range asked {
				left := store.Batch{}
				g, op := left.Single()
				op.Def, op.Key, op.Verb = s.Registry().Lookup(row[0]), row[1], store.VerbCheck
				if err := s.Apply(ctx, &left); err != nil || g.Err != nil || op.Remaining != 100_000-n {
					t.Errorf("%v: %d left after %d takes, %v %v", row, op.Remaining, n, err, g.Err)
				}
			}
		})
	}
}

// countingDB counts the statements for many rows.
type countingDB struct {
	*pgxpool.Pool
	n atomic.Int64
}

func (a *countingDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	a.n.Add(1)
	return a.Pool.Query(ctx, sql, args...)
}

// TestManyRowsAtFault checks that if all rows of a statement are bad, all callers get an error
// that says that nothing was charged. Those that are locked all get ErrLocked, after one wait.
func TestManyRowsAtFault(t *testing.T) {
	for name, c := range map[string]struct {
		make   func(t *testing.T, dsn string)
		most   int64 // statements for many rows
		locked int
	}{
		"locked": {func(t *testing.T, dsn string) { otherTx(t, dsn, "select from dipwell.buckets for update") }, 2, 1000},
		"bad numbers": {func(t *testing.T, dsn string) {
			if err := execute(dsn, fmt.Sprintf("update dipwell.buckets set ts = %d", int64(math.MinInt64+1))); err != nil {
				t.Fatal(err)
			}
		}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.Database(t, "dipwell", migrated)
			db := &countingDB{Pool: connect(t, dsn+"&lock_timeout=1")}
			s := newStore(t, db, pgstore.Config{Poll: -1})
			ctx := context.Background()
			d, err := s.Define(ctx, drained("one", 9), store.OwnerCode)
			if err != nil {
				t.Fatal(err)
			}
			var b store.Batch
			for i := range 1000 {
				b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: fmt.Sprint("k", i), Verb: store.VerbTake, Cost: 1}}})
			}
			if err := s.Apply(ctx, &b); err != nil || b.Groups[999].Err != nil {
				t.Fatal(err, b.Groups[999].Err)
			}
			c.make(t, dsn)
			db.n.Store(0)
			if err := s.Apply(ctx, &b); err != nil {
				t.Fatal(err)
			}
			locked := 0
			for i := range b.Groups {
				switch err := b.Groups[i].Err; {
				case !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown):
					t.Fatal(err)
				case errors.Is(err, store.ErrLocked):
					locked++
				}
			}
			if n := db.n.Load(); n > c.most || locked != c.locked {
				t.Errorf("%d statements, %d rows called locked", n, locked)
			}
		})
	}
}

// TestConnectionLostWithMany checks that the outcome is unknown for all groups
// of a statement whose connection was lost.
func TestConnectionLostWithMany(t *testing.T) {
	t.Parallel()
	s, pool := newFaultyStore(t, &rowFaults[0])
	ctx := context.Background()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err = conn.Exec(ctx, "set lock_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	for i := range 50 {
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: s.Registry().Lookup("one"), Key: fmt.Sprint("a", i), Verb: store.VerbTake, Cost: 1}}})
	}
	b.Groups[7].Ops[0].Key = "bad"
	applied := make(chan error, 1)
	go func() { applied <- s.With(conn.Conn()).Apply(ctx, &b) }()
	eventually(t, "waiting for the row", func() bool {
		var n int
		err := pool.QueryRow(ctx, "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid = $1 and wait_event_type = 'Lock'", conn.Conn().PgConn().PID()).Scan(&n)
		return err == nil && n == 1
	})
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		if err := b.Groups[i].Err; !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("group %d: %v", i, err)
		}
	}
}

// TestOneRowAtFaultInLanes is TestOneRowAtFault under coalesce, with callers in
// a loop: no call for a good key gets an error.
func TestOneRowAtFaultInLanes(t *testing.T) {
	for _, f := range rowFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s, pool := newFaultyStore(t, &f)
			ctx := context.Background()
			var lanes []store.Store
			for range 2 {
				conn, err := pool.Acquire(ctx)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(conn.Release)
				lanes = append(lanes, s.With(conn.Conn()))
			}
			c, err := coalesce.New(store.Lanes{Stores: lanes}, coalesce.Config{Timeout: testTimeout})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			l, err := dipwell.New(c)
			if err != nil {
				t.Fatal(err)
			}
			var calls, innocent, guilty atomic.Int64
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for j := range 20 {
						key := fmt.Sprint("k", (i*7+j)%40)
						if i == 0 {
							key = "bad"
						}
						limit := []string{"one", "two"}[j%2]
						d, err := l.Take(ctx, limit, key, 1)
						switch calls.Add(1); {
						case i == 0 && limit == "one":
							if errors.Is(err, f.want) {
								guilty.Add(1)
							}
						case err != nil || !d.Allowed:
							innocent.Add(1)
							t.Logf("%s %s: %v", limit, key, err)
						}
					}
				})
			}
			wg.Wait()
			if n := innocent.Load(); n > 0 || guilty.Load() != 10 {
				t.Errorf("%d errors of %d calls on sound keys, %d of 10 on the one at fault", n, calls.Load(), guilty.Load())
			}
		})
	}
}
