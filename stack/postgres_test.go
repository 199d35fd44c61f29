package stack_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(withPostgres{m}) }

// withPostgres ends the server that tests have started.
type withPostgres struct{ *testing.M }

func (m withPostgres) Run() int { return pgtest.Main(m.M) }

func migrated(dsn string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = pgstore.Migrate(ctx, conn, pgstore.MigrateOptions{})
	return err
}

// wire remembers which Apply each message to the server came through.
type wire struct {
	net.Conn
	crossed *atomic.Pointer[[]string]
}

func (w wire) Write(b []byte) (int, error) {
	if list := applies(); len(list) > 0 {
		w.crossed.Store(&list)
	}
	return w.Conn.Write(b)
}

// onWire opens a store over a pool whose connections remember crossings.
func onWire(t *testing.T) (*pgstore.Store, *pgxpool.Pool, *atomic.Pointer[[]string]) {
	t.Helper()
	config, err := pgstore.ParseURL(pgtest.Database(t, "migrated", migrated))
	if err != nil {
		t.Fatal(err)
	}
	crossed := new(atomic.Pointer[[]string])
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return wire{c, crossed}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(t.Context(), pool, pgstore.Config{Poll: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, pool, crossed
}

// TestPostgresCrossings: between a Limiter and the socket a lone take crosses two
// Applies, and one more for each decorator that an option asks for.
func TestPostgresCrossings(t *testing.T) {
	s, _, crossed := onWire(t)
	for _, tc := range []struct {
		options stack.Options
		want    []string
	}{
		{stack.Options{}, []string{"coalesce", "pgstore"}},
		{service, []string{"away.Fallback", "lease", "denycache", "away.Breaker", "coalesce", "pgstore"}},
		{stack.Options{Lanes: -1}, []string{"pgstore"}},
	} {
		st := build(t, s, tc.options)
		for range 2 { // the first opens the connection and makes the row
			take(t, st.Store)
		}
		if got := *crossed.Load(); !slices.Equal(got, tc.want) {
			t.Errorf("%+v: a take crosses %v, want %v", tc.options, got, tc.want)
		}
	}
}

// TestPostgresInTransaction: over the caller's transaction there are no lanes,
// and the limits of the stack count there.
func TestPostgresInTransaction(t *testing.T) {
	ctx := context.Background()
	s, pool, _ := onWire(t)
	st := build(t, s, stack.Options{})
	limiter, err := dipwell.New(st.Store, limit)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	within := s.With(tx)
	if inner := build(t, within, stack.Options{}); inner.Store != store.Store(within) || inner.Lanes != 0 {
		t.Errorf("%T with %d lanes is around a transaction", inner.Store, inner.Lanes)
	}
	if d, err := limiter.With(within).Take(ctx, limit.Name, "k", 3); err != nil || !d.Allowed {
		t.Errorf("%+v %v", d, err)
	}
	if err = tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := limiter.Take(ctx, limit.Name, "k", 1); err != nil || d.Remaining != limit.Burst-1 {
		t.Errorf("after the rollback: %+v %v", d, err)
	}
}

// TestHowTo: docs/how-to/stack.md shows what Example_postgres runs.
func TestHowTo(t *testing.T) {
	page, err := os.ReadFile("../docs/how-to/stack.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_postgres_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(page), "```go\n")
	code, _, _ = strings.Cut(code, "```")
	runs := map[string]bool{"…": true}
	for line := range strings.Lines(string(example)) {
		runs[strings.TrimSpace(line)] = true
	}
	for line := range strings.Lines(code) {
		if !runs[strings.TrimSpace(line)] {
			t.Errorf("Example_postgres does not have the line %q", line)
		}
	}
}
