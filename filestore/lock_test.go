package filestore

import (
	"os"
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
