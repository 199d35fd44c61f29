package filestore

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoLockFile checks that a link in the place where other programs have a lock file is
// not followed, and that nothing but SQLite's files is made.
func TestNoLockFile(t *testing.T) {
	path := fresh(t)
	mine := filepath.Join(t.TempDir(), "mine")
	if err := os.WriteFile(mine, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(mine, path+".lock"); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, Config{})
	if b, err := os.ReadFile(mine); err != nil || string(b) != "precious" {
		t.Errorf("the file that the link names has %q, %v", b, err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		switch strings.TrimPrefix(f.Name(), filepath.Base(path)) {
		case "", "-wal", "-shm", ".lock":
		default:
			t.Errorf("there is a file %s", f.Name())
		}
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoRegularFile checks that what is no regular file is refused at once.
func TestNoRegularFile(t *testing.T) {
	path := fresh(t)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, filepath.Dir(path), os.DevNull} {
		if _, err := Open(path, Config{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s was opened: %v", path, err)
		}
		if _, err := Inspect(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s was inspected: %v", path, err)
		}
	}
}

// TestCreatedTwice creates one file by many calls at a time. One of them gets it.
func TestCreatedTwice(t *testing.T) {
	path := fresh(t)
	var wg sync.WaitGroup
	var got atomic.Int64
	begin := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			<-begin
			s, err := Open(path, Config{})
			if err == nil {
				got.Add(1)
				t.Cleanup(func() { _ = s.Close() })
			} else if !strings.Contains(err.Error(), "in use") {
				t.Error(err)
			}
		})
	}
	close(begin)
	wg.Wait()
	if got.Load() != 1 {
		t.Errorf("%d have opened it", got.Load())
	}
}

// TestLinks checks that a file with links is one file, and that a link to no file is refused.
func TestLinks(t *testing.T) {
	dir, path := t.TempDir(), fresh(t)
	_ = open(t, path, Config{})
	first, link, lost, loop := filepath.Join(dir, "first"), filepath.Join(dir, "link"), filepath.Join(dir, "lost"), filepath.Join(dir, "loop")
	for link, to := range map[string]string{first: path, link: first, lost: filepath.Join(dir, "no", "new.db"), loop: "loop"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{link: "in use", lost: "not a regular file", loop: "too many links"} {
		if _, err := Open(path, Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A file that another process creates after it was found missing, and its log, are not lost.
func TestCreatedMeanwhile(t *testing.T) {
	path := fresh(t)
	_ = open(t, path, Config{})
	if _, err := os.Lstat(path + "-wal"); err != nil {
		t.Fatal(err)
	}
	if err := checkLost(path); err != nil {
		t.Error(err)
	}
}
