//go:build rolling

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A rolling update with a new schema: the schema is upgraded while services of the program
// before it decide, and then they are replaced one after the other. The old program is at
// DIPWELL_OLD_PROGRAM.
func TestRollingUpdateOfTheSchema(t *testing.T) {
	program := func(t *testing.T, args ...string) *exec.Cmd {
		return exec.Command(os.Getenv("DIPWELL_OLD_PROGRAM"), args...)
	}
	dsn := freshDatabase(t)
	if out, err := program(t, "migrate", "up", "--store", dsn).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b := newBalanced(t, dsn)
	old := func(name string) *process {
		return startWith(t, program, "--listen", "127.0.0.1:0", "--store", dsn, "--config", b.file(name, 5))
	}
	one, two := old("one"), old("two")
	b.enter(one)
	b.enter(two)
	finish := b.clients()
	b.busy(50)

	if out, err := built(t, "migrate", "up", "--store", dsn).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.busy(50) // the old services go on
	for _, p := range []**process{&one, &two} {
		fresh := start(t, "--listen", "127.0.0.1:0", "--store", dsn, "--config", b.file("new", 7))
		b.enter(fresh)
		b.busy(50) // old and new side by side
		b.leave(*p)
		*p = fresh
	}
	b.limitY(one, 7)
	if out, err := program(t, "take", "x", "k", "--store", dsn).CombinedOutput(); err == nil || !strings.Contains(string(out), "version") {
		t.Errorf("an old program that starts now: %v %s", err, out)
	}
	finish()
	b.check(two, 7)
}
