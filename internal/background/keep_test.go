package background_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

var errLong = &store.FieldError{Field: "ttl", Reason: "is longer than the limit lets a hold be"}

// TestKeepShortens checks that a hold whose limit allows a shorter TTL than before is
// extended by the largest half of its TTL that is allowed.
func TestKeepShortens(t *testing.T) {
	for _, c := range []struct {
		allowed, want time.Duration
	}{
		{time.Hour, time.Minute},
		{50 * time.Second, 30 * time.Second},
		{20 * time.Second, 15 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var last time.Duration
			expires := time.Now().Add(time.Minute)
			kept, stop := background.Keep(t.Context(), time.Minute, func(_ context.Context, ttl time.Duration) error {
				if ttl > c.allowed {
					return errLong
				}
				if !time.Now().Before(expires) {
					return store.ErrHoldConflict
				}
				last, expires = ttl, time.Now().Add(ttl)
				return nil
			})
			time.Sleep(70 * time.Second)
			synctest.Wait()
			if last != c.want || kept.Err() != nil {
				t.Errorf("%v allowed: extended by %v, want %v; %v", c.allowed, last, c.want, context.Cause(kept))
			}
			stop()
			stop()
		})
	}
}

// TestKeepEnds checks which errors of an extension end the context.
func TestKeepEnds(t *testing.T) {
	for _, err := range []error{nil, store.ErrHoldConflict, store.ErrUnknownHold, store.ErrStore, errLong} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			kept, stop := background.Keep(t.Context(), time.Minute, func(context.Context, time.Duration) error { calls++; return err })
			defer stop()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			ends := slices.Contains([]error{store.ErrHoldConflict, store.ErrUnknownHold}, err)
			if ends && !errors.Is(context.Cause(kept), err) || !ends && kept.Err() != nil || (calls == 1) != ends || calls > 17*30 {
				t.Errorf("%v: %v after %d calls", err, context.Cause(kept), calls)
			}
		})
	}
}
