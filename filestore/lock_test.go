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

// TestLinkToNewFile checks that a file that is created by a link is made where the link
// points, and not in its place.
func TestLinkToNewFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	path, first, link := filepath.Join(dir, "data", "new.db"), filepath.Join(dir, "data", "first"), filepath.Join(dir, "link")
	for link, to := range map[string]string{first: "new.db", link: first, filepath.Join(dir, "lost"): filepath.Join(dir, "no", "new.db"), filepath.Join(dir, "loop"): "loop"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, link, Config{})
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", st, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if _, err := Open(path, Config{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lost", "loop"} {
		if _, err := Open(filepath.Join(dir, name), Config{}); err == nil {
			t.Errorf("%s was opened", name)
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
