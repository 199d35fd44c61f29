package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// growth fills a store from 1M to 10M keys. growth reports the highest resident
// memory per key, and how many calls took over a millisecond: in elapsed time,
// which includes other work of the machine, and in processor time of the
// thread, which includes page faults. An equally long loop without calls shows
// the effect of the machine.
func growth(name string) {
	manyKeys()
	runtime.LockOSThread()
	const first, last = 1_000_000, 10_000_000
	key := writeKeys(last)
	debug.FreeOSMemory()
	base := rss()
	call := contenders[name]()
	every := 250_000
	if name != "dipwell" { // the garbage collection of millions of limiters takes seconds
		every = 1_000_000
	}
	for i := range first {
		call(key(i), 1)
	}
	var worst float64
	var at, slow, own, slowest int
	var total time.Duration
	for i := first; i < last; i++ {
		k := key(i)
		took, worked := timed(func() { call(k, 1) })
		total += took
		if took > time.Millisecond {
			slow++
		}
		if worked > time.Millisecond {
			own++
		}
		slowest = max(slowest, int(took))
		if i%every == 0 {
			runtime.GC()
			if per := (rss() - base) / float64(i); per > worst {
				worst, at = per, i
			}
		}
	}
	debug.FreeOSMemory()
	end := (rss() - base) / last
	control := 0
	for begun := time.Now(); time.Since(begun) < total; {
		if took, _ := timed(func() {}); took > time.Millisecond {
			control++
		}
	}
	fmt.Printf("%.1f %d %.1f %d %d %d %d\n", worst, at, end, slow, own, slowest, control)
	runtime.KeepAlive(call)
	runtime.KeepAlive(key)
}

// timed runs f and returns the elapsed time and the processor time of this
// thread.
func timed(f func()) (took, worked time.Duration) {
	var before, after unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before)
	start := time.Now()
	f()
	took = time.Since(start)
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
	return took, time.Duration(after.Nano() - before.Nano())
}

// writeKeys writes the names of n keys into one buffer, so that making keys
// leaves no garbage, and returns a function for the i-th.
func writeKeys(n int) func(i int) string {
	text, ends := make([]byte, 0, 20*n), make([]uint32, n+1)
	for i := range n {
		text = append(text, key(i)...)
		ends[i+1] = uint32(len(text))
	}
	return func(i int) string { return unsafe.String(&text[ends[i]], ends[i+1]-ends[i]) }
}
