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

// releaseEvery is how often pages are released. Mapping the pages in use again
// takes some hundred faults, about 0.01 % of the time.
const releaseEvery = 10 * time.Second

// keepPagesReleased releases pages now and every releaseEvery until ctx ends. A
// scrape of /metrics or a reconnection, for example, leaves megabytes mapped that
// calls do not need.
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

// releasePages unmaps the pages of the program's code and constants. Many of them
// were used only at the start. The kernel maps a page again from its page cache when
// it is used. Without /proc releasePages does nothing.
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
		case len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0" && 0 < start && start < end: // only pages of the file
			// Errors are harmless. Without NOHUGEPAGE, on a file in huge pages one
			// byte would map two megabytes again.
			for _, advice := range []uintptr{syscall.MADV_NOHUGEPAGE, syscall.MADV_DONTNEED} {
				_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(start), uintptr(end-start), advice)
			}
		}
	}
}
