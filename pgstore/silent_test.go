package pgstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// silentServer returns the address of a server that accepts connections and
// never answers.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

// checkEnds fails unless f returns a context error.
func checkEnds(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(testTimeout):
		t.Fatalf("%s goes on after its context", what)
	}
}

// TestNewOverAHungServer checks that opening a store, and defining limits on
// it, end with their context if the server does not answer.
func TestNewOverAHungServer(t *testing.T) {
	t.Parallel()
	pool := connect(t, "postgres://postgres@"+silentServer(t)+"/x?sslmode=disable")
	checkEnds(t, "New", func(ctx context.Context) error { _, err := pgstore.New(ctx, pool, pgstore.Config{}); return err })

	server := ownServer(t, "fsync=off")
	s := newStore(t, connect(t, server.DSN("postgres")), pgstore.Config{Poll: -1})
	if err := server.SignalAll(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	checkEnds(t, "Define", func(ctx context.Context) error {
		l, err := dipwell.New(s)
		if err == nil {
			_, err = l.Define(ctx, drained("late", 5), store.OwnerCode)
		}
		if err != nil && !errors.Is(err, store.ErrStore) {
			t.Errorf("%v is no error of the store", err)
		}
		return err
	})
	if err := server.SignalAll(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// droppingConn drops what is written to it once on is true.
type droppingConn struct {
	net.Conn
	on *atomic.Bool
}

func (c droppingConn) Write(b []byte) (int, error) {
	if c.on.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestTimeoutWhilePreparing checks that a call whose context ends while its
// statement is being prepared is known to have charged nothing.
func TestTimeoutWhilePreparing(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(pgtest.Database(t, "dipwell", migrated))
	if err != nil {
		t.Fatal(err)
	}
	on := new(atomic.Bool)
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return droppingConn{conn, on}, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	l, err := dipwell.New(newStore(t, conn, pgstore.Config{Poll: -1}), drained("a", 5))
	if err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	checkEnds(t, "Take", func(ctx context.Context) error {
		_, err := l.Take(ctx, "a", "k", 1)
		if !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("%v does not say that nothing was charged", err)
		}
		return err
	})
}
