package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/store"
)

// benched parses a report.
func benched(t *testing.T, out []byte) (r benchReport) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

// runBench runs the program until it ends.
func runBench(t *testing.T, args ...string) (code int, r benchReport) {
	t.Helper()
	cmd := built(t, append([]string{"bench", "--json", "--time", "100ms", "--keys", "100", "--clients", "8"}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || len(out) == 0 {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return cmd.ProcessState.ExitCode(), benched(t, out)
}

// decided checks what every successful report has.
func decided(t *testing.T, code int, r *benchReport, sent string) {
	t.Helper()
	l := r.Latency
	if code != 0 || r.Decisions == 0 || r.PerSecond <= 0 || r.Failed != 0 || r.Error != "" || r.Left != "" || r.Sent != sent ||
		l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.Max || !strings.HasPrefix(r.Limit, benchName) || r.Version == "" {
		t.Errorf("%d %+v", code, r)
	}
	if (r.Sent == "coalesced") != (r.PerBatch >= 1) {
		t.Errorf("%s, %v calls a batch", r.Sent, r.PerBatch)
	}
}

// interrupted starts a bench of an hour, interrupts it once it makes calls, and
// returns its report.
func interrupted(t *testing.T, by os.Signal, asks func() error, args ...string) benchReport {
	t.Helper()
	cmd := built(t, append([]string{"bench", "--json", "--time", "1h", "--keys", "100", "--clients", "2"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	eventually(t, asks)
	if err := cmd.Process.Signal(by); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v %s%s", err, out.String(), errs.String())
	}
	r := benched(t, out.Bytes())
	if !r.Interrupted || errs.Len() > 0 {
		t.Errorf("%+v %s", r, errs.String())
	}
	return r
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
	code, r := runBench(t, "--store", "memory:")
	decided(t, code, &r, "single")
	if r.Clients != 8 || r.Keys != 100 || r.Store != "memory:" || r.Interrupted || r.Seconds < 0.1 {
		t.Errorf("%+v", r)
	}
	out, err := built(t, "bench", "--time", "50ms").Output()
	if err != nil || !strings.Contains(string(out), "clients 64, keys 10000, ") || !strings.Contains(string(out), "latency     p50 ") {
		t.Error(err, string(out))
	}
}

func TestBenchFile(t *testing.T) {
	url := "file:" + filepath.Join(t.TempDir(), "d.db")
	code, r := runBench(t, "--store", url)
	decided(t, code, &r, "single")
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
	for _, args := range [][]string{{}, {"--single"}, {"--clients", "1"}} {
		code, r := runBench(t, append(args, "--store", dsn)...)
		sent := "coalesced"
		if len(args) > 0 && args[0] == "--single" {
			sent = "single"
		}
		decided(t, code, &r, sent)
		if (r.Lanes > 0) != (sent == "coalesced") {
			t.Errorf("%v: %d lanes", args, r.Lanes)
		}
		if after := left(); after != before {
			t.Errorf("%v: left %s, before %s", args, after, before)
		}
	}
	r := interrupted(t, syscall.SIGHUP, func() error {
		if left() == before {
			return errors.New("it has not begun")
		}
		var n int
		if err := conn.QueryRow(t.Context(), "select count(*) from dipwell.buckets").Scan(&n); err != nil || n < 101 {
			return fmt.Errorf("%d rows: %w", n, err)
		}
		return nil
	}, "--store", dsn)
	if r.Decisions == 0 {
		t.Errorf("%+v", r)
	}
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
	for _, args := range [][]string{{}, {"--single"}} {
		code, r := runBench(t, append(args, "--store", server.URL())...)
		decided(t, code, &r, map[bool]string{true: "coalesced", false: "single"}[len(args) == 0])
		if after := left(); after != before {
			t.Errorf("%v: left %s, before %s", args, after, before)
		}
	}
	interrupted(t, syscall.SIGINT, func() error {
		return asksRedis(server)
	}, "--store", server.URL())
	interrupted(t, syscall.SIGHUP, func() error {
		return asksRedis(server)
	}, "--store", server.URL())
	if after := left(); after != before {
		t.Errorf("interrupted: left %s, before %s", after, before)
	}
	if code, _, stderr := program(t, "bench", "--time", "10ms", "--store", "redis://127.0.0.1:1"); code != 2 || !strings.Contains(stderr, "connection refused") {
		t.Error(code, stderr)
	}
}

// Calls that fail because the store stops are not decisions, and the report lists
// what could not be removed.
func TestBenchStoreStops(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cmd := built(t, "bench", "--time", "1h", "--clients", "2", "--keys", "100", "--store", server.URL())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	eventually(t, func() error {
		return asksRedis(server)
	})
	server.Kill()
	if err = cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(said), "limit "+benchName) || !strings.Contains(string(said), "curl -X DELETE") {
		t.Errorf("%d %s", code, said)
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
