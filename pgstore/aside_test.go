package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// openSmall opens a store as the service does, with two connections for everything but the
// calls, and a limit.
func openSmall(t *testing.T) (s *pgstore.Store, l *dipwell.Limiter, dsn string) {
	t.Helper()
	dsn = pgtest.Database(t, "aside", migrated)
	s, err := pgstore.Open(t.Context(), dsn, pgstore.Config{MaxConns: 2, Poll: 20 * time.Millisecond, Sweep: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if l, err = dipwell.New(s, drained("api", 100)); err != nil {
		t.Fatal(err)
	}
	return s, l, dsn
}

// TestChangesBesideLockedRow checks that changes of overrides that wait for a locked row
// leave the connections to others, also if there are many of them, and end.
func TestChangesBesideLockedRow(t *testing.T) {
	t.Parallel()
	s, l, dsn := openSmall(t)
	if _, err := l.Take(t.Context(), "api", "there", 1); err != nil {
		t.Fatal(err)
	}
	for row, lock := range map[string]string{"there": "select 1 from dipwell.buckets where key = 'there' for update", "inserted": "select dipwell.take('api', 'inserted')"} {
		otherTx(t, dsn, lock)
		stuck, cancel := context.WithCancel(t.Context())
		var changes sync.WaitGroup
		for i := range 20 {
			changes.Go(func() {
				for stuck.Err() == nil {
					var err error
					if i%2 == 0 {
						_, err = l.SetOverride(stuck, "api", dipwell.Override{Key: row, Rate: 7})
					} else {
						_, err = l.EndOverride(stuck, "api", row, dipwell.AnyOverride)
					}
					if !errors.Is(err, store.ErrStore) && (row == "there" || i%2 == 0) { // nobody sees a row that was inserted: there is nothing to end
						t.Errorf("%s: %v", row, err)
					}
				}
			})
		}
		bound, done := context.WithTimeout(t.Context(), testTimeout)
		ab := s.Abilities()
		for i := range 5 {
			free := fmt.Sprint("free", i)
			_, set := l.SetOverride(bound, "api", dipwell.Override{Key: free, Rate: 7})
			_, list := l.Overrides(bound, "api", free, "", 1)
			ended, end := l.EndOverride(bound, "api", free, dipwell.AnyOverride)
			_, keys := l.Keys(bound, "api", "", "", 10)
			_, audit := ab.Audit.Audit(bound, "", 10)
			if err := errors.Join(set, list, end, keys, audit, ab.Ready(bound)); err != nil || ended == nil {
				t.Errorf("%s: %v", row, err)
			}
		}
		done()
		cancel()
		changes.Wait()
	}
}

// TestReadyWhileListsHang checks that a check of readiness and the reading of limits do not
// wait for lists that get no answer.
func TestReadyWhileListsHang(t *testing.T) {
	t.Parallel()
	s, l, dsn := openSmall(t)
	otherTx(t, dsn, "lock table dipwell.key_overrides")
	hung, cancel := context.WithCancel(t.Context())
	var lists sync.WaitGroup
	defer lists.Wait()
	defer cancel()
	for range 4 {
		lists.Go(func() {
			if _, err := l.Overrides(hung, "api", "", "", 10); !errors.Is(err, store.ErrStore) {
				t.Errorf("a list has an answer: %v", err)
			}
		})
	}
	pool := connect(t, dsn)
	eventually(t, "waiting", func() bool {
		return number(t, pool, "select count(*) from pg_locks where not granted and relation = 'dipwell.key_overrides'::regclass") >= 2
	})
	bound, done := context.WithTimeout(t.Context(), testTimeout)
	defer done()
	if err := s.Abilities().Ready(bound); err != nil {
		t.Error(err)
	}
	if err := execute(dsn, "select dipwell.define('new', 5, interval '1 hour')"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "read", func() bool { return l.Limit("new") != nil })
}
