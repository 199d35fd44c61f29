package lease

import (
	"testing"
	"time"
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
		if c.last.Load().most > 0 {
			counted++
		}
	}
	t.Logf("%d readings of the counter", counted)
}

// A counter that changes its pace, or that stands still, is not relied on.
func TestPaceOfCounter(t *testing.T) {
	mono := int64(0)
	c := &clock{off: mostOff, exact: func() (int64, int64) { return mono, mono }}
	c.last.Store(&reading{})
	count := uint64(1000)
	for _, step := range []struct {
		name   string
		passed time.Duration
		counts uint64
		relied bool
	}{
		{"the first reading", 0, 1, false},
		{"3 GHz", 800 * time.Microsecond, 2_400_000, true},
		{"3 GHz after a pause", 90 * time.Millisecond, 270_000_000, true},
		{"half as fast", 2 * time.Millisecond, 3_000_000, false},
		{"a pause in which a machine may sleep", time.Minute, 180_000_000_000, false},
		{"it stands", time.Millisecond, 0, false},
		{"30 GHz", 10 * time.Millisecond, 300_000_000, false},
	} {
		mono += int64(step.passed)
		count += step.counts
		c.read(c.last.Load(), count)
		if relied := c.last.Load().most > 0; relied != step.relied {
			t.Errorf("%s: relied on: %v", step.name, relied)
		}
		if r := c.last.Load(); relied(r) > 1100*time.Microsecond {
			t.Errorf("%s: relied on for %v", step.name, relied(r))
		}
	}
}

func relied(r *reading) time.Duration { return time.Duration(r.most * r.pace >> 32) }
