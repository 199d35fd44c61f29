package filestore

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/coalesce"
	"github.com/dipwell/dipwell/denycache"
	"github.com/dipwell/dipwell/fallback"
	"github.com/dipwell/dipwell/storetest"
)

func open(t testing.TB, path string, c Config) *Store {
	t.Helper()
	s, err := Open(path, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fresh(t testing.TB) string { return filepath.Join(t.TempDir(), "dipwell.db") }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
		return open(t, fresh(t), Config{Clock: now})
	})
}

func TestStoreEach(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
		return open(t, fresh(t), Config{Clock: now, Every: Each})
	})
}

// The decorators over it.
func TestDecorated(t *testing.T) {
	for name, wrap := range map[string]func(t testing.TB, s dipwell.Store, now func() int64) dipwell.Store{
		"coalesce": func(t testing.TB, s dipwell.Store, _ func() int64) dipwell.Store {
			c, err := coalesce.New([]dipwell.Store{s, s}, coalesce.Config{MaxBatch: 8})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		},
		"denycache": func(t testing.TB, s dipwell.Store, now func() int64) dipwell.Store {
			c, err := denycache.New(s, denycache.Config{Clock: now})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"fallback": func(t testing.TB, s dipwell.Store, now func() int64) dipwell.Store {
			c, err := fallback.New(s, fallback.Config{Clock: now})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		},
	} {
		for mode, every := range map[string]time.Duration{"every": 0, "each": Each} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
					return wrap(t, open(t, fresh(t), Config{Clock: now, Every: every}), now)
				}, storetest.Quick)
			})
		}
	}
}
