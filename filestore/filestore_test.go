package filestore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dipwell/dipwell/internal/procs"
	"github.com/dipwell/dipwell/store"
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

// inMemory returns a path in memory, because the suite makes thousands of files.
func inMemory(t testing.TB) string { return filepath.Join(procs.MemoryDir(t), "dipwell.db") }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return open(t, inMemory(t), Config{Clock: now})
	}, storetest.Options{})
}

func TestStoreEach(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return open(t, inMemory(t), Config{Clock: now, Every: Each})
	}, storetest.Options{Quick: os.Getenv("DIPWELL_LONG") == ""})
}
