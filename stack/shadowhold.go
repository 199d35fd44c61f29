package stack

import (
	"slices"
	"time"

	"github.com/dipwell/dipwell/store"
)

// maxHolds bounds the holds that are remembered, about 500 bytes each. Holds that
// have ended are forgotten first.
const maxHolds = 1 << 16

// A hold is one that was allowed although the inner store does not have it. Such a hold
// ends like a hold in a store, but takes nothing.
type hold struct {
	store.Hold
	ops []store.Op // the ops as they were answered
}

// live reports whether a hold was neither settled nor has expired.
func live(_ string, h *hold) bool { return !h.Settled && h.Expires > time.Now().UnixMicro() }

// hold returns a hold that was allowed in this process, or nil. s.mu is held.
func (s *shadowStore) hold(id string) *hold {
	if h, ok := s.holds.Get(id); ok && h.Forget > time.Now().UnixMicro() {
		return h
	}
	return nil
}

// makes reports whether a group makes a hold.
func makes(g *store.Group) bool { return g.Hold != nil && g.Hold.Verb == store.MakeHold }

// repeat answers a group that makes a hold with the id of one that was allowed in this
// process.
func (s *shadowStore) repeat(g *store.Group) bool {
	if !makes(g) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hold(g.Hold.ID)
	if h == nil {
		return false
	}
	if !h.MadeBy(g) || !live("", h) {
		g.Err = store.ErrHoldConflict
		return true
	}
	h.answer(g, h.ops)
	g.Hold.Repeated = true
	return true
}

// answer allows a call about a hold.
func (h *hold) answer(g *store.Group, ops []store.Op) {
	g.Err, g.Allowed, g.Reserved, g.Ops = nil, true, false, slices.Clone(ops)
	g.Hold.Expires, g.Hold.Repeated = h.Expires, false
}

// remember keeps the hold that a group was allowed to make, by the id of the call.
func (s *shadowStore) remember(g *store.Group, id string) {
	if !makes(g) {
		return
	}
	g.Hold.ID = id
	h := &hold{g.NewHold(time.Now().UnixMicro()), slices.Clone(g.Ops)}
	h.answer(g, h.ops)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds.Put(id, h)
}

// settle answers a group that settles or extends a hold that the inner store does not
// have. If the hold is not remembered, the group keeps its error.
func (s *shadowStore) settle(g *store.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hold(g.Hold.ID)
	switch {
	case h == nil:
	case g.Hold.Verb == store.ExtendHold:
		h.extend(g)
	default:
		h.settle(g)
	}
}

func (h *hold) extend(g *store.Group) {
	if g.Err = g.Hold.Check(h.ops); g.Err == nil && !live("", h) {
		g.Err = store.ErrHoldConflict
	}
	if g.Err == nil {
		h.Expires = time.Now().UnixMicro() + g.Hold.TTL
		h.Forget = h.Expires + store.ForgetAfter(h.TTL)
		h.answer(g, h.ops)
	}
}

func (h *hold) settle(g *store.Group) {
	costs, err := g.Hold.CostsOf(&h.Hold)
	if g.Err = err; err != nil {
		return
	}
	h.answer(g, h.ops)
	for i := range g.Ops {
		g.Ops[i].Cost = costs[i]
	}
	if g.Hold.Repeated = h.Settled; !h.Settled {
		h.Settled, h.Costs, h.Forget = true, slices.Clone(g.Hold.Costs), time.Now().UnixMicro()+store.ForgetAfter(h.TTL)
	}
}
