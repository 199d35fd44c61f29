package redisstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestKnownHoldChangedElsewhere checks a settle by the program that made a hold, and so knows
// it, after another program has changed it.
func TestKnownHoldChangedElsewhere(t *testing.T) {
	t.Parallel()
	db := client(t)
	take := dipwell.Take{Limit: "b", Key: "k", Cost: 10}
	for name, c := range map[string]struct {
		change func(l *dipwell.Limiter, now *int64) error
		want   error
		again  bool
		left   int64 // of 100
	}{
		"extended": {func(l *dipwell.Limiter, now *int64) error {
			_, err := l.Extend(t.Context(), "id", time.Hour)
			*now += 2 * time.Minute.Microseconds()
			return err
		}, nil, false, 97},
		"settled alike": {func(l *dipwell.Limiter, _ *int64) error {
			_, err := l.Settle(t.Context(), "id", 3)
			return err
		}, nil, true, 97},
		"settled otherwise": {func(l *dipwell.Limiter, _ *int64) error {
			_, err := l.Settle(t.Context(), "id", 4)
			return err
		}, store.ErrHoldConflict, false, 96},
		"reset": {func(l *dipwell.Limiter, _ *int64) error {
			_, err := l.Reset(t.Context(), "b", "k")
			return err
		}, nil, false, 100},
		"forgotten": {func(_ *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			return nil
		}, store.ErrUnknownHold, false, 100},
		"forgotten, and made of another key": {func(l *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "b", Key: "other", Cost: 20})
			return err
		}, nil, false, 100},
		"forgotten, and made with another cost": {func(l *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "b", Key: "k", Cost: 20})
			return err
		}, nil, false, 97},
		"forgotten, and made with another cost before the clock steps back": {func(l *dipwell.Limiter, now *int64) error {
			*now += time.Hour.Microseconds()
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "b", Key: "k", Cost: 20})
			*now -= time.Hour.Microseconds()
			return err
		}, nil, false, 97},
	} {
		t.Run(name, func(t *testing.T) {
			now := int64(1e15)
			config := redisstore.Config{Prefix: fmt.Sprint("known", prefixes.Add(1)), Poll: -1, Clock: func() int64 { return now }}
			b := store.Limit{Name: "b", Rate: 100, Period: 24 * time.Hour}
			mine, others := limiter(t, newStore(t, db, config), b), limiter(t, newStore(t, db, config), b)
			if d, err := mine.Hold(t.Context(), time.Minute, "id", take); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if err := c.change(others, &now); err != nil {
				t.Fatal(err)
			}
			d, err := mine.Settle(t.Context(), "id", 3)
			if !errors.Is(err, c.want) || d.Repeated != c.again {
				t.Errorf("settle: %+v, %v; want %v, repeated %v", d, err, c.want, c.again)
			}
			if d, err = others.Check(t.Context(), "b", "k", 0); err != nil || d.Remaining != c.left {
				t.Errorf("%d left, %v; want %d", d.Remaining, err, c.left)
			}
		})
	}
}
