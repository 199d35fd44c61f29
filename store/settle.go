package store

import (
	"fmt"
	"math/bits"
	"slices"
)

// endIn settles or extends a hold. endIn sets the ops of the group: one for each part
// of the hold whose limit was not dropped.
func (g *Group) endIn(t Table, limits *Registry, now int64) error {
	c := g.Hold
	g.Allowed, g.Reserved, c.Repeated = false, false, false
	if err := c.Check(nil); err != nil {
		return err
	}
	h, err := t.Hold(c.ID)
	if err != nil {
		return err
	}
	if len(h.Parts) == 0 || h.Forget <= now {
		return ErrUnknownHold
	}
	g.Ops = slices.Grow(g.Ops[:0], len(h.Parts))[:len(h.Parts)]
	clear(g.Ops)
	defs := 0
	defer func() { // even after an error
		if defs < len(g.Ops) {
			g.Ops = slices.DeleteFunc(g.Ops, func(op Op) bool { return op.Def == nil })
		}
	}()
	r := roomFor(len(h.Parts))
	defer r.end()
	entries := r.entries
	for i := range h.Parts {
		p := &h.Parts[i]
		base := limits.Lookup(p.Limit)
		g.Ops[i] = Op{Def: base, Key: p.Key, Cost: p.Cost, Takes: p.Takes}
		if base == nil { // the limit was dropped
			h.reset(i)
			continue
		}
		defs++
		if v := base.WithPlan(p.Plan); v != nil {
			g.Ops[i].Def = v
		}
		if err := entries[i].read(t, base, p.Key, now); err != nil {
			return err
		}
		entries[i].noteReset(&h, i, c.ID)
	}
	if c.Verb == ExtendHold {
		err = g.extend(t, &h, entries, now)
	} else {
		err = g.settle(t, &h, entries, now)
	}
	if err != nil {
		return err
	}
	for i := range entries {
		if entries[i].changed {
			if err := entries[i].write(t, now); err != nil {
				return err
			}
		}
	}
	if g.Allowed, c.Expires = true, h.Expires; c.Repeated {
		return nil
	}
	return t.SetHold(c.ID, h)
}

// reset notes that a Reset of the key ended part i, in a copy of Parts.
func (h *Hold) reset(i int) {
	h.Parts = slices.Clone(h.Parts)
	h.Parts[i].Reset = true
}

// settle settles the parts of a hold, and answers the ops.
func (g *Group) settle(t Table, h *Hold, entries []entry, now int64) error {
	var room [4]int64 // enough room for the parts of most holds
	costs, err := g.Hold.costsOf(room[:0], h)
	if err != nil {
		return err
	}
	g.Hold.Repeated = h.Settled
	over, least := -1, int64(0) // over: the part that cannot cost so much; least: the most that it can cost, for a take the least of its levels
	for i := range g.Ops {
		op, p := &g.Ops[i], &h.Parts[i]
		if op.Def == nil {
			continue
		}
		op.Cost = costs[i]
		if !h.Settled && !p.Reset && !p.Free {
			most, err := entries[i].settle(t, op.Def, p, g.Hold.ID, costs[i], now)
			if err != nil {
				return err
			}
			if most < costs[i] && (over < 0 || p.Takes == h.Parts[over].Takes && most < least) {
				over, least = i, most
			}
		}
		granted := costs[i]
		if p.Reset || p.Free {
			granted = 0
		}
		if err := op.present(entries[i].row, entries[i].records, granted, now); err != nil {
			return err
		}
	}
	if over >= 0 {
		p := &h.Parts[over]
		return badField(costField(h.takes(), bits.TrailingZeros16(p.Takes)), "%d is too much for limit %s now; at most %d", costs[over], p.Limit, least)
	}
	if !h.Settled {
		h.Settled, h.Costs, h.Forget = true, slices.Clone(g.Hold.Costs), h.forget(now)
	}
	return nil
}

// CostsOf returns the cost of each part of a hold that is being settled. The error is a
// *FieldError, or ErrHoldConflict if the hold was settled to other costs.
func (c *HoldCall) CostsOf(h *Hold) ([]int64, error) {
	if err := c.Check(nil); err != nil {
		return nil, err
	}
	return c.costsOf(nil, h)
}

// costsOf is CostsOf appending to costs, which is empty.
func (c *HoldCall) costsOf(costs []int64, h *Hold) ([]int64, error) {
	costs, err := h.costsOf(costs, c.Costs)
	if err == nil && h.Settled && !h.settledTo(c.Costs, costs) {
		return nil, ErrHoldConflict
	}
	return costs, err
}

// settledTo reports whether a hold was settled to the given costs of its takes, which are
// equal to costs of its parts. A hold does not keep the costs of its single takes, so nil
// equals all costs with the same sums.
func (h *Hold) settledTo(given, costs []int64) bool {
	if given != nil && h.Costs != nil {
		return slices.Equal(given, h.Costs)
	}
	before, err := h.costsOf(nil, h.Costs)
	return err == nil && slices.Equal(costs, before)
}

// costsOf appends the cost of each part if a hold is settled to the given costs of its takes.
func (h *Hold) costsOf(costs, given []int64) ([]int64, error) {
	n := h.takes()
	if given != nil && len(given) != n {
		return nil, badField("costs", "there are %d, and the hold has %d", len(given), n)
	}
	for i := range h.Parts {
		p := &h.Parts[i]
		sum := p.Cost
		if given != nil {
			sum = 0
		}
		for j, cost := range given {
			switch {
			case p.Takes&(1<<j) == 0:
			case p.Cost == 0 && cost > 0:
				return nil, badField(costField(n, j), "%d is too much: nothing of limit %s was held, so that it costs 0", cost, p.Limit)
			default:
				sum = min(sum+cost, MaxInt)
			}
		}
		costs = append(costs, sum)
	}
	return costs, nil
}

// costField returns the name of the cost of take i, in a call of n takes.
func costField(n, i int) string {
	if n == 1 {
		return "cost"
	}
	return fmt.Sprintf("costs[%d]", i)
}

// settle settles part p of hold h: it gives back what the part did not cost, or charges
// what it cost beyond what was held. def is the definition that the Hold call named. If
// the part cannot cost so much, most is the most that it can cost, and less than cost.
func (e *entry) settle(t Table, def *Definition, p *Part, id string, cost, now int64) (most int64, err error) {
	i, err := e.find(t, p, id, now)
	if err != nil {
		return 0, err
	}
	counted, back := p.Cost, max(p.Cost-cost, 0) // counted: tokens still used in the row; back: how many of them to give back
	if i < 0 && !p.Keep {                        // the tokens came back when the hold expired
		counted = 0
	}
	if i >= 0 {
		e.giveBack(i, now, back, p.Cost)
	}
	if cost <= counted || e.own(now).Algorithm == Concurrency {
		return MaxInt, nil
	}
	op := Op{Def: def, Key: p.Key, Verb: VerbCharge, Cost: cost - counted}
	if counted == 0 { // the amount that was held may always be charged
		op.held = p.Cost
	}
	row, write, err := op.Step(now, e.row, false)
	switch {
	case err != nil:
		return 0, err
	case !op.Allowed:
		return counted + max(op.Def.MostCharge(), op.held), nil
	case write:
		e.row, e.changed = row, true
	}
	return MaxInt, nil
}

// extend moves the expiry of a hold, and answers the ops.
func (g *Group) extend(t Table, h *Hold, entries []entry, now int64) error {
	if !h.live(now) {
		return ErrHoldConflict
	}
	h.Expires = now + g.Hold.TTL
	h.Forget = h.forget(h.Expires)
	for i := range g.Ops {
		op, p, e := &g.Ops[i], &h.Parts[i], &entries[i]
		if op.Def == nil {
			continue
		}
		if err := op.Def.checkTTL(g.Hold.TTL); err != nil {
			return err
		}
		granted := p.Cost
		if p.Reset || p.Free {
			granted = 0
		} else {
			j, err := e.find(t, p, g.Hold.ID, now)
			if err != nil {
				return err
			}
			if j < 0 { // the record was given back before the store's clock stepped back
				return ErrHoldConflict
			}
			r := &e.records[j]
			r.Expires, r.Ends, e.changed = h.Expires, h.recordEnds(p.Keep), true
			if l := e.row.Lows; l != nil && r.Until() < l.Due {
				earlier := l.clone()
				earlier.Due, e.row.Lows = r.Until(), earlier
			}
		}
		if err := op.present(e.row, e.records, granted, now); err != nil {
			return err
		}
	}
	return nil
}

// endHolds marks parts of holds whose records a reset of their key ended, so that these
// parts neither give back nor charge.
func endHolds(t Table, limit, key string, rs []Record, now int64) error {
	for _, r := range rs {
		if r.Hold == "" || r.Rest {
			continue
		}
		h, err := t.Hold(r.Hold)
		if err != nil {
			return err
		}
		for i := range h.Parts {
			if p := &h.Parts[i]; p.Limit == limit && p.Key == key && p.names(r, r.Hold) {
				h.reset(i)
				if !h.live(now) {
					h.Forget = min(h.Forget, h.forget(now))
				}
				if err := t.SetHold(r.Hold, h); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
