package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/memory"
)

// TestClock: between two readings of the system's clocks, now is between them, at most
// off away.
func TestClock(t *testing.T) {
	c := systemClock()
	counted := 0
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		before, wallBefore := c.exact()
		mono, wall := c.now()
		after, wallAfter := c.exact()
		if mono < before-c.off || mono > after+c.off || wall < wallBefore-c.off || wall > wallAfter+c.off {
			t.Fatalf("%d is not between %d and %d; wall %d, %d and %d", mono, before, after, wall, wallBefore, wallAfter)
		}
		if _, ok := c.last.Load().At(memory.Counter()); ok {
			counted++
		}
	}
	t.Logf("%d readings of the counter", counted)
}

// In a bubble of testing/synctest the clock has the bubble's time.
func TestClockInSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := systemClock()
		for i := range 20_000 {
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
			mono, wall := c.now()
			if exact, exactWall := c.exact(); mono != exact || wall != exactWall {
				t.Fatalf("%d and %d, want %d and %d", mono, wall, exact, exactWall)
			}
		}
	})
}
