package recipes

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A clock that the test sets: no sleep, and exact times.
func TestLoginIsLimited(t *testing.T) {
	now := time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC).UnixMicro()
	store, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limiter, err := dipwell.New(store, dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if d, err := limiter.Take(t.Context(), "login", "user:7", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	d, err := limiter.Take(t.Context(), "login", "user:7", 1)
	if err != nil || d.Allowed || d.RetryAfter != 12*time.Second {
		t.Fatal(d, err)
	}
	now += d.RetryAfter.Microseconds()
	if d, err = limiter.Take(t.Context(), "login", "user:7", 1); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
}

// Code that waits runs in a bubble of testing/synctest: when all goroutines of
// the bubble sleep, its clock jumps to the next timer.
func TestWorkerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		limiter, err := dipwell.New(store, dipwell.Limit{Name: "mail", Rate: 1, Period: time.Minute, MaxDebt: 10})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for range 4 { // the code under test
			if d, err := limiter.Wait(t.Context(), "mail", "acme", 1); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		if took := time.Since(begin); took != 3*time.Minute {
			t.Errorf("4 mails took %v", took)
		}
	})
}

// down is a store that cannot answer.
type down struct{}

func (down) Apply(context.Context, *store.Batch) error { return dipwell.ErrStore }

// What the program does while the store does not answer: this limit fails open, and the
// answer says that it was not the store's.
func TestStoreIsAway(t *testing.T) {
	limiter, err := dipwell.New(down{}, dipwell.Limit{Name: "search", Rate: 10, Period: time.Second, OnStoreError: dipwell.FailOpen})
	if err != nil {
		t.Fatal(err)
	}
	d, err := limiter.Take(t.Context(), "search", "user:7", 1)
	if err != nil || !d.Allowed || d.Source.String() != "fallback-open" {
		t.Error(d, err)
	}
}
