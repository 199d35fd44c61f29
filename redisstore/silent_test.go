package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestNewOverAHungServer checks that opening a store, and defining limits on
// it, end with their context if the server does not answer.
func TestNewOverAHungServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	db := connect(t, server.URL())
	s := newStore(t, db, redisstore.Config{Poll: -1})
	if err := server.Hang(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Continue(); err != nil {
			t.Error(err)
		}
	}()
	for what, f := range map[string]func(ctx context.Context) error{
		"New": func(ctx context.Context) error {
			_, err := redisstore.New(ctx, db, redisstore.Config{Poll: -1})
			return err
		},
		"Define": func(ctx context.Context) error {
			l, err := dipwell.New(s)
			if err == nil {
				_, err = l.Define(ctx, store.Limit{Name: "late", Rate: 1, Period: time.Second}, store.OwnerCode)
			}
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		select {
		case err := <-done:
			if !errors.Is(err, store.ErrStore) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s goes on after its context", what)
		}
		cancel()
	}
}
