package main

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// releaseEvery is how often pages are released: rarely enough that mapping
// again what is in use, some hundred faults, costs about a ten-thousandth.
const releaseEvery = 10 * time.Second

// keepPagesReleased releases pages now and now and then until ctx ends: a first
// connection, a look at /metrics, a store's reconnection leave megabytes mapped
// that the next call does not need.
func keepPagesReleased(ctx context.Context) {
	releasePages()
	go func() {
		for tick := time.NewTicker(releaseEvery); ; releasePages() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
}

// releasePages lets go of the program's own code and constants, of which the
// start has touched much that serving never needs again: what other commands
// initialize, and 64 KB around each page. The kernel maps what is used from its
// page cache again. Without /proc nothing happens.
func releasePages() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer maps.Close()
	var start, end uint64
	for s := bufio.NewScanner(maps); s.Scan(); {
		f := strings.Fields(s.Text())
		switch {
		case len(f) >= 2 && len(f[1]) == 4 && strings.ContainsRune(f[0], '-'): // a mapping begins
			if start, end = 0, 0; len(f) == 6 && f[5] == exe && (f[1] == "r-xp" || f[1] == "r--p") {
				from, to, _ := strings.Cut(f[0], "-")
				start, _ = strconv.ParseUint(from, 16, 64)
				end, _ = strconv.ParseUint(to, 16, 64)
			}
		case len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0" && 0 < start && start < end: // nothing in it but what the file has
			// Their only effect is on memory, and they may fail without harm. Where
			// the file lies in huge pages, one byte would map two megabytes again.
			for _, advice := range []uintptr{syscall.MADV_NOHUGEPAGE, syscall.MADV_DONTNEED} {
				_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(start), uintptr(end-start), advice)
			}
		}
	}
}
