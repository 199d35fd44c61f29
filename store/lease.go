package store

import (
	"time"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/period"
)

// Bounds of the setting Lease. A shorter lease costs more round trips than it saves,
// and a longer one strands more tokens than most bursts have.
const (
	minLease       = 10 * time.Millisecond
	maxLease       = time.Second
	mostLeasedTick = 1000 // µs between ticks; within a lease of 10 ms, coarser ticks would return tokens unevenly
)

// checkLease checks those settings of a leased limit that its plans cannot change.
func (c *compiler) checkLease() error {
	switch {
	case c.Lease == 0:
		return nil
	case c.Lease < minLease || c.Lease > maxLease:
		return c.bad("lease", "%s is not between 10ms and 1s", lengthText(c.Lease))
	case c.Lease%time.Microsecond != 0:
		return c.bad("lease", "%v is not a whole number of microseconds", c.Lease)
	case c.Algorithm != TokenBucket:
		return c.bad("lease", "is for token buckets")
	case c.Parent != "":
		return c.bad("lease", "is not for a limit with a parent")
	case c.Mode == Shadow:
		return c.bad("lease", "is not for a limit in shadow mode")
	case c.Shards > 1:
		return c.bad("lease", "is not for a limit with shards")
	}
	return nil
}

// carve computes by how many tokens a leased limit's bucket is smaller than its burst. Tokens
// that a process took in advance may be granted up to Lease later, while the bucket refills.
// So the bucket is smaller by what comes back in that time, plus 0.2 % for clocks of different
// speed. Leased tokens and the bucket together are then at most the burst at any time.
func (c *compiler) carve() error {
	lease, length := c.Lease.Microseconds(), c.Period.Microseconds()
	if most := c.longestLease(length); lease > most {
		if most < minLease.Microseconds() {
			return c.bad("lease", "%s is too long for a burst of %d at %d per %s, and so is any other; at most half of the burst may come back in it",
				period.Format(c.Lease), c.burst, c.Rate, period.Format(c.Period))
		}
		return c.bad("lease", "%s is too long for a burst of %d at %d per %s; at most %s",
			period.Format(c.Lease), c.burst, c.Rate, period.Format(c.Period), period.Format(time.Duration(most)*time.Microsecond))
	}
	c.carved = algebra.MulDiv(lease*1002, c.Rate, length*1000, true)
	return nil
}

// longestLease returns the longest possible lease in µs: at most half of the burst comes
// back in it, and at least one token is left. A burst of 2, for example, cannot give up
// half of it and 0.2 %, which round up to two tokens.
func (c *compiler) longestLease(length int64) int64 {
	switch half := algebra.MulDiv(c.burst, length, 2*c.Rate, false); c.burst {
	case 0, 1:
		return 0
	case 2:
		return min(half, algebra.MulDiv(length, 1000, 1002*c.Rate, false))
	default:
		return half
	}
}
