package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// An unknowing is two programs on one database, the second of which does not know the
// limits fresh and jobs.
type unknowing struct {
	pool        *pgxpool.Pool
	now         *int64
	knows, does *dipwell.Limiter
	s           *pgstore.Store // of the second one
	portable    bool
}

// eachUnknowing runs a test on the tables of the functions and on portable ones.
func eachUnknowing(t *testing.T, f func(t *testing.T, u unknowing)) {
	for name, pool := range map[string]func(testing.TB) *pgxpool.Pool{"functions": newPool, "portable": portablePool} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := int64(1e15)
			u := unknowing{pool: pool(t), now: &now, portable: name == "portable"}
			c := pgstore.Config{Poll: -1, Clock: func() int64 { return now }}
			u.s = newStore(t, u.pool, c)
			var err error
			if u.does, err = dipwell.New(u.s, store.Limit{Name: "old", Rate: 1, Period: time.Hour, Burst: 10}); err != nil {
				t.Fatal(err)
			}
			u.knows, err = dipwell.New(newStore(t, u.pool, c), store.Limit{Name: "fresh", Rate: 1, Period: time.Hour, Burst: 10},
				store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 10})
			if err != nil {
				t.Fatal(err)
			}
			f(t, u)
		})
	}
}

func (u *unknowing) hold(t *testing.T, ttl time.Duration, limits ...string) string {
	t.Helper()
	var takes []dipwell.Take
	for _, limit := range limits {
		takes = append(takes, dipwell.Take{Limit: limit, Key: "k", Cost: 4})
	}
	d, err := u.knows.Hold(t.Context(), ttl, "", takes...)
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	return d.Hold
}

func (u *unknowing) left(t *testing.T, want map[string]int64) {
	t.Helper()
	for limit, n := range want {
		if d, err := u.knows.Check(t.Context(), limit, "k", 1); err != nil || d.Remaining != n {
			t.Errorf("%d left of %s, want %d: %v", d.Remaining, limit, n, err)
		}
	}
}

// TestSweepOfUnknownLimits checks that a sweep neither deletes rows, overrides and holds
// of limits that its program does not know, nor loses what their holds give back.
func TestSweepOfUnknownLimits(t *testing.T) {
	t.Parallel()
	eachUnknowing(t, func(t *testing.T, u unknowing) {
		if _, err := u.knows.SetOverride(t.Context(), "fresh", dipwell.Override{Key: "k", Burst: 20}); err != nil {
			t.Fatal(err)
		}
		u.hold(t, time.Hour, "fresh", "jobs")
		u.hold(t, time.Second, "fresh", "jobs")
		*u.now += time.Minute.Microseconds()
		if _, err := u.s.Abilities().Sweep(t.Context(), 100); err != nil {
			t.Error(err)
		}
		for _, limit := range []string{"fresh", "jobs"} {
			if holds, err := u.knows.Holds(t.Context(), limit, "k"); err != nil || len(holds) != 1 {
				t.Errorf("%s: %d holds, %v", limit, len(holds), err)
			}
			if d, err := u.knows.Hold(t.Context(), time.Hour, "", dipwell.Take{Limit: limit, Key: "k", Cost: 6}); err != nil || !d.Allowed {
				t.Errorf("the expired hold of %s has given nothing back: %+v, %v", limit, d, err)
			}
		}
		if list, err := u.knows.Overrides(t.Context(), "fresh", "", "", 10); err != nil || len(list) != 1 {
			t.Errorf("%d overrides, %v", len(list), err)
		}
	})
}

// TestSettleOfUnknownLimits checks that a program settles and extends holds of limits that
// it does not know yet.
func TestSettleOfUnknownLimits(t *testing.T) {
	t.Parallel()
	eachUnknowing(t, func(t *testing.T, u unknowing) {
		id := u.hold(t, time.Hour, "fresh", "jobs")
		if _, err := u.does.Extend(t.Context(), id, 2*time.Hour); err != nil {
			t.Error(err)
		}
		if d, err := u.does.Settle(t.Context(), id, 1, 0); err != nil || !d.Allowed || len(d.Limits) != 2 {
			t.Errorf("%+v, %v", d, err)
		}
		u.left(t, map[string]int64{"fresh": 9, "jobs": 10})
	})
}

// TestSettleOfUnreadableLimits checks that a program gives back a hold of a limit that it
// cannot read, or leaves it alone.
func TestSettleOfUnreadableLimits(t *testing.T) {
	t.Parallel()
	eachUnknowing(t, func(t *testing.T, u unknowing) {
		id := u.hold(t, time.Hour, "jobs")
		spoil, mend := "update dipwell.versions set per = 'a fortnight' where limit_id = (select id from dipwell.limits where name = 'jobs')", "update dipwell.versions set per = '' where limit_id = (select id from dipwell.limits where name = 'jobs')"
		if u.portable {
			spoil, mend = `update dipwell.limits set definition = replace(definition, '["burst"', '["martian"') where name = 'jobs'`, `update dipwell.limits set definition = replace(definition, '["martian"', '["burst"') where name = 'jobs'`
		}
		must(t, u.pool, spoil)
		_, err := u.does.Settle(t.Context(), id)
		if err != nil && !errors.Is(err, store.ErrStore) {
			t.Error(err)
		}
		must(t, u.pool, mend)
		if err != nil {
			_, err = u.knows.Settle(t.Context(), id)
		}
		if err != nil {
			t.Error(err)
		}
		u.left(t, map[string]int64{"jobs": 10})
	})
}

// TestCancelOfUnknownLimits checks that a program cancels a reservation of a limit that it
// does not know yet.
func TestCancelOfUnknownLimits(t *testing.T) {
	t.Parallel()
	eachUnknowing(t, func(t *testing.T, u unknowing) {
		d, err := u.knows.Reserve(t.Context(), "fresh", "k", 13)
		if err != nil || d.Delay == 0 {
			t.Fatal(d, err)
		}
		if err := u.does.Cancel(t.Context(), d.Reservation); err != nil {
			t.Error(err)
		}
		u.left(t, map[string]int64{"fresh": 10})
	})
}
