package main

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Some histories have further kinds of limits and calls:
//
//   - the concurrency limit "slots", in half of them with the parent "room";
//   - calls that name a floor;
//   - holds of the leased limit "hot", and floors of its calls;
//   - the sliding window "slide";
//   - the limit "login", which has a block;
//   - the window "first", which begins with a call.
//
// The kinds are chosen by the seed itself, not by numbers drawn from it, so that the
// rest of a history does not depend on them.
type kinds struct {
	counted, floors, heldHot, slid, blocked, first bool
}

func (h *history) drawKinds() {
	n := h.seed
	h.kinds = kinds{
		counted: n/3%4 == 1,
		floors:  n/5%3 == 1,
		slid:    n/7%3 == 1,
		blocked: n/11%4 == 1,
		first:   n/13%4 == 2,
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
	if h.slid {
		h.limits = append(h.limits, store.Limit{Name: "slide", Algorithm: store.SlidingWindow, Rate: int64(2 + h.seed%30), Period: time.Duration(50+h.seed%950) * time.Millisecond, Start: "0s"})
	}
	if h.blocked {
		h.limits = append(h.limits, store.Limit{Name: "login", Rate: int64(2 + h.seed%50), Period: time.Second, Burst: int64(3 + h.seed/3%20), Block: time.Duration(20+h.seed%600) * time.Millisecond})
	}
	if h.first {
		rate := int64(2 + h.seed%20)
		h.limits = append(h.limits, store.Limit{Name: "first", Algorithm: store.FixedWindow, Rate: rate, Burst: rate * int64(1+h.seed%2), Period: time.Duration(50+h.seed%950) * time.Millisecond, Start: "first_call"})
	}
}

// extend turns some steps of a history into steps of the further kinds.
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
		} else if h.slid && s.kind == define && pick < 50 {
			s.limit, s.rate = "slide", 1+s.rate%60
		} else if h.blocked && s.limit != "hot" && pick >= 50 && pick < 75 {
			s.limit, s.plan, s.rate = "login", "", 1+s.rate%60
		} else if h.first && s.limit != "hot" && pick >= 75 {
			s.limit, s.plan, s.rate = "first", "", 1+s.rate%30
		}
	case s.kind > holds:
	case s.limit == "hot":
		if h.heldHot && pick < 15 {
			s.kind, s.verb, s.n, s.rest, s.gap = holds, store.VerbTake, 1+s.n/10, 0, 1000+s.gap*10
		}
	case h.blocked && s.limit == "bucket" && pick >= 94: // overrides that lie over others
		s.kind, s.n, s.plan = override, 5+int(more%2), []string{"", "pro", "small"}[more>>1%3]
	case h.counted && (s.kind == holds || pick < 10):
		h.slots(s, pick, more)
	case h.slid && pick < 40, h.first && pick >= 75:
		if s.limit = "slide"; pick >= 75 {
			s.limit = "first"
		}
		s.kind, s.plan, s.both, s.nested = calls, "", false, false
		s.verb = []store.Verb{store.VerbTake, store.VerbTake, store.VerbTakeUpTo, store.VerbCheck}[more%4]
	case h.blocked && pick >= 50 && pick < 75:
		h.login(s, pick, more)
	}
	if h.floors && s.kind <= holds && s.limit != "slide" && (s.limit != "hot" || h.heldHot) && (s.verb == store.VerbTake || s.verb == store.VerbCheck) && more>>8%3 == 0 {
		s.floor = 1 + more>>10%12
	}
}

// slots turns a step into calls of the limit "slots": mostly holds, some together with
// another limit, and some checks and resets.
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

// login turns a step into calls of the limit "login", in some cases together with a
// window. Some of these steps reset a key, or end its override, which is mostly a block.
func (h *history) login(s *step, pick int, more int64) {
	s.limit, s.plan, s.both, s.nested = "login", "", more%4 == 0, false
	if pick == 52 || pick == 53 {
		s.kind, s.n = override, 1
		return
	}
	if s.kind == holds {
		s.verb = store.VerbTake
		return
	}
	s.verb = []store.Verb{store.VerbTake, store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCheck}[more>>2%5]
	s.both = s.both && s.verb != store.VerbTakeUpTo
	if s.key == "b" && pick < 52 {
		s.verb, s.n, s.both, s.patient = store.VerbReset, 1, false, false
	}
}

func (s *step) second() string {
	if s.nested && s.limit == "slots" {
		return "room"
	}
	return "window"
}

func (n *node) counts(limit string) bool { return n.bounds[limit].counts }

// checkHeld checks, when a hold of a concurrency limit was allowed, that no more is held
// now than the definition that allowed it says. checkHeld does not look at the row.
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
// are live.
func (l link) holds(_ context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	c := l.c
	w, t, f := c.p.w, c.p.w.task, &c.p.w.faults
	lost := c.cut > w.now || happens(t.rng, f.lost+f.lostAnswers)
	c.p.later(t, f.delay(t.rng, c.usual))
	if lost || c.node.stall > w.now {
		c.p.later(t, patience)
		return nil, errLate
	}
	t.looked = w.now
	records, _ := c.node.table.Records(d.Name, key)
	list := store.KeyHolds(records, c.node.time())
	c.p.later(t, f.delay(t.rng, c.usual))
	return list, nil
}
