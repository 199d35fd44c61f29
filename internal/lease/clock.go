package lease

import (
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/memory"
)

// A clock reads the monotonic and the wall clock, in ns. Reading both from the system
// would be most of the cost of a decision. So for about 1 ms after a reading, the clock
// adds what the processor's counter says; the counter's pace is measured again at each
// reading. The time is off by less than mostOff, whatever the counter does, and tokens
// expire that much earlier.
type clock struct {
	exact func() (mono, wall int64)
	off   int64 // largest possible error of now, in ns
	last  atomic.Pointer[reading]
}

// A reading is a time with the counter at that time.
type reading struct {
	mono, wall int64
	count      uint64
	pace       uint64 // length of a count, in 2^-32 ns; 0: unknown
	most       uint64 // for how many counts the reading may be used
}

const (
	reliance = uint64(time.Millisecond)
	mostOff  = int64(2 * time.Millisecond)
	// These bounds are for a counter of 1 to 6 GHz. Other counters are not used.
	fastest, slowest = uint64(1<<32) / 6, uint64(1 << 32)
)

// systemClock is the clock of this machine.
func systemClock() *clock {
	began := time.Now()
	c := &clock{off: mostOff, exact: func() (int64, int64) {
		t := time.Now()
		return int64(t.Sub(began)), t.UnixNano()
	}}
	c.last.Store(&reading{})
	return c
}

// now returns the time, at most off away from exact.
func (c *clock) now() (mono, wall int64) {
	if c.off == 0 {
		return c.exact()
	}
	r, count := c.last.Load(), memory.Counter()
	since := count - r.count
	if since >= r.most {
		return c.read(r, count)
	}
	passed := int64(since * r.pace >> 32)
	return r.mono + passed, r.wall + passed
}

// read reads the system's clocks. If the last reading was 0.5 ms to 1 s ago, it also
// measures the pace of the counter. If it differs from the pace
// before by more than 1/256, the counter is not used until the next measurement.
func (c *clock) read(last *reading, count uint64) (mono, wall int64) {
	mono, wall = c.exact()
	if count == 0 {
		return mono, wall
	}
	passed, counts := uint64(mono-last.mono), count-last.count
	if last.count != 0 && passed < reliance/2 && last.most == 0 {
		return mono, wall // too soon after the last reading to measure the pace
	}
	next := &reading{mono: mono, wall: wall, count: count}
	if last.count != 0 && passed >= reliance/2 && passed <= uint64(time.Second) && counts < 1<<40 {
		next.pace = passed << 32 / max(counts, 1)
		steady := last.pace == 0 || next.pace-last.pace+last.pace>>8 < last.pace>>7
		if steady && next.pace >= fastest && next.pace <= slowest {
			next.most = reliance << 32 / next.pace
		}
	}
	c.last.CompareAndSwap(last, next)
	return mono, wall
}
