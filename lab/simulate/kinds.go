package main

import (
	"context"
	"math/rand/v2"

	"github.com/dipwell/dipwell/store"
)

// Some histories have further kinds of limits and calls:
//
//   - the concurrency limit "slots", in half of them with the parent "room";
//   - calls that name a floor;
//   - holds of the leased limit "hot", and floors of its calls.
//
// The seed says which, and not the numbers that are drawn from it, so that the rest of a
// history does not depend on them.
type kinds struct {
	counted, floors, heldHot bool
}

func (h *history) drawKinds() {
	n := h.seed
	h.kinds = kinds{
		counted: n/3%4 == 1,
		floors:  n/5%3 == 1,
		heldHot: h.leased && !h.regional && n/2%3 == 0,
	}
}

// addLimits adds the limits of the further kinds after those that are drawn.
func (h *history) addLimits() {
	if h.counted {
		slots := store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: int64(2 + h.seed%7)}
		room := store.Limit{Name: "room", Algorithm: store.Concurrency, Burst: slots.Burst + int64(h.seed/2%4) - 1}
		if h.seed%2 == 0 {
			slots.Parent = room.Name
		}
		h.limits = append(h.limits, slots, room)
	}
}

// extend turns some steps into those of the further kinds.
func (h *history) extend(s *step) {
	if h.kinds == (kinds{}) {
		return
	}
	r := rand.New(rand.NewPCG(h.seed, 1<<40|uint64(s.id)))
	pick, more := r.IntN(100), r.Int64N(1<<20)
	switch {
	case s.kind == define || s.kind == override:
		if h.counted && pick < 30 {
			s.limit, s.plan, s.cost = "slots", "", 1+more%8
		}
	case s.kind > holds:
	case s.limit == "hot":
		if h.heldHot && pick < 15 {
			s.kind, s.verb, s.n, s.rest, s.gap = holds, store.VerbTake, 1+s.n/10, 0, 1000+s.gap*10
		}
	case h.counted && (s.kind == holds || pick < 10):
		h.slots(s, pick, more)
	}
	if h.floors && s.kind <= holds && (s.limit != "hot" || h.heldHot) && (s.verb == store.VerbTake || s.verb == store.VerbCheck) && more>>8%3 == 0 {
		s.floor = 1 + more>>10%12
	}
}

// slots makes a step one of the limit "slots": mostly holds, some together with another
// limit, and some checks and resets.
func (h *history) slots(s *step, pick int, more int64) {
	s.kind, s.limit, s.verb, s.plan, s.patient, s.rest = holds, "slots", store.VerbTake, "", false, 0
	s.cost, s.both = 1+s.cost%3, more%4 == 0
	s.nested = h.seed%2 == 0
	switch pick {
	case 0:
		s.kind, s.verb, s.n, s.both, s.nested = calls, store.VerbReset, 1, false, false
	case 1:
		s.kind, s.verb = calls, store.VerbCheck
	}
	s.both = s.both || s.nested
}

// second returns the limit that a step with two takes from as well.
func (s *step) second() string {
	if s.nested && s.limit == "slots" {
		return "room"
	}
	return "window"
}

// counts reports whether a limit counts what is held.
func (n *node) counts(limit string) bool { return n.bounds[limit].counts }

// checkHeld checks that no more of a concurrency limit are held at this instant than the
// definition that has just allowed a hold says. It does not look at the row.
func (n *node) checkHeld(op *store.Op, l *level) {
	if !n.counts(op.Def.Name) || op.Def.Mode == store.Unlimited {
		return
	}
	var held int64
	for _, g := range l.held {
		held += g.tokens
	}
	if held > op.Def.Burst {
		n.w.fail("held", "%s %q: %d are held at %.6f s; at most %d may be", op.Def.Name, op.Key, held, float64(n.time()-epoch)/1e6, op.Def.Burst)
	}
}

// holds is the ability Holds: it asks the store, across the network, which holds of a key
// live.
func (l link) holds(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	c := l.c
	w, t, f := c.p.w, c.p.w.task, &c.p.w.faults
	lost := c.cut > w.now || f.happens(t.rng, f.lost+f.lostAnswers)
	c.p.later(t, f.delay(t.rng, c.usual))
	if lost || c.node.stall > w.now {
		c.p.later(t, patience)
		return nil, errLate
	}
	t.looked = w.now
	row, _ := c.node.table.Row(d.Name, key)
	records, _ := c.node.table.Records(d.Name, key)
	list := d.Base().KeyHolds(row, records, c.node.time())
	c.p.later(t, f.delay(t.rng, c.usual))
	return list, nil
}
