package stack_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/server"
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

// wire remembers which Apply each message to the server came through, and all functions
// of this module.
type wire struct {
	net.Conn
	crossed, frames *atomic.Pointer[[]string]
}

func (w wire) Write(b []byte) (int, error) {
	if list := applies(); len(list) > 0 {
		w.crossed.Store(&list)
		all := framesOfModule()
		w.frames.Store(&all)
	}
	return w.Conn.Write(b)
}

// onWire opens a store over a pool whose connections remember crossings.
func onWire(t *testing.T) (*pgstore.Store, *pgxpool.Pool, *atomic.Pointer[[]string]) {
	t.Helper()
	s, pool, w := onWires(t)
	return s, pool, w.crossed
}

func onWires(t *testing.T) (*pgstore.Store, *pgxpool.Pool, wire) {
	t.Helper()
	config, err := pgstore.ParseURL(pgtest.Database(t, "migrated", migrated))
	if err != nil {
		t.Fatal(err)
	}
	w := wire{crossed: new(atomic.Pointer[[]string]), frames: new(atomic.Pointer[[]string])}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return wire{c, w.crossed, w.frames}, err
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
	return s, pool, w
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

// framesOfModule returns the functions of this module, inlined ones too, that a message
// to the server comes through, the outermost first: those of the goroutine that waits for
// the answer, from ServeHTTP on, and those of the lane that sends.
func framesOfModule() (list []string) {
	text := make([]byte, 1<<20)
	own, others, _ := strings.Cut(string(text[:runtime.Stack(text, true)]), "\n\n")
	traces := []string{own}
	for other := range strings.SplitSeq(others, "\n\n") {
		if strings.Contains(other, "server.(*api).ServeHTTP") || strings.Contains(other, "coalesce.(*Store).Apply") {
			traces = append(traces, other)
		}
	}
	for _, trace := range traces {
		for line := range strings.Lines(trace) {
			name, ok := strings.CutPrefix(line, "github.com/dipwell/dipwell")
			if name, _, _ = strings.Cut(strings.TrimPrefix(name, "/"), "({"); !ok || strings.HasPrefix(name, "stack_test.") {
				continue
			}
			if i := strings.LastIndexByte(name, '('); i > 0 && !strings.HasPrefix(name[i:], "(*") {
				name = name[:i]
			}
			list = append(list, strings.TrimSpace(name))
			if strings.HasSuffix(name, ".ServeHTTP") && strings.HasPrefix(name, "internal/server") && len(traces) > 1 {
				break
			}
		}
	}
	slices.Reverse(list)
	return list
}

// TestFrames prints the functions of this module between the service's ServeHTTP and
// the write of a take to PostgreSQL's socket, and checks that they stay few.
func TestFrames(t *testing.T) {
	s, _, w := onWires(t)
	st := build(t, s, service)
	limiter, err := dipwell.New(st.Store, limit)
	if err != nil {
		t.Fatal(err)
	}
	api := server.New(limiter, server.Config{}).API(server.Site{Loopback: true})
	for range 2 { // the first opens the connection and makes the row
		r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/take", strings.NewReader("limit="+limit.Name+"&key=k"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := httptest.NewRecorder()
		if api.ServeHTTP(answer, r); answer.Code != http.StatusOK {
			t.Fatal(answer.Code, answer.Body)
		}
	}
	const mostFrames, mostInStore = 22, 7
	list, in := *w.frames.Load(), 0
	for i, f := range list {
		t.Logf("%2d %s", i+1, f)
		if strings.HasPrefix(f, "pgstore.") {
			in++
		}
	}
	t.Logf("%d functions, %d of them in pgstore", len(list), in)
	if len(list) > mostFrames || in > mostInStore {
		t.Errorf("%d functions, %d of them in pgstore; at most %d and %d", len(list), in, mostFrames, mostInStore)
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
