package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// options configure a run of the simulator. The zero value means the defaults.
type options struct {
	Steps int `default:"300" placeholder:"N" help:"Steps of a history: bursts of calls, and faults. Default 300."`
}

// A Result is the result of one history.
type result struct {
	Seed      uint64
	Violation *violation       // nil: all checks passed
	Calls     int64            // number of calls that were answered
	Taken     int64            // tokens that the store took
	Leased    int64            // tokens that callers got from leases
	Lost      map[string]int64 // those of Taken of which no caller heard, by the fault that lost them
	Seen      map[string]int   // how often each event happened that the histories must have
	steps     []step           // the steps needed for the violation, after Shrink
}

func run(seed uint64, o options) *result {
	return o.history(seed).play(nil)
}

func (o options) history(seed uint64) history {
	if o.Steps == 0 {
		o.Steps = 300
	}
	return newHistory(seed, o.Steps, false)
}

func (h history) play(trace func(line string)) *result {
	return h.end(trace).result
}

// end plays a history and returns the world at its end.
func (h history) end(trace func(line string)) *world {
	r := &result{Seed: h.seed, Lost: map[string]int64{}, Seen: map[string]int{}, steps: h.steps}
	w := &world{history: h, trace: trace, result: r}
	w.nodes = []*node{newNode(w, 0, h.drifts[0], slices.Clone(h.limits))}
	if h.regional {
		limits := slices.DeleteFunc(slices.Clone(h.limits), func(l store.Limit) bool { return l.Name == "hot" })
		w.nodes = append(w.nodes, newNode(w, 1, h.drifts[h.processes+1], limits))
	}
	for i := range h.processes {
		w.procs = append(w.procs, w.process(i))
	}
	for i := range h.steps {
		s := &h.steps[i]
		w.at(s.at, func() { w.play(s) })
	}
	w.run()
	for _, p := range w.procs {
		for _, c := range p.clients() {
			c.close()
		}
	}
	if w.Violation == nil {
		for _, n := range w.nodes {
			n.checkPromise()
			n.checkCustomers()
		}
		w.checkConservation()
	}
	return w
}

// all plays the histories of the seeds from 0 to n-1 on all processors. all
// returns the sum of their results, or the first result that fails a check,
// shrunk. Meanwhile the garbage collector runs rarely.
func all(ctx context.Context, n int, o options) (*result, error) {
	// A history takes a few megabytes, most of which become garbage. A garbage collection
	// percentage would not work: on a busy machine, what is allocated during a collection
	// counts as live.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(256 << 20))
	var next, failed atomic.Int64
	failed.Store(int64(n))
	sum := &result{Lost: map[string]int64{}, Seen: map[string]int{}}
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for ctx.Err() == nil {
				seed := next.Add(1) - 1
				if seed >= failed.Load() {
					return
				}
				r := run(uint64(seed), o)
				mu.Lock()
				if r.Violation != nil {
					failed.Store(min(failed.Load(), seed))
				}
				sum.Calls += r.Calls
				sum.Taken += r.Taken
				sum.Leased += r.Leased
				for fault, tokens := range r.Lost {
					sum.Lost[fault] += tokens
				}
				for what, times := range r.Seen {
					sum.Seen[what] += times
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if seed := failed.Load(); seed < int64(n) {
		return shrink(uint64(seed), o), nil
	}
	return sum, ctx.Err()
}

// shrink drops steps of a history whose check fails, while the same check still fails.
func shrink(seed uint64, o options) *result {
	h := o.history(seed)
	best := h.play(nil)
	if best.Violation == nil {
		return best
	}
	for size := len(h.steps) / 2; size > 0; {
		dropped := false
		for from := 0; from < len(h.steps); {
			try := h
			try.steps = slices.Concat(h.steps[:from], h.steps[min(from+size, len(h.steps)):])
			if r := try.play(nil); r.Violation != nil && r.Violation.Check == best.Violation.Check {
				h, best, dropped = try, r, true
			} else {
				from += size
			}
		}
		if !dropped || size > len(h.steps) {
			size /= 2
		}
	}
	return best
}

// Print plays the steps of a result again, and writes every event.
func (r *result) Print(w io.Writer, o options) {
	h := o.history(r.Seed)
	h.steps = r.steps
	line := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	line("seed %d: %d processes, %d steps", r.Seed, h.processes, len(h.steps))
	for _, l := range h.limits {
		line("limit %s", l)
	}
	for i := range h.steps {
		line("%12.3f ms  step %d: %s", float64(h.steps[i].at)/1000, h.steps[i].id, &h.steps[i])
	}
	line("")
	h.play(func(s string) { line("%s", s) })
}
