package filestore

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLocksOfSQLite checks that SQLite's own lock on an open file survives what this package
// does with the file meanwhile, and that our lock survives a program that reads the file.
func TestLocksOfSQLite(t *testing.T) {
	path := fresh(t)
	s := open(t, path, Config{})
	f, err := os.OpenFile(path, os.O_RDWR, 0) // closed last: closing it drops SQLite's lock
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	locks := func() string { // bytes that other processes could not lock
		const shared = 1<<30 + 2 // SQLite's SHARED_FIRST
		var found string
		for _, at := range []int64{shared, lockAt} {
			l := byteLock(at)
			if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, l); err != nil {
				t.Fatal(err)
			}
			if l.Type != unix.F_UNLCK {
				found += " " + strconv.FormatInt(at, 10)
			}
		}
		return found
	}
	before := locks()
	if before != " 1073741826 1152921504606846976" {
		t.Errorf("the locks are%s", before)
	}
	if _, err = Open(path, Config{}); err == nil {
		t.Error("opened twice")
	}
	if _, err = Inspect(path); err != nil {
		t.Error(err)
	}
	if after := locks(); after != before {
		t.Errorf("the locks are%s, not%s", after, before)
	}
	if _, err = os.ReadFile(path); err != nil {
		t.Error(err)
	}
	if after := locks(); after != " 1152921504606846976" {
		t.Errorf("once the program has read the file, the locks are%s", after)
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := locks(); after != "" {
		t.Errorf("after Close, the locks are%s", after)
	}
}
