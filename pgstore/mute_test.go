package pgstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
)

// mute is the address of a server that accepts connections and never answers.
func mute(t *testing.T) string {
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

// ends fails unless f returns an error of a context that has ended.
func ends(t *testing.T, what string, f func(ctx context.Context) error) {
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
	case <-time.After(patience):
		t.Fatalf("%s goes on after its context", what)
	}
}

// TestNewOverAHungServer: opening a store and defining limits on one end with
// their context when the server accepts connections and does not answer.
func TestNewOverAHungServer(t *testing.T) {
	t.Parallel()
	pool := connect(t, "postgres://postgres@"+mute(t)+"/x?sslmode=disable")
	ends(t, "New", func(ctx context.Context) error { _, err := pgstore.New(ctx, pool, pgstore.Config{}); return err })

	server := ownServer(t, "fsync=off")
	s := newStore(t, connect(t, server.DSN("postgres")), pgstore.Config{Poll: -1})
	if err := server.SignalAll(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ends(t, "NewContext", func(ctx context.Context) error {
		_, err := dipwell.NewContext(ctx, s, drained("late", 5))
		if err != nil && !errors.Is(err, dipwell.ErrStore) {
			t.Errorf("%v is no error of the store", err)
		}
		return err
	})
	if err := server.SignalAll(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
