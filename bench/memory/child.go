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
)

// child runs one contender in a process of its own, so that nobody pays for
// another's garbage, and does what its parent asks, a line at a time.
func child(name string, nkeys int) {
	if nkeys >= 1_000_000 {
		manyKeys()
	}
	c := &contender{call: contenders[name](), n: nkeys}
	for i := range nkeys {
		c.call(key(i))
	}
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
			ns, allocs := c.run(n)
			fmt.Println(ns, allocs)
		case "one":
			fmt.Println(c.together(1, n), 0)
		case "two":
			fmt.Println(c.together(2, n), 0)
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
	call func(string) bool
	keys []string // a handful
	all  []string
	n    int // keys in all
	at   int
	ok   int
}

// run makes n calls over the keys and returns nanoseconds and allocations a call.
func (c *contender) run(n int) (ns, allocs float64) {
	var before, after runtime.MemStats
	var took time.Duration
	mallocs := uint64(0)
	for done := 0; done < n; done += handful {
		keys := c.fresh(c.at + done)
		if done == 0 { // counting stops the world: one handful speaks for all
			runtime.ReadMemStats(&before)
		}
		start := time.Now()
		c.ok += loop(c.call, keys)
		took += time.Since(start)
		if done == 0 {
			runtime.ReadMemStats(&after)
			mallocs = after.Mallocs - before.Mallocs
		}
	}
	c.at += n
	return float64(took.Nanoseconds()) / float64(n), float64(mallocs) / handful
}

// A handful of keys is made afresh before it is timed, as a server has the key
// of a request at hand: what is measured is the limiter's memory, not the
// benchmark's list of keys.
const handful = 512

func (c *contender) fresh(at int) []string {
	if cap(c.keys) < handful {
		c.keys = make([]string, handful)
	}
	for i := range c.keys {
		c.keys[i] = key(visit(at+i, c.n))
	}
	return c.keys
}

// visit is an order of 0 to n-1 without locality, the same for everybody.
func visit(i, n int) int { return int(uint64(i) * 2654435761 % uint64(n)) }

func key(i int) string { return "user:" + strconv.Itoa(i*7919) }

// together makes n calls on each of some goroutines, over a list of all keys,
// and returns the time that a call takes off the clock. Here nobody stops to
// make keys: the goroutines are to meet.
func (c *contender) together(goroutines, n int) float64 {
	if c.all == nil {
		c.all = make([]string, c.n)
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
				loop(c.call, part)
				left -= len(part)
				at = 0
			}
		})
	}
	start := time.Now()
	close(gate)
	wg.Wait()
	c.at += n
	return float64(time.Since(start).Nanoseconds()) / float64(goroutines*n)
}

func loop(call func(string) bool, keys []string) (ok int) {
	for _, k := range keys {
		if call(k) {
			ok++
		}
	}
	return ok
}

// rss is the resident memory of this process in bytes, from the kernel, without
// the program file's own pages.
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
