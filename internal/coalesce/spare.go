package coalesce

import "sync/atomic"

// credits say when a call may go by a spare lane rather than wait. Far from
// capacity that spares it a wait. Near capacity statements for one call each
// would slow down everybody, and calls that wait share one. Each call that finds
// few statements in flight, and nobody waiting, earns a credit; a call by a spare
// lane costs two. In a simulation with two lanes, four spare ones, two processors
// and commits of 0.2 ms the p99.9 of 16 callers at 30 % load went from 1.6 to 1.1
// times that of 16 connections (commits of 1 ms: 1.8 to 1.4), and the throughput
// of 8 to 512 callers that never pause stayed as it was.
type credits struct{ n atomic.Int32 }

const (
	earnBelow  = 3 // statements in flight for each lane with a queue, below which a call earns
	spareCost  = 2
	maxCredits = 64 // what a time of low load leaves for a burst
)

func (c *credits) earn(lowLoad bool) {
	if lowLoad && c.n.Load() < maxCredits {
		c.n.Add(1)
	}
}

func (c *credits) spend() bool {
	for n := c.n.Load(); n >= spareCost; n = c.n.Load() {
		if c.n.CompareAndSwap(n, n-spareCost) {
			return true
		}
	}
	return false
}

// spareLane makes a spare lane busy for a call, if one is idle and may be used.
// One without a connection is passed over: waiting for a statement takes less
// time, and does not fail where connections are scarce.
func (s *Store) spareLane() *lane {
	if !s.spare.spend() {
		return nil
	}
	for i, l := range s.lanes[s.home:] {
		if s.connected != nil && (l.busy.Load() || !s.connected(s.home+i)) {
			continue
		}
		if l.lead() {
			return l
		}
	}
	return nil
}
