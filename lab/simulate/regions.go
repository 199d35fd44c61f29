package main

import (
	"cmp"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// In a history with two regions, each region has a store of its own. The limit "hot" is
// in the store of the home region, number 0, and counts worldwide; processes lease it.
// All other limits are in both stores. A call of "hot" first takes from the limit
// "customer" of its own region, as in examples/regions.

// process makes the process with a number, in the region that follows from the number.
func (w *world) process(i int) *process {
	p := &process{w: w, id: i, drift: w.drifts[i+1], origin: int64(i+1) * 1e12}
	region := i % len(w.nodes)
	p.home = &client{p: p, node: w.nodes[0], usual: w.faults.usual}
	if p.own = p.home; w.regional {
		p.own = &client{p: p, node: w.nodes[region], usual: w.faults.usual}
	}
	if !w.regional || region > 0 {
		p.home.usual += w.way
	}
	p.begin()
	return p
}

// place sets which store a step affects: that of its process's region, or that of the
// home region.
func (s *step) place() {
	s.region = s.process % 2
	switch s.kind {
	case cut:
		s.wide = s.times == 2
	case stall, clockBack, sweep:
		s.region *= s.times - 1
	}
	s.where = []string{"store of region 0", "store of region 1"}[s.region]
}

// cutOff separates a process from the store of its region, or a region from the home
// region.
func (w *world) cutOff(s *step) {
	for _, p := range w.procs {
		for _, c := range p.clients() {
			if s.wide && p.own.node.id > 0 && c == p.home || !s.wide && p.id == s.process && c.node.id == s.region {
				c.cut = max(c.cut, w.now+s.span)
			}
		}
	}
}

// takeBoth takes from the limit of the process's region and then from the worldwide one.
// If the second refuses or does not answer, it gives back what the first granted.
func (p *process) takeBoth(s *step, t *task) {
	if !p.take(s, p.own, "customer", store.VerbTake) || p.take(s, p.home, "hot", store.VerbTake) {
		return
	}
	t.once = true
	p.take(s, p.own, "customer", store.VerbRefund)
}

// take calls one store, and reports whether the call was granted.
func (p *process) take(s *step, c *client, limit string, verb store.Verb) bool {
	var b store.Batch
	g, op := b.Single()
	*op = store.Op{Def: c.defs[limit], Key: s.key, Verb: verb, Cost: s.cost}
	return c.ask(s, &b) == nil && g.Allowed
}

// These words say what became of tokens of the limit "customer" that a caller heard of.
const (
	kept   = "kept" // the limit "hot" gave tokens as well, so they were used
	back   = "given back"
	unsure = "give-back" // a give-back was sent; whether it arrived is not known
)

// follow records what became of a caller's tokens of the limit "customer".
func (t *task) follow(g *store.Group, err error) {
	switch op := &g.Ops[0]; {
	case op.Verb == store.VerbRefund && t.mine.end == "":
		if t.mine.end = back; err != nil {
			t.mine.end = unsure
		}
	case err != nil || !g.Allowed:
	case op.Def.Name == "hot":
		t.mine.end = kept
	case op.Verb == store.VerbTake:
		t.mine = t.got[0]
	}
}

// refunded records that a process gives back tokens of the limit "customer".
func (n *node) refunded(b *book, t *task, op *store.Op) {
	n.refunds += op.Cost
	b.flow = append(b.flow, &grant{at: max(op.TS, n.time()) + n.back, tokens: -op.Cost})
	n.late = max(n.late, n.w.now-t.mine.made)
}

// checkCustomers checks the limit "customer". Between any two instants, what the limit
// granted, less what was given back, is at most what it promises. Tokens that callers kept are
// at most that, plus what comes back by time in the longest time from a take to its return.
// Each token that a caller heard of was used, was given back once, or was lost by a fault.
func (n *node) checkCustomers() {
	var least, most int64
	for _, k := range n.keys() {
		if k.limit != "customer" {
			continue
		}
		grants := slices.Clone(n.books[k].grants)
		for _, g := range grants {
			switch crashed := g.lives < n.w.procs[g.process].lives; {
			case g.fate != heard || g.end == kept:
			case g.end == back:
				least += g.taken
				most += g.taken
			case g.end == unsure:
				most += g.taken
				n.w.Lost[unsure] += g.taken
			case crashed: // the tokens may have been given back before the crash
				most += g.taken
				n.w.Lost["crash"] += g.taken
			default:
				n.w.fail("conservation", "%s %q: of %d tokens, taken at %.6f s, a caller heard; it neither used them nor gave them back", k.limit, k.key, g.taken, float64(g.at-epoch)/1e6)
			}
		}
		n.compare(k, n.bounds[k.limit], &book{}, inOrder(n.books[k].flow))
		b := *n.bounds[k.limit]
		b.late = n.late
		n.compare(k, &b, &book{}, inOrder(slices.DeleteFunc(grants, func(g *grant) bool { return g.fate == heard && g.end != kept })))
	}
	if n.refunds < least || n.refunds > most {
		n.w.fail("conservation", "customers gave back %d to %d tokens, but the %v counted %d", least, most, n, n.refunds)
	}
}

// inOrder sorts grants by their times.
func inOrder(grants []*grant) []*grant {
	slices.SortStableFunc(grants, func(a, b *grant) int { return cmp.Compare(a.at, b.at) })
	return grants
}
