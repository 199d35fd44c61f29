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

// unknowing returns limiters of two programs on one server. The first one has the limits
// fresh and jobs, which the second one, with the store s, does not know. That one has made
// a hold, so that it sweeps.
func unknowing(t *testing.T) (knows, does *dipwell.Limiter, s *redisstore.Store, prefix string) {
	db := client(t)
	prefix = fmt.Sprint("unknown", prefixes.Add(1))
	s = newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
	does = limiter(t, s, drained("old", 10))
	knows = limiter(t, newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), drained("fresh", 10), store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 10})
	if d, err := does.Hold(t.Context(), time.Hour, "", dipwell.Take{Limit: "old", Key: "k", Cost: 2}); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	return knows, does, s, prefix
}

func hold(t *testing.T, l *dipwell.Limiter, limits ...string) string {
	t.Helper()
	var takes []dipwell.Take
	for _, limit := range limits {
		takes = append(takes, dipwell.Take{Limit: limit, Key: "k", Cost: 4})
	}
	d, err := l.Hold(t.Context(), time.Hour, "", takes...)
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	return d.Hold
}

// TestSettleOfUnknownLimits checks that a program settles and extends a hold of limits that
// it does not know yet, and that it leaves one alone if it cannot read its limit.
func TestSettleOfUnknownLimits(t *testing.T) {
	t.Parallel()
	l, does, s, prefix := unknowing(t)
	id := hold(t, l, "fresh", "jobs")
	if d, err := does.Settle(t.Context(), id, 1, 0); err != nil || !d.Allowed || len(d.Limits) != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	for limit, want := range map[string]int64{"fresh": 9, "jobs": 10} {
		if n := left(t, l, limit, "k"); n != want {
			t.Errorf("%d left of %s, want %d", n, limit, want)
		}
	}
	id = hold(t, l, "jobs")
	db := client(t)
	if err := db.HSet(t.Context(), prefix+".limits", "jobs", `{"version":1,"settings":[["martian","1"]]}`, "", "9000000000000000").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d, err := does.Settle(t.Context(), id); !errors.Is(err, store.ErrStore) {
		t.Errorf("settled a hold of a limit that it cannot read: %+v, %v", d, err)
	}
	if d, err := l.Settle(t.Context(), id); err != nil || !d.Allowed || d.Remaining != 10 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestCancelOfUnknownLimits checks that a program cancels a reservation of a limit that it
// does not know yet.
func TestCancelOfUnknownLimits(t *testing.T) {
	t.Parallel()
	l, does, _, _ := unknowing(t)
	d, err := l.Reserve(t.Context(), "fresh", "k", 13)
	if err != nil || d.Delay == 0 {
		t.Fatal(d, err)
	}
	if err := does.Cancel(t.Context(), d.Reservation); err != nil {
		t.Error(err)
	}
	if n := left(t, l, "fresh", "k"); n != 10 {
		t.Errorf("%d left, want 10", n)
	}
}
