package shadow

import (
	"slices"
	"time"

	"github.com/dipwell/dipwell/store"
)

// maxHolds bounds the holds that are remembered, about 300 bytes each. They are in two
// generations of half of that; when the younger one is full, the older one is dropped.
const maxHolds = 1 << 16

// A hold was allowed although the inner store does not have it.
type hold struct {
	ops     []store.Op
	expires int64 // µs on this machine's clock
	settled bool
	costs   []int64 // what it was settled to
}

// remember keeps the hold that a group was allowed to make.
func (s *Store) remember(g *store.Group) {
	if g.Hold == nil {
		return
	}
	h := &hold{ops: slices.Clone(g.Ops), expires: time.Now().UnixMicro() + g.Hold.TTL}
	g.Hold.Expires, g.Hold.Repeated = h.expires, false
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.young) >= maxHolds/2 {
		s.young, s.aged = map[string]*hold{}, s.young
	}
	s.young[g.Hold.ID] = h
}

// settle answers a group that settles or extends a hold that the inner store does not
// have. If the hold is not remembered, the group keeps its error.
func (s *Store) settle(g *store.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.young[g.Hold.ID]
	if h == nil {
		h = s.aged[g.Hold.ID]
	}
	if h == nil {
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
