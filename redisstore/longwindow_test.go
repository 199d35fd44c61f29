package redisstore_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestOverrideInLongWindow checks that the row of an overridden key of which nothing is
// used is full, also in windows that are longer than the time since the Unix epoch.
func TestOverrideInLongWindow(t *testing.T) {
	t.Parallel()
	const century = 100 * 365 * 24 * time.Hour
	s := newStore(t, connect(t, redistest.Shared(t).URL()), redisstore.Config{Prefix: "century", Poll: -1})
	l := limiter(t, s,
		store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: century, Start: "0s"},
		store.Limit{Name: "refill", Algorithm: store.Interval, Rate: 5, Period: century, Burst: 5, Start: "0s"})
	for _, name := range []string{"window", "refill"} {
		const key = "k"
		o := dipwell.Override{Key: key, Rate: 7, Burst: 7}
		if _, err := l.SetOverride(t.Context(), name, o); err != nil {
			t.Fatal(name, err)
		}
		for range 2 { // the second time in a program that knows the override
			if d, err := l.Check(t.Context(), name, key, 1); err != nil || d.Remaining != 7 {
				t.Errorf("%s, %+v: %d remain: %v", name, o, d.Remaining, err)
			}
		}
		if d, err := l.Take(t.Context(), name, key, 7); err != nil || !d.Allowed {
			t.Errorf("%s, %+v: a take of 7: %+v %v", name, o, d, err)
		}
		if _, err := l.Reset(t.Context(), name, key); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), name, key, 7); err != nil || !d.Allowed {
			t.Errorf("%s, %+v: after Reset: %+v %v", name, o, d, err)
		}
		if _, err := l.Reset(t.Context(), name, key); err != nil {
			t.Fatal(err)
		}
		if _, err := l.EndOverride(t.Context(), name, key, dipwell.AnyOverride); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Take(t.Context(), name, key, 5); err != nil || !d.Allowed {
			t.Errorf("%s, %+v: after its end: %+v %v", name, o, d, err)
		}
	}
}
