// Package procs is for tests with servers and files. It reserves ports, runs processes,
// waits for them to stop, skips or fails a test whose server is missing, and makes
// directories in memory.
package procs

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Need fails a test because of err. If err wraps missing, because a program is not
// installed, Need skips the test instead, except on CI.
func Need(t testing.TB, err, missing error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, missing) && os.Getenv("CI") != "true":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// SkipExamples skips the examples of a test binary where Need would skip
// its tests, because an example cannot skip itself.
func SkipExamples(err, missing error) {
	if skip := flag.Lookup("test.skip"); errors.Is(err, missing) && os.Getenv("CI") != "true" && skip.Value.String() == "" {
		_ = skip.Value.Set("^Example")
	}
}

// bound is how long StandStill waits at most, on a busy machine.
const bound = time.Minute

// StandStill returns when none of the processes is running, on systems with
// /proc.
func StandStill(pids ...int) {
	deadline := time.Now().Add(bound)
	for _, pid := range pids {
		for time.Now().Before(deadline) {
			fields := status("/proc/" + strconv.Itoa(pid) + "/stat")
			if len(fields) == 0 || slices.Contains([]string{"T", "t", "Z", "X"}, fields[0]) { // states: stopped, traced, or gone
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// status returns the fields after a process's name in its stat file: state,
// parent and more. status returns nil if the process is gone.
func status(stat string) []string {
	b, err := os.ReadFile(stat)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// Children lists a process's children, on systems with /proc.
func Children(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		fields := status(stat)
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			pids = append(pids, pid)
		}
	}
	return pids
}
