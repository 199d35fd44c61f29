package main

import (
	"slices"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// TestEqualShares checks that processes that ask for the same, in all for one and a half
// times the rate of a leased limit, get the same, whatever the time to the store and
// whether the limit has debt. Their calls are not quite as far apart, or else the same
// process would be the first each time.
func TestEqualShares(t *testing.T) {
	leased := int64(0)
	for seed, n := uint64(0), 0; n < 8; seed++ {
		h := newHistory(seed, 0, true)
		if !h.leased {
			continue
		}
		hot := h.limits[3]
		gap := 4e6 * 2 / (3 * hot.Rate)
		calls := int(150 * hot.Lease.Microseconds() / gap)
		if calls > 25_000 { // takes minutes
			continue
		}
		n++
		h.processes, h.guarded, h.regional = 4, false, false
		h.drifts = make([]int64, h.processes+1)
		for p := range h.processes {
			h.steps = append(h.steps, step{id: p, at: int64(37 * p), process: p, limit: hot.Name, key: "a", verb: store.VerbTake, cost: 1, n: calls, gap: gap + int64(7*p)})
		}
		w := h.end(nil)
		if leased += w.Leased; w.Violation != nil {
			t.Errorf("seed %d, %v: %v", seed, hot, w.Violation)
			continue
		}
		shares, all := make([]int64, len(w.procs)), int64(0)
		for _, g := range w.nodes[0].books[at{hot.Name, "a"}].uses {
			shares[g.process] += g.tokens
			all += g.tokens
		}
		if slices.Min(shares)*int64(len(shares))*10 < all*9 { // nine tenths of the mean
			t.Errorf("seed %d, %v: equal processes got %v", seed, hot, shares)
		}
	}
	if leased == 0 {
		t.Error("no token is from a lease")
	}
}
