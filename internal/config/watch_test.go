package config_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/config"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch starts a watch and returns a wait for the next change.
func watch(t *testing.T, paths ...string) (wait func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	changes := make(chan struct{}, 100)
	config.Watch(ctx, func() string { return config.Content(paths...) }, func() { changes <- struct{}{} })
	return func() {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(time.Minute):
			t.Fatal("no change was noticed")
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A change of any of several files is noticed, also of one behind a link.
func TestWatchFiles(t *testing.T) {
	one, two, link := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two"), filepath.Join(t.TempDir(), "link")
	write(t, one, "a")
	write(t, two, "a")
	if err := os.Symlink(two, link); err != nil {
		t.Fatal(err)
	}
	wait := watch(t, one, link)
	write(t, one, "b")
	wait()
	write(t, two, "b")
	wait()
	write(t, one, "c")
	write(t, two, "c")
	wait()
}

func TestWatchWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dipwell.yaml")
	write(t, path, "a")
	wait := watch(t, path)
	write(t, path, "b")
	wait()
	write(t, path+".new", "c") // as editors do
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	wait()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wait()
	write(t, path, "d")
	wait()
}

// An orchestrator's volume: the file is a link through ..data, which is swapped.
func TestWatchSymlinkSwap(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, v, "dipwell.yaml"), v)
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("v1", "..data")
	link("..data/dipwell.yaml", "dipwell.yaml")
	wait := watch(t, filepath.Join(dir, "dipwell.yaml"))
	link("v2", "..tmp")
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	wait()
	write(t, filepath.Join(dir, "v2", "dipwell.yaml"), "in place") // where the link leads now
	wait()
}

// A link above the directory of the file is swapped, as releases are and by git-sync.
func TestWatchLinkAbove(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.MkdirAll(filepath.Join(dir, "releases", v, "etc"), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "releases", v, "etc", "dipwell.yaml"), v)
	}
	swap := func(to, name string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, filepath.Join(dir, "new")), os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	swap("releases/v1", "current")
	swap("current/etc", "etc") // a link through another
	for _, path := range []string{"current/etc/dipwell.yaml", "etc/dipwell.yaml"} {
		swap("releases/v1", "current")
		wait := watch(t, filepath.Join(dir, path))
		swap("releases/v2", "current")
		wait()
		write(t, filepath.Join(dir, "releases", "v2", "etc", "dipwell.yaml"), "in place, "+path)
		wait()
	}
}

// A file in a directory that is not there yet is noticed once it is.
func TestWatchNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "no")
	wait := watch(t, filepath.Join(dir, "dipwell.yaml"))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "dipwell.yaml"), "a")
	wait()
}

// A file that is written slowly is used once it is whole; one that never stands still, after a
// while.
func TestWatchWaitsForTheRest(t *testing.T) {
	for name, writes := range map[string]int{"in ten steps": 10, "for ever": 1000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var length atomic.Int64
				var used []int64
				config.Watch(ctx, func() string { return strings.Repeat("x", int(length.Load())) }, func() { used = append(used, length.Load()) })
				for range writes {
					time.Sleep(60 * time.Millisecond)
					length.Add(1)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if len(used) == 0 || used[0] < 10 || used[len(used)-1] != int64(writes) || writes == 10 && len(used) > 1 {
					t.Errorf("used after %v of %d writes", used, writes)
				}
			})
		})
	}
}
