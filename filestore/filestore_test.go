package filestore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/coalesce"
	"github.com/dipwell/dipwell/denycache"
	"github.com/dipwell/dipwell/fallback"
	"github.com/dipwell/dipwell/internal/tmpfs"
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

// inMemory is a file that no disk slows down: the suite makes thousands.
func inMemory(t testing.TB) string { return filepath.Join(tmpfs.Dir(t), "dipwell.db") }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
		return open(t, inMemory(t), Config{Clock: now})
	})
}

func TestStoreEach(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
		return open(t, inMemory(t), Config{Clock: now, Every: Each})
	}, shorter(storetest.Quick)...)
}

// shorter is the size of a run, but for make test-long.
func shorter(o storetest.Option) []storetest.Option {
	if os.Getenv("DIPWELL_LONG") != "" {
		return nil
	}
	return []storetest.Option{o}
}

// The decorators over it, briefly: what differs is in the store below.
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
				t.Parallel()
				storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
					return wrap(t, open(t, inMemory(t), Config{Clock: now, Every: every}), now)
				}, shorter(storetest.Brief)...)
			})
		}
	}
}
