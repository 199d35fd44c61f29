package recipes

import (
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
)

const (
	minute = int64(60_000_000) // µs
	poll   = int64(10_000)     // µs between the calls of a caller that never stops
)

// slidingLog keeps the time of each of the last n grants: at most n in any minute.
func slidingLog(n int) func(now int64) bool {
	var grants []int64
	return func(now int64) bool {
		if len(grants) >= n && now-grants[len(grants)-n] < minute {
			return false
		}
		grants = append(grants, now)
		return true
	}
}

// ours asks a limiter in memory, by a clock that the test sets.
func ours(t *testing.T, text string) func(now int64) bool {
	t.Helper()
	var now int64
	limit, err := dipwell.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiterAt(func() int64 { return now }, limit)
	return func(at int64) bool {
		now = at
		d, err := l.Take(ctx, limit.Name, "user:7", 1)
		if err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
}

// A limiter is a line of a table.
type limiter struct {
	name string
	take func(now int64) bool
}

// limiters are a sliding log, a sliding window and other limits.
func limiters(t *testing.T, limits ...string) []limiter {
	t.Helper()
	all := []limiter{{"sliding log, 100 in 60 s", slidingLog(100)}, {"`api=100/1m,algorithm=sliding_window`", ours(t, "api=100/1m,algorithm=sliding_window,start=0s")}}
	for _, l := range limits {
		all = append(all, limiter{"`" + l + "`", ours(t, l)})
	}
	return all
}

// TestSlidingWindow computes the table of docs/how-to/sliding-window.md: an
// hour of a caller that asks every 10 ms and never stops, after a minute of rest.
func TestSlidingWindow(t *testing.T) {
	out := row("limiter", "first minute", "second minute", "most in 60 s", "in an hour", "longest gap between two grants") + rule(6)
	for _, l := range limiters(t, "api=100/1m", "api=100/1m,burst=10", "api=80/1m,burst=20", "api=50/1m,burst=50", "api=100/1m,algorithm=fixed_window,start=30s") {
		var grants []int64
		var perMinute [60]int
		var most, from int
		var gap int64
		for i := range int64(60 * 6000) {
			at := 1_000_000*minute + i*poll
			if !l.take(at) {
				continue
			}
			if n := len(grants); n > 0 {
				gap = max(gap, at-grants[n-1])
			}
			grants = append(grants, at)
			perMinute[i/6000]++
			for at-grants[from] >= minute {
				from++
			}
			most = max(most, len(grants)-from)
		}
		out += row(l.name, fmt.Sprint(perMinute[0]), fmt.Sprint(perMinute[1]), fmt.Sprint(most), commas(int64(len(grants))),
			(time.Duration(gap) * time.Microsecond).Round(10*time.Millisecond).String())
	}
	checkTable(t, "how-to/sliding-window.md", "hour", out)
}

// TestSlidingBursts computes the second table of docs/how-to/sliding-window.md: a caller that
// sends 150 calls at once 100 ms before a boundary of windows, and again 59.9 s later.
func TestSlidingBursts(t *testing.T) {
	out := row("limiter", "first burst", "second burst", "within 60 s") + rule(4)
	for _, l := range limiters(t, "api=100/1m", "api=80/1m,burst=20", "api=50/1m,burst=50") {
		var granted [2]int
		for i := range granted {
			for range 150 {
				if l.take(1_000_000*minute - 100_000 + int64(i)*59_900_000) {
					granted[i]++
				}
			}
		}
		out += row(l.name, fmt.Sprint(granted[0]), fmt.Sprint(granted[1]), fmt.Sprint(granted[0]+granted[1]))
	}
	checkTable(t, "how-to/sliding-window.md", "bursts", out)
}
