package away_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestStack runs the suite of all stores over all decorators, in the order of the
// service.
func TestStack(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memory.New(memory.Config{Clock: now})
		check(t, err)
		together, err := coalesce.New(store.Lanes{Stores: []store.Store{inner, inner}}, coalesce.Config{Timeout: time.Minute}) // a busy machine may be slow
		check(t, err)
		guarded := away.NewBreaker(together, away.BreakerConfig{Patience: time.Minute, Timeout: time.Minute})
		cached, err := denycache.New(guarded, denycache.Config{Clock: now})
		check(t, err)
		s, err := away.NewFallback(cached, away.FallbackConfig{Clock: now})
		check(t, err)
		t.Cleanup(func() { check(t, errors.Join(s.Close(), guarded.Close(), together.Close(), inner.Close())) })
		return s
	}, storetest.Options{Quick: true})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
