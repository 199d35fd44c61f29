package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// TestLockWaitOfLanes: lock_timeout in the URL of Open is how long lanes wait for a
// lock. That of a program's own pool is about its own transactions.
func TestLockWaitOfLanes(t *testing.T) {
	ctx := t.Context()
	for value, want := range map[string]time.Duration{"50ms": 50 * time.Millisecond, "5min": 10 * time.Millisecond} {
		url := pgtest.Database(t, "dipwell", migrated) + "&lock_timeout=" + value
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s := newStore(t, pool, pgstore.Config{Poll: -1})
		if value == "50ms" {
			if s, err = pgstore.Open(ctx, url, pgstore.Config{Poll: -1}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
		}
		lanes, err := s.Abilities().Lanes(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if lanes.LockWait != want || lanes.Quarantine == nil {
			t.Errorf("%s: lanes wait %v for a lock", value, lanes.LockWait)
		}
		if err = lanes.Close(); err != nil {
			t.Error(err)
		}
	}
}
