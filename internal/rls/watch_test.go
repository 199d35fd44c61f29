package rls_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/rls"
)

// watch starts a watch and returns a wait for the next change.
func watch(t *testing.T, path string) (wait func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	changes := make(chan struct{}, 100)
	config.Watch(ctx, func() string { return rls.Content(path) }, func() { changes <- struct{}{} })
	return func() {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(time.Minute):
			t.Fatal("no change was noticed")
		}
	}
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		t.Fatal(err)
	}
}

// domains loads until there are as many domains as wanted: a change may be seen in two steps.
func domains(t *testing.T, path string, want int) {
	t.Helper()
	rules, err := rls.Load(rls.Defaults{}, path)
	if err != nil || rules.Domains() != want {
		t.Errorf("%v, not %d domains: %v", rules, want, err)
	}
}

func TestWatchDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", "domain: a")
	wait := watch(t, dir)
	write(t, dir+"/b.yaml", "domain: b")
	wait()
	domains(t, dir, 2)
	write(t, dir+"/a.yaml.new", "domain: c")
	if err := os.Rename(dir+"/a.yaml.new", dir+"/a.yaml"); err != nil {
		t.Fatal(err)
	}
	wait()
	if err := os.Mkdir(dir+"/below", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/below/d.yaml", "domain: d")
	wait()
	domains(t, dir, 3)
	if err := os.Remove(dir + "/b.yaml"); err != nil {
		t.Fatal(err)
	}
	wait()
	domains(t, dir, 2)
}

// A ConfigMap: files are links through ..data, which is swapped in one step.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/..v1/limits.yaml", "domain: a")
	write(t, dir+"/..v2/limits.yaml", "domain: b")
	write(t, dir+"/..v3/limits.yaml", "domain: c")
	link(t, "..v1", dir+"/..data")
	link(t, "..data/limits.yaml", dir+"/limits.yaml")
	for _, path := range []string{dir, dir + "/limits.yaml"} {
		link(t, "..v1", dir+"/..data")
		wait := watch(t, path)
		for _, v := range []string{"..v2", "..v3"} {
			link(t, v, dir+"/..data")
			wait()
			domains(t, path, 1)
		}
	}
}

// A deployment that swaps the whole directory: current leads to one of several.
func TestWatchCurrent(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/1/config/a.yaml", "domain: a")
	write(t, dir+"/2/config/a.yaml", "domain: b")
	link(t, filepath.Join(dir, "1"), dir+"/current")
	wait := watch(t, dir+"/current")
	link(t, filepath.Join(dir, "2"), dir+"/current")
	wait()
	write(t, dir+"/2/config/b.yaml", "domain: c")
	wait()
	domains(t, dir+"/current", 2)
}
