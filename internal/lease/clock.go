package lease

import (
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/memory"
)

// A clock reads the monotonic and the wall clock, in ns. Reading both from the system
// would be most of the cost of a decision, so it reads them about once in 1 ms, as the store in
// memory does. The time is off by less than mostOff, and tokens expire that much earlier.
type clock struct {
	exact func() (mono, wall int64)
	off   int64 // largest possible error of now, in ns
	began time.Time
	last  atomic.Pointer[reading]
}

// A reading is of the system's clocks.
type reading struct {
	memory.Ticker
	ahead int64 // the wall clock minus the monotonic one
}

const mostOff = int64(2 * time.Millisecond)

// systemClock is the clock of this machine.
func systemClock() *clock {
	c := &clock{off: mostOff, began: time.Now()}
	if !memory.Monotonic(c.began) {
		c.off = 0
	}
	c.exact = func() (int64, int64) {
		t := time.Now()
		return int64(t.Sub(c.began)), t.UnixNano()
	}
	c.last.Store(&reading{})
	return c
}

// now returns the time, at most off away from exact.
func (c *clock) now() (mono, wall int64) {
	count := memory.Counter()
	if c.off == 0 || count == 0 {
		return c.exact()
	}
	r := c.last.Load()
	if us, ok := r.At(count); ok {
		return us * 1000, us*1000 + r.ahead
	}
	next := r.Ticker
	mono = next.Read(c.began, 0, count) * 1000
	exact, wall := c.exact()
	if next != r.Ticker {
		c.last.CompareAndSwap(r, &reading{next, wall - exact})
	}
	return mono, wall
}
