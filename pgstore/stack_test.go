package pgstore_test

import (
	"os"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/coalesce"
	"github.com/dipwell/dipwell/denycache"
	"github.com/dipwell/dipwell/fallback"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/storetest"
)

// TestStack is the suite over all decorators as the service has them, and over
// each of them alone, on tables that are durable and that are not. Every run has
// the first, in brief; DIPWELL_LONG=1, or make test-long, has the rest, and more of it.
func TestStack(t *testing.T) {
	t.Parallel()
	long, much := os.Getenv("DIPWELL_LONG") != "", storetest.Brief
	if long {
		much = storetest.Quick
	}
	for name, wrap := range map[string]func(testing.TB, *pgstore.Store, func() int64) dipwell.Store{
		"coalesce":  together,
		"denycache": func(t testing.TB, s *pgstore.Store, now func() int64) dipwell.Store { return cached(t, s, now) },
		"fallback":  func(t testing.TB, s *pgstore.Store, now func() int64) dipwell.Store { return local(t, s, now) },
		"all":       stack,
	} {
		for tables, durability := range map[string]pgstore.Durability{"logged": pgstore.Logged, "unlogged": pgstore.Unlogged} {
			if full := name == "all" && durability == pgstore.Logged; !full && !long {
				continue
			}
			t.Run(name+" "+tables, func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
					pool := usedPool(t, tables, func(dsn string) error { return migratedAs(dsn, pgstore.MigrateOptions{Tables: durability}) })
					return wrap(t, newStore(t, pool, pgstore.Config{Clock: now, Poll: -1}), now)
				}, much)
			})
		}
	}
}

func stack(t testing.TB, s *pgstore.Store, now func() int64) dipwell.Store {
	return local(t, cached(t, together(t, s, now), now), now)
}

// together has four lanes, as the service does; the pool is theirs.
func together(t testing.TB, s *pgstore.Store, _ func() int64) dipwell.Store {
	t.Helper()
	c, err := coalesce.New([]dipwell.Store{s, s, s, s}, coalesce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func cached(t testing.TB, s dipwell.Store, now func() int64) dipwell.Store {
	t.Helper()
	c, err := denycache.New(s, denycache.Config{Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func local(t testing.TB, s dipwell.Store, now func() int64) dipwell.Store {
	t.Helper()
	f, err := fallback.New(s, fallback.Config{Clock: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
