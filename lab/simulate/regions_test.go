package main

import (
	"testing"

	"github.com/dipwell/dipwell/store"
)

// TestPartition cuts the other region off for 12 leases. Processes in both ask for more
// than the limit of the world gives. The region that is cut off uses what it holds, for at
// most one lease; the home region goes on, and gets the rest; afterwards both do.
func TestPartition(t *testing.T) {
	for seed, n := uint64(0), 0; n < 3; seed++ {
		h := newHistory(seed, 0, true)
		if !h.regional {
			continue
		}
		n++
		h.processes, h.local = 4, false
		h.drifts = make([]int64, h.processes+2)
		hot, customer := h.limits[3], &h.limits[4]
		customer.Rate, customer.Burst = 10*hot.Rate, 10*hot.Rate
		*h.bounds["customer"] = bound{burst: customer.Burst, rate: customer.Rate, period: 1e6}
		lease := hot.Lease.Microseconds()
		cost := max(1, hot.Rate*lease/400e6)
		gap := 1e6 * 4 * cost / (3 * hot.Rate) // of each process: each region asks for one and a half times the rate
		h.steps = []step{{at: 12 * lease, kind: cut, span: 6 * lease, wide: true}}
		for p := range h.processes {
			h.steps = append(h.steps, step{id: p + 1, at: int64(37 * p), process: p, limit: hot.Name, key: "a", verb: store.VerbTake, cost: cost, n: int(30 * lease / gap), gap: gap + int64(7*p)})
		}
		w := h.end(nil)
		if w.Violation != nil {
			t.Errorf("seed %d, %v: %v", seed, hot, w.Violation)
			continue
		}
		share := func(region int, from, to float64) float64 { // of the rate, between two leases
			var tokens int64
			for _, g := range w.nodes[0].books[at{hot.Name, "a"}].uses {
				if at := float64(g.at-epoch) / float64(lease); g.process%2 == region && at >= from && at < to {
					tokens += g.tokens
				}
			}
			return float64(tokens) / (float64(hot.Rate) * hot.Lease.Seconds() * (to - from))
		}
		healed := 20 + 1e6/float64(lease) // a statement that the partition swallowed keeps its lane for a second
		got := [2][4]float64{}
		for i := range got {
			got[i] = [4]float64{share(i, 4, 12), share(i, 12, 13), share(i, 13, 18), share(i, healed, 29)}
		}
		t.Logf("seed %d, %d/s, a lease of %v: of the rate, before the partition, in its first lease, in the others, and after it: home %.3f, away %.3f; lost %v", seed, hot.Rate, hot.Lease, got[0], got[1], w.Lost)
		if got[1][2] != 0 {
			t.Errorf("seed %d: %.3f of the rate is granted in the region that was cut off more than a lease ago", seed, got[1][2])
		}
		if got[0][2] < 0.95 {
			t.Errorf("seed %d: the home region has %.3f of the rate, with nobody else", seed, got[0][2])
		}
		if got[1][3] < 0.7*got[1][0] {
			t.Errorf("seed %d: the other region has %.3f of the rate after the partition, and had %.3f before", seed, got[1][3], got[1][0])
		}
	}
}
