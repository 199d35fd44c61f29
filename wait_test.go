package dipwell_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
)

// A wait that was given up has no tokens, and its decision says so.
func TestWaitGivenUpIsNotAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		l, err := dipwell.New(store, dipwell.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: 5})
		if err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), "work", "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		d, err := l.Wait(ctx, "work", "k", 2)
		if !errors.Is(err, context.Canceled) || d.Allowed || d.Granted != 0 || d.Reservation != (dipwell.Reservation{}) || d.Cost != 2 {
			t.Errorf("a wait that was given up: %+v, %v", d, err)
		}
	})
}
