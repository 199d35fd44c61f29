package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// newRawStore returns a store on one connection with limits from each of which
// a token was taken.
func newRawStore(t *testing.T, limits ...store.Limit) (*pgx.Conn, *dipwell.Limiter) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgtest.Database(t, "dipwell", migrated))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	l, err := dipwell.New(newStore(t, conn, pgstore.Config{Poll: -1}), limits...)
	if err != nil {
		t.Fatal(err)
	}
	return conn, l
}

func takeTwice(t *testing.T, l *dipwell.Limiter, limit string, left int64) {
	t.Helper()
	for i := range int64(2) {
		if d, err := l.Take(context.Background(), limit, "k", 1); err != nil || !d.Allowed || d.Remaining != left-i {
			t.Fatalf("%s: %+v, %v; want %d left", limit, d, err, left-i)
		}
	}
}

func preparedTakes(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	err := conn.QueryRow(context.Background(), "select count(*) from pg_prepared_statements where name like 'dipwell_take_%'", pgx.QueryExecModeSimpleProtocol).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestStatementGone checks that a call succeeds after its prepared statement
// was deallocated by another user of the connection.
func TestStatementGone(t *testing.T) {
	conn, l := newRawStore(t, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20})
	takeTwice(t, l, "a", 19)
	if n := preparedTakes(t, conn); n != 1 {
		t.Fatalf("%d statements are prepared, not 1", n)
	}
	if _, err := conn.Exec(context.Background(), "deallocate all", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if err := conn.DeallocateAll(context.Background()); err != nil { // so that pgx forgets its own statements
		t.Fatal(err)
	}
	takeTwice(t, l, "a", 17)
	takeTwice(t, l, "a", 15)
}

// TestStatementGoneInTransaction checks that in a transaction the call fails,
// as the transaction does, and that calls succeed after a rollback.
func TestStatementGoneInTransaction(t *testing.T) {
	ctx := context.Background()
	conn, l := newRawStore(t, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20})
	takeTwice(t, l, "a", 19)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec("begin")
	takeTwice(t, l, "a", 17)
	exec("deallocate all")
	if d, err := l.Take(ctx, "a", "k", 1); err == nil {
		t.Fatalf("%+v in a transaction that has failed", d)
	}
	exec("rollback")
	if err := conn.DeallocateAll(ctx); err != nil {
		t.Fatal(err)
	}
	takeTwice(t, l, "a", 17)
}

// TestOneStatementALimit checks that the statements of old versions do not pile
// up on a connection.
func TestOneStatementALimit(t *testing.T) {
	conn, l := newRawStore(t, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20})
	left := int64(19)
	for burst := int64(21); burst < 25; burst++ {
		takeTwice(t, l, "a", left)
		if _, err := l.Define(context.Background(), store.Limit{Name: "a", Rate: 1, Period: day, Burst: burst}, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Take(context.Background(), "a", "k", 0); err != nil {
			t.Fatal(err)
		}
		d, err := l.Check(context.Background(), "a", "k", 0)
		if err != nil {
			t.Fatal(err)
		}
		left = d.Remaining - 1
	}
	takeTwice(t, l, "a", left)
	if n := preparedTakes(t, conn); n != 1 {
		t.Errorf("%d statements are prepared for one limit", n)
	}
}

// TestStatementsAreBounded checks that limits beyond the bound use pgx's own
// cache.
func TestStatementsAreBounded(t *testing.T) {
	limits := make([]store.Limit, pgstore.MaxRawStatements+2)
	for i := range limits {
		limits[i] = store.Limit{Name: fmt.Sprint("l", i), Rate: 1, Period: day, Burst: 20}
	}
	conn, l := newRawStore(t, limits...)
	for _, limit := range limits {
		takeTwice(t, l, limit.Name, 19)
	}
	if n := preparedTakes(t, conn); n != pgstore.MaxRawStatements {
		t.Errorf("%d statements are prepared, not %d", n, pgstore.MaxRawStatements)
	}
}

// TestTracedStatements checks that a tracer sees the statement of a Take.
func TestTracedStatements(t *testing.T) {
	ctx := context.Background()
	config, err := pgx.ParseConfig(pgtest.Database(t, "dipwell", migrated))
	if err != nil {
		t.Fatal(err)
	}
	heard := &countingTracer{}
	config.Tracer = heard
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	l, err := dipwell.New(newStore(t, conn, pgstore.Config{Poll: -1}), store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	takeTwice(t, l, "a", 19)
	heard.n = 0
	takeTwice(t, l, "a", 17)
	if heard.n != 2 {
		t.Errorf("%d statements were traced, not 2", heard.n)
	}
}

// TestSharedBucketFirst checks that the empty key, as the first on a
// connection, is not sent as null.
func TestSharedBucketFirst(t *testing.T) {
	for name, force := range map[string]func(*pgstore.Store){"known": func(*pgstore.Store) {}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			conn, asked := countingConn(t)
			s := newStore(t, conn, pgstore.Config{Poll: -1})
			l, err := dipwell.New(s, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20, Shared: true})
			if err != nil {
				t.Fatal(err)
			}
			force(s)
			for i := range int64(3) {
				*asked = 0
				if d, err := l.Take(ctx, "a", dipwell.Shared, 1); err != nil || d.Remaining != 19-i {
					t.Fatal(d, err)
				}
			}
			if *asked != 1 {
				t.Errorf("%d statements for a bucket that is there, not 1", *asked)
			}
		})
	}
}

// TestStatementStale checks that a call succeeds after a column of its result
// was altered, so that its prepared statement is no longer valid.
func TestStatementStale(t *testing.T) {
	conn, l := newRawStore(t, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20})
	takeTwice(t, l, "a", 19)
	other, err := pgx.Connect(context.Background(), conn.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	for _, sql := range []string{
		"drop view dipwell.status",
		"alter table dipwell.buckets alter column ts type numeric",
	} {
		must(t, other, sql)
	}
	_, _ = l.Take(context.Background(), "a", "k", 1) // a numeric cannot be scanned
	must(t, other, "alter table dipwell.buckets alter column ts type bigint")
	left := int64(15)
	if d, err := l.Check(context.Background(), "a", "k", 0); err == nil {
		left = d.Remaining - 1
	}
	takeTwice(t, l, "a", left)
}

type countingTracer struct{ n int }

func (h *countingTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	h.n++
	return ctx
}

func (h *countingTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestTakeWithinDeadline checks that a Take that waits for a locked row ends
// with its context, and that the pool can still be used.
func TestTakeWithinDeadline(t *testing.T) {
	ctx := context.Background()
	pool := recycledPool(t, "dipwell", migrated)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	takeTwice(t, l, "a", 19)
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "select from dipwell.buckets for update"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if d, err := l.Take(short, "a", "k", 1); err == nil {
		t.Errorf("%+v of a row that is locked", d)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "a", "k", 1); err != nil || !d.Allowed {
		t.Error(d, err)
	}
}

// TestCancelledBeforeAConnection checks that a call whose context ends before
// the pool has a free connection is known to have charged nothing.
func TestCancelledBeforeAConnection(t *testing.T) {
	t.Parallel()
	pool := connect(t, pgtest.Database(t, "dipwell", migrated)+"&pool_max_conns=1")
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20}, store.Limit{Name: "b", Rate: 1, Period: day, Burst: 20, Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string][]dipwell.Take{
		"take":     {{Limit: "a", Key: "k", Cost: 1}},
		"take all": {{Limit: "a", Key: "k", Cost: 1}, {Limit: "a", Key: "k2", Cost: 1}},
		"shards":   {{Limit: "b", Key: "k", Cost: 1}},
	}
	for name, takes := range calls {
		if _, err := l.TakeAll(t.Context(), takes...); err != nil {
			t.Fatal(name, err)
		}
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, takes := range calls {
		if _, err := l.TakeAll(ctx, takes...); !errors.Is(err, context.Canceled) || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
