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
	c := &contender{call: contenders[name](), keys: makeKeys(nkeys)}
	for _, k := range c.keys {
		c.call(k)
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
		case "both":
			fmt.Println(c.both(n), 0)
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
	keys []string
	at   int
	ok   int
}

// run makes n calls over the keys and returns nanoseconds and allocations a call.
func (c *contender) run(n int) (ns, allocs float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	c.ok += loop(c.call, c.keys, c.at, n)
	ns = float64(time.Since(start).Nanoseconds()) / float64(n)
	runtime.ReadMemStats(&after)
	c.at += n
	return ns, float64(after.Mallocs-before.Mallocs) / float64(n)
}

// both makes n calls on each of two goroutines; ns is the time a call takes off the clock.
func (c *contender) both(n int) float64 {
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for g := range 2 {
		wg.Go(func() {
			<-gate
			loop(c.call, c.keys, c.at+g*len(c.keys)/2, n)
		})
	}
	start := time.Now()
	close(gate)
	wg.Wait()
	c.at += n
	return float64(time.Since(start).Nanoseconds()) / float64(2*n)
}

// loop visits the keys in an order without locality, the same for everybody.
func loop(call func(string) bool, keys []string, at, n int) (ok int) {
	mask := len(keys) - 1
	for i := range n {
		if call(keys[((at+i)*2654435761)&mask]) {
			ok++
		}
	}
	return ok
}

// makeKeys makes at least n keys: the next power of two, so that visiting them
// needs no division.
func makeKeys(n int) []string {
	size := 1
	for size < n {
		size *= 2
	}
	keys := make([]string, size)
	for i := range keys {
		if i < n {
			keys[i] = "user:" + strconv.Itoa(i*7919)
		} else {
			keys[i] = keys[i-n]
		}
	}
	return keys
}

// rss is the resident memory of this process in bytes, from the kernel.
func rss() float64 {
	f, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		return 0
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024
		}
	}
	return 0
}
