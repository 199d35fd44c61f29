package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/store"
)

// benchReport matches the report of a bench without failed calls.
var benchReport = regexp.MustCompile(`^dipwell \S+, store (\S+)
clients (\d+), keys (\d+), (\d+\.\d\d) s(, interrupted)?
decisions   [1-9]\d*, [1-9]\d*/s
latency     p50 [1-9]\S*, p90 [1-9]\S*, p99 [1-9]\S*, max [1-9]\S*
errors      0
$`)

// runBench runs a short bench and checks its report.
func runBench(t *testing.T, url string, args ...string) {
	t.Helper()
	args = append([]string{"bench", "--time", "100ms", "--keys", "100", "--clients", "8", "--store", url}, args...)
	code, out, stderr := program(t, args...)
	if m := benchReport.FindStringSubmatch(out); code != 0 || m == nil || m[1] != redact(url) || m[3] != "100" || m[4] < "0.10" || m[5] != "" || stderr != "" {
		t.Errorf("%v: %d %s%s", args, code, out, stderr)
	}
}

// interrupted starts a bench of an hour, interrupts it once it makes calls, and
// checks its report.
func interrupted(t *testing.T, asks func() error, url string) {
	t.Helper()
	cmd := built(t, "bench", "--time", "1h", "--keys", "100", "--clients", "2", "--store", url)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	eventually(t, asks)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if m := benchReport.FindStringSubmatch(out.String()); err != nil || m == nil || m[5] == "" || errs.Len() > 0 {
		t.Errorf("%v %s%s", err, out.String(), errs.String())
	}
}

func secretFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBenchMemory(t *testing.T) {
	runBench(t, "memory:")
	code, out, stderr := program(t, "bench", "--time", "50ms")
	if code != 0 || !strings.Contains(out, "store memory:\nclients 64, keys 10000, ") {
		t.Error(code, out, stderr)
	}
}

func TestBenchFile(t *testing.T) {
	url := "file:" + filepath.Join(t.TempDir(), "d.db")
	runBench(t, url)
	if code, out, stderr := program(t, "limits", "--store", url); code != 0 || out != "" {
		t.Error(code, out, stderr)
	}
}

func TestBenchPostgres(t *testing.T) {
	t.Parallel()
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	if code, _, stderr := program(t, "take", "mine", "k", "--limit", "mine=5/1d", "--store", dsn); code != 0 {
		t.Fatal(stderr)
	}
	left := func() string {
		t.Helper()
		var s string
		if err := conn.QueryRow(t.Context(), `select (select string_agg(name, ',') from dipwell.limits) || ' '
			|| (select count(*) from dipwell.buckets) || ' ' || (select count(*) from dipwell.versions)`).Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := left()
	for _, clients := range []string{"8", "1"} {
		runBench(t, dsn, "--clients", clients)
		if after := left(); after != before {
			t.Errorf("%s clients: left %s, before %s", clients, after, before)
		}
	}
	interrupted(t, func() error {
		if left() == before {
			return errors.New("it has not begun")
		}
		var n int
		if err := conn.QueryRow(t.Context(), "select count(*) from dipwell.buckets").Scan(&n); err != nil || n < 101 {
			return fmt.Errorf("%d rows: %w", n, err)
		}
		return nil
	}, dsn)
	if after := left(); after != before {
		t.Errorf("interrupted: left %s, before %s", after, before)
	}
	role := dsn + "?options=-crole%3Ddipwell_app"
	if strings.Contains(dsn, "?") {
		role = dsn + "&options=-crole%3Ddipwell_app"
	}
	if code, _, stderr := program(t, "bench", "--time", "10ms", "--store", "postgres://u@127.0.0.1:1/x"); code != 2 || !strings.Contains(stderr, "connection refused") {
		t.Error(code, stderr)
	}
	if code, _, stderr := program(t, "bench", "--time", "10ms", "--store", role); code != 2 || !strings.Contains(stderr, "permission denied") {
		t.Error(code, stderr)
	}
	if code, _, stderr := program(t, "bench", "--time", "10ms", "--store", freshDatabase(t)); code != 2 || !strings.Contains(stderr, "dipwell migrate up") {
		t.Error(code, stderr)
	}
}

// asksRedis returns nil once there are more keys than two clients make in their
// warm-up.
func asksRedis(server *redistest.Server) error {
	if n, err := server.Do("dbsize"); err != nil || n.(int64) < 2*benchWarmUp+10 {
		return fmt.Errorf("%v keys: %w", n, err)
	}
	return nil
}

func TestBenchRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if code, _, stderr := program(t, "take", "mine", "k", "--limit", "mine=5/1d", "--store", server.URL()); code != 0 {
		t.Fatal(stderr)
	}
	left := func() string {
		t.Helper()
		code, out, stderr := program(t, "limits", "--store", server.URL())
		n, err := server.Do("dbsize")
		if code != 0 || err != nil {
			t.Fatal(code, stderr, err)
		}
		return fmt.Sprint(out, n)
	}
	before := left()
	runBench(t, server.URL())
	if after := left(); after != before {
		t.Errorf("left %s, before %s", after, before)
	}
	interrupted(t, func() error { return asksRedis(server) }, server.URL())
	if after := left(); after != before {
		t.Errorf("interrupted: left %s, before %s", after, before)
	}
	if code, _, stderr := program(t, "bench", "--time", "10ms", "--store", "redis://127.0.0.1:1"); code != 2 || !strings.Contains(stderr, "connection refused") {
		t.Error(code, stderr)
	}
}

// Calls that fail because the store stops are not decisions, and errors say what could not
// be removed.
func TestBenchStoreStops(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cmd := built(t, "bench", "--time", "1h", "--clients", "2", "--keys", "100", "--store", server.URL())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	eventually(t, func() error {
		return asksRedis(server)
	})
	server.Kill()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	failed := strings.Contains(out.String(), "such as     ") || strings.Contains(out.String(), "errors      0\n") // interrupted before a call failed
	if code := cmd.ProcessState.ExitCode(); code != 2 || !failed || !strings.Contains(errs.String(), "limit "+benchName) || !strings.Contains(errs.String(), "curl -X DELETE") {
		t.Errorf("%d %s%s", code, out.String(), errs.String())
	}
}

func TestBenchFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--clients 0": "clients: 0 is not", "--clients 4097": "clients: 4097 is not", "--clients x": "--clients",
		"--keys 0": "keys: 0 is not", "--keys 1000001": "keys: 1000001 is not",
		"--time 0s": "time: 0s is not", "--time 61m": "time: 1h1m0s is not", "--time soon": "--time",
		"--store mysql://user:hunter2@h/d": "store: ", "--store memory:x": "store: ",
	} {
		code, out, stderr := program(t, append([]string{"bench"}, strings.Fields(args)...)...)
		if code != 2 || out != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%s: %d %s%s", args, code, out, stderr)
		}
	}
}

// Each limit allows ten million calls a second of one key for its time, up to
// what can be counted for an hour, and has ticks of 1 µs as most limits do.
func TestBenchLimit(t *testing.T) {
	for _, length := range []time.Duration{minBenchTime, 5 * time.Second, 59 * time.Second, 10 * time.Minute, maxBenchTime} {
		c := BenchCmd{Time: length}
		d, err := store.NewDefinition(c.limit(benchName))
		if err != nil {
			t.Fatalf("%v: %v", length, err)
		}
		need := min(int64(1e7*length.Seconds()), 7_900_000_000)
		if r := &d.Rule; r.Every != 1 || r.Burst < need {
			t.Errorf("%v: %d calls, %d needed, %+v", length, r.Burst, need, r)
		}
	}
}
