//go:build rolling

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A rolling update with a new schema: the schema is upgraded while services of the program
// decide, and then they are replaced one after the other. The new program is this one, built
// with one more migration.
func TestRollingUpdateOfTheSchema(t *testing.T) {
	next := withMigration(t, "alter table dipwell.limits add column made_up int;\ncreate index made_up on dipwell.top_hours (at);\n")
	dsn := freshDatabase(t)
	if out, err := built(t, "migrate", "up", "--store", dsn).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b := newBalanced(t, dsn)
	old := func(name string) *process {
		return start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--config", b.file(name, 5))
	}
	one, two := old("one"), old("two")
	b.enter(one)
	b.enter(two)
	finish := b.clients()
	b.busy(50)

	if out, err := next(t, "migrate", "up", "--store", dsn).CombinedOutput(); err != nil || !strings.Contains(string(out), "applied 0002 made_up") {
		t.Fatalf("%v\n%s", err, out)
	}
	b.busy(50) // the old services go on
	for _, p := range []**process{&one, &two} {
		fresh := startWith(t, next, "--listen", "127.0.0.1:0", "--store", dsn, "--config", b.file("new", 7))
		b.enter(fresh)
		b.busy(50) // old and new side by side
		b.leave(*p)
		*p = fresh
	}
	b.limitY(one, 7)
	if out, err := built(t, "take", "x", "k", "--store", dsn).CombinedOutput(); err == nil || !strings.Contains(string(out), "is version 2 and this program knows only 1") {
		t.Errorf("an old program that starts now: %v %s", err, out)
	}
	finish()
	b.check(two, 7)
}

// withMigration builds this program with one more migration of the schema.
func withMigration(t *testing.T, sql string) func(t *testing.T, args ...string) *exec.Cmd {
	dir := t.TempDir()
	module, err := filepath.Abs("../..")
	must(t, err)
	migration, overlay, bin := filepath.Join(dir, "migration.sql"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "dipwell")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(module, "pgstore/schema/0002_made_up.sql"): migration}})
	must(t, err)
	must(t, os.WriteFile(migration, []byte(sql), 0o600))
	must(t, os.WriteFile(overlay, replace, 0o600))
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return func(t *testing.T, args ...string) *exec.Cmd { return exec.Command(bin, args...) }
}
