package filestore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLockWhileInspected checks that a file that somebody inspects at the moment can be
// opened and inspected by others, and that one that stays locked cannot be opened.
func TestLockWhileInspected(t *testing.T) {
	path := fresh(t)
	if err := open(t, path, Config{}).Close(); err != nil {
		t.Fatal(err)
	}
	inspecting, err := os.OpenFile(path+".lock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer inspecting.Close()
	if err = lockShared(inspecting); err != nil {
		t.Fatal(err)
	}
	if c, err := Inspect(path); err != nil || c.InUse {
		t.Errorf("inspected twice at a time: %+v, %v", c, err)
	}
	if _, err = Open(path, Config{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opened while it stays locked: %v", err)
	}
	tries := 0
	f, err := lockFile(path, func(try int) bool {
		if tries = try; try == 2 {
			_ = inspecting.Close()
		}
		return try < 10
	})
	if err != nil || tries != 2 {
		t.Fatalf("after %d tries: %v", tries, err)
	}
	_ = f.Close()
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
