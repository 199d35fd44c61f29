package stack

import (
	"slices"
	"time"

	"github.com/dipwell/dipwell/store"
)

// maxHolds bounds the holds that are remembered, about 300 bytes each. Ended ones are
// forgotten first.
const maxHolds = 1 << 16

// A hold was allowed although the inner store does not have it.
type hold struct {
	ops     []store.Op
	expires int64 // µs on this machine's clock
	settled bool
	costs   []int64 // what it was settled to
}

// live reports whether a hold was neither settled nor has expired.
func live(_ string, h *hold) bool { return !h.settled && h.expires > time.Now().UnixMicro() }

// remember keeps the hold that a group was allowed to make.
func (s *shadowStore) remember(g *store.Group) {
	if g.Hold == nil {
		return
	}
	h := &hold{ops: slices.Clone(g.Ops), expires: time.Now().UnixMicro() + g.Hold.TTL}
	g.Hold.Expires, g.Hold.Repeated = h.expires, false
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds.Put(g.Hold.ID, h)
}

// settle answers a group that settles or extends a hold that the inner store does not
// have. If the hold is not remembered, the group keeps its error.
func (s *shadowStore) settle(g *store.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.holds.Get(g.Hold.ID)
	if !ok {
		return
	}
	again := h.settled && slices.Equal(h.costs, g.Hold.Costs)
	switch {
	case g.Hold.Verb == store.ExtendHold && !h.settled:
		h.expires = time.Now().UnixMicro() + g.Hold.TTL
	case g.Hold.Verb == store.SettleHold && (again || !h.settled):
		h.settled, h.costs = true, slices.Clone(g.Hold.Costs)
	default:
		g.Err = store.ErrHoldConflict
		return
	}
	g.Err, g.Allowed, g.Reserved, g.Ops = nil, true, false, slices.Clone(h.ops)
	g.Hold.Expires, g.Hold.Repeated = h.expires, again
}
