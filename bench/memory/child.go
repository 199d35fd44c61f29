package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell/bench/internal/cpu"
)

// child runs one contender in a process of its own, so that contenders do not
// share a garbage collector, and executes commands from its parent, one per
// line.
func child(name, kind string, nkeys int) {
	w := newWorkload(kind, nkeys)
	c := &contender{workload: w, call: contenders[name](), n: nkeys}
	w.warm(c.call)
	runtime.GC()
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		f := strings.Fields(in.Text())
		n := 0
		if len(f) > 1 {
			n, _ = strconv.Atoi(f[1])
		}
		switch f[0] {
		case "run":
			ns, cpu, allocs, ok := c.run(n)
			fmt.Println(ns, cpu, allocs, ok)
		case "one":
			fmt.Println(c.concurrent(1, n))
		case "two":
			fmt.Println(c.concurrent(2, n))
		case "gc":
			start := time.Now()
			runtime.GC()
			fmt.Println(time.Since(start).Seconds()*1e3, 0)
		case "free":
			debug.FreeOSMemory()
			fmt.Println(rss(), 0)
		}
	}
}

type contender struct {
	*workload
	call  call
	few   []string // a handful
	costs []int
	all   []string
	n     int // number of all keys
	at    int
}

// run makes n calls over the keys. run returns time in ns, processor time in
// ns and allocations per call, and the share of allowed calls.
func (c *contender) run(n int) (ns, work, allocs, ok float64) {
	var before, after runtime.MemStats
	var took, worked time.Duration
	allowed := 0
	mallocs := uint64(0)
	for done := 0; done < n; done += handful {
		keys, costs := c.fresh(c.at + done)
		if done == 0 { // counting allocations stops the world, so only the first handful is counted
			runtime.ReadMemStats(&before)
		}
		own, start := cpu.Own(), time.Now()
		allowed += loop(c.call, keys, costs)
		took += time.Since(start)
		worked += cpu.Own() - own
		if done == 0 {
			runtime.ReadMemStats(&after)
			mallocs = after.Mallocs - before.Mallocs
		}
	}
	c.at += n
	all := float64(n)
	return float64(took) / all, float64(worked) / all, float64(mallocs) / handful, float64(allowed) / all
}

// fresh makes the names of the next few keys before their calls are timed, as
// a server has the key of a request in its caches: so the benchmark measures
// the limiter's memory accesses, not those of its own list of keys.
const handful = 512

func (c *contender) fresh(at int) ([]string, []int) {
	if c.few == nil {
		c.few, c.costs = make([]string, handful), make([]int, handful)
	}
	for i := range c.few {
		c.few[i], c.costs[i] = c.key(at+i), c.cost(at+i)
	}
	return c.few, c.costs
}

// concurrent makes n calls on each of several goroutines, over a list of all
// keys, and returns the elapsed time and the processor time per call. Keys are not made
// between the calls of concurrent, so that the goroutines run at the same time.
func (c *contender) concurrent(goroutines, n int) (ns, work float64) {
	if c.all == nil {
		c.all, c.costs = make([]string, c.n), make([]int, c.n)
		for i := range c.costs {
			c.costs[i] = 1
		}
		for i := range c.all {
			c.all[i] = key(visit(i, c.n))
		}
	}
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for g := range goroutines {
		wg.Go(func() {
			<-gate
			at := (c.at + g*c.n/2) % c.n
			for left := n; left > 0; {
				part := c.all[at:min(c.n, at+left)]
				loop(c.call, part, c.costs)
				left -= len(part)
				at = 0
			}
		})
	}
	own, start := cpu.Own(), time.Now()
	close(gate)
	wg.Wait()
	c.at += n
	all := float64(goroutines * n)
	return float64(time.Since(start)) / all, float64(cpu.Own()-own) / all
}

func loop(ask call, keys []string, costs []int) (ok int) {
	for i, k := range keys {
		if ask(k, costs[i]) {
			ok++
		}
	}
	return ok
}

// rss returns the resident memory of this process in bytes, without the pages
// of the executable.
func rss() float64 {
	f, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		return 0
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024
		}
	}
	return 0
}
