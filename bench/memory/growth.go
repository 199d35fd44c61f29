package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// growth fills a store from 1M to 10M keys and reports the most resident
// memory a key at any point of it, and how many calls took over a millisecond,
// beside a loop of the same length that makes no call.
func growth(name string) {
	manyKeys()
	call := contenders[name]()
	debug.FreeOSMemory()
	base := rss()
	const first, last = 1_000_000, 10_000_000
	every := 250_000
	if name != "dipwell" { // a collection of millions of limiters takes seconds
		every = 1_000_000
	}
	for i := range first {
		call(key(i))
	}
	var worst float64
	var at, slow, slowest int
	for i := first; i < last; i++ {
		k := key(i)
		start := time.Now()
		call(k)
		took := int(time.Since(start))
		if took > int(time.Millisecond) {
			slow++
		}
		slowest = max(slowest, took)
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
	for range last - first {
		start := time.Now()
		if time.Since(start) > time.Millisecond {
			control++
		}
	}
	fmt.Printf("%.1f %d %.1f %d %d %d\n", worst, at, end, slow, slowest, control)
	runtime.KeepAlive(call)
}
