package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/internal/bounded"
)

// reaped is how long the server may take to count the processor time of
// pgbench's sessions, which end together with pgbench.
const reaped = 100 * time.Millisecond

// pgbench is a runner in which pgbench runs a contender's script.
func (b *bench) pgbench(ctx context.Context, l load.Load, c contender) (r load.Result, err error) {
	dir, err := os.MkdirTemp("", "bench-pgbench")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, c.script)
	if err := os.WriteFile(script, []byte(sqlFile(c.script)+"\n"), 0o600); err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "pgbench"), "--no-vacuum", "--protocol=prepared", "--file="+script,
		"--define=keys="+strconv.Itoa(l.Keys), "--client="+strconv.Itoa(l.Clients), "--jobs="+strconv.Itoa(min(l.Clients, 2)),
		"--time="+strconv.Itoa(int(math.Ceil(l.Length.Seconds()))), "--max-tries=0", "--log", "--sampling-rate=0.1", c.database)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PGOPTIONS="+c.settings)
	before, err := b.serverTime()
	if err != nil {
		return r, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return r, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	time.Sleep(reaped)
	after, err := b.serverTime()
	if err != nil {
		return r, err
	}
	r.Server, r.Client = after-before, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	r.Length = time.Duration(math.Ceil(l.Length.Seconds())) * time.Second
	if r.PerSecond, err = number(out, `tps = ([0-9.]+) \(without initial`); err != nil {
		return r, err
	}
	if retries, err := number(out, `total number of retries: ([0-9]+)`); err == nil {
		r.Conflicts = int(retries)
	}
	return r, readLatencies(&r.Times, dir)
}

func number(out []byte, pattern string) (float64, error) {
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("pgbench printed no %q:\n%s", pattern, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// read adds the latencies in pgbench's logs: their third field, in µs.
func readLatencies(h *bounded.Histogram, dir string) error {
	logs, _ := filepath.Glob(filepath.Join(dir, "pgbench_log.*"))
	for _, name := range logs {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
			f := strings.Fields(lines.Text())
			if len(f) < 3 {
				continue
			}
			us, err := strconv.Atoi(f[2])
			if err != nil {
				return fmt.Errorf("pgbench's log: %w", err)
			}
			h.Record(time.Duration(us) * time.Microsecond)
		}
	}
	return nil
}
