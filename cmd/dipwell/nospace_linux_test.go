package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/procs"
	"github.com/dipwell/dipwell/internal/redistest"
)

// smallDisk returns a file system of a few kB, writable by all users.
func smallDisk(t *testing.T, kilobytes int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dipwell-disk-")
	if err != nil {
		t.Fatal(err)
	}
	err = syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk,mode=0777", kilobytes))
	procs.Need(t, err, syscall.EPERM)
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fullOf takes from new keys until the service has no space for one, and
// expects it not to be ready, with the reason.
func fullOf(t *testing.T, url string) {
	t.Helper()
	eventually(t, func() error { return isReady(t, url) })
	for i := range 1_000_000 {
		status, body := post(t, url+"/v1/take", fmt.Sprintf("limit=login&key=%0400d", i))
		if status == 503 {
			break
		}
		if status != 200 {
			t.Fatalf("take %d: %d %s", i, status, body)
		}
	}
	if status, body := do(t, "GET", url+"/readyz", ""); status != 503 || !strings.Contains(body, "its disk or memory is full") {
		t.Errorf("/readyz of a full store is %d %s", status, body)
	}
}

// healed waits until a service takes from new keys and is ready.
func healed(t *testing.T, url string) {
	t.Helper()
	key := 0
	eventually(t, func() error {
		key++
		if status, body := post(t, url+"/v1/take", fmt.Sprint("limit=login&key=later", key)); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return isReady(t, url)
	})
}

// TestNoSpacePostgres fills the disk of a database, and frees it.
func TestNoSpacePostgres(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 16<<10)
	server := pgtest.Start(t, "fsync=off", "autovacuum=off")
	space := filepath.Join(disk, "space")
	if err := server.Own(space); err != nil {
		t.Fatal(err)
	}
	conn := connectTo(t, server.DSN("postgres"))
	for _, sql := range []string{"create tablespace small location '" + space + "'", "create database small tablespace small"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	dsn := server.DSN("small")
	if code, _, stderr := program(t, "migrate", "up", "--store", dsn); code != 0 {
		t.Fatal(stderr)
	}
	fill(t, filepath.Join(disk, "filler"), 500<<10)
	p := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--limit", "login=1/1d")
	fullOf(t, p.url)
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	healed(t, p.url)
}

// fill writes a file that leaves this many bytes of its disk free.
func fill(t *testing.T, path string, free int64) {
	t.Helper()
	var of syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &of); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, int64(of.Bavail)*int64(of.Bsize)-free), 0o600); err != nil { //nolint:unconvert // Bsize is an int32 on 32 bits
		t.Fatal(err)
	}
}

// TestNoSpaceRedis checks a server that rejects writes because it cannot save
// to its full disk.
func TestNoSpaceRedis(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 64)
	server := redistest.Start(t, "--dir", disk, "--appendonly", "no", "--save", "3600 1")
	p := start(t, "--listen", "127.0.0.1:0", "--store", server.URL(), "--limit", "login=1/1d")
	eventually(t, func() error { return isReady(t, p.url) })
	fill(t, filepath.Join(disk, "filler"), 0)
	ask := func(words ...any) string {
		t.Helper()
		v, err := server.Do(words...)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(v)
	}
	ask("set", "junk", strings.Repeat("x", 1<<14))
	ask("bgsave")
	eventually(t, func() error {
		if !strings.Contains(ask("info", "persistence"), "rdb_last_bgsave_status:err") {
			return fmt.Errorf("the server has saved")
		}
		return nil
	})
	fullOf(t, p.url)
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	ask("bgsave")
	healed(t, p.url)
}

// TestNoSpaceFile fills the disk of a file store.
func TestNoSpaceFile(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 1<<10)
	p := start(t, "--listen", "127.0.0.1:0", "--store", "file:"+filepath.Join(disk, "limits.db")+"?durability=each", "--limit", "login=1/1d")
	fill(t, filepath.Join(disk, "filler"), 200<<10)
	fullOf(t, p.url)
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	healed(t, p.url)
}
