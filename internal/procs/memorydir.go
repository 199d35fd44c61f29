package procs

import (
	"os"
	"testing"
)

// MemoryDir returns a directory in memory, where syncing costs nothing, for suites that test
// the decisions of a store on a file but not what survives a crash. The directory is removed
// when the test ends. If the system has no directory in memory, it is on disk.
func MemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "dipwell-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
