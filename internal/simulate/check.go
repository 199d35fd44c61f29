package simulate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// A Violation is a check that failed.
type Violation struct {
	Check string // promise, retry, row, refusal, stuck, error, sweep, …
	At    int64  // true time in µs since the history began
	What  string
}

func (v *Violation) Error() string { return v.Check + ": " + v.What }

// A grant is tokens that a caller may use from a time on. What a hold or a reservation
// gave back is taken from it.
//
// After the store's clock was set back, the same time comes again, and so do the
// tokens of a key that has no row. So at counts how far the clock has moved forward;
// but of windows it is the time, and grants are compared only between two such steps.
type grant struct {
	at, tokens int64
	back       int   // how often the clock was set back before
	expires    int64 // of a hold that was not settled, on the store's clock
}

// A book is what is known of a key.
type book struct {
	grants   []grant
	made     map[string]int // index of the grant of a hold or a reservation
	apart    bool           // it was charged, refunded or reset: the promise does not hold
	reserved int64          // tokens: the largest reservation that had to wait
	loosened int64          // true time at which something was last given back, or the clock or the limit changed
	by       *process       // that gave it back; nil: another reason
}

func (n *node) book(limit, key string) *book {
	k := at{limit, key}
	b := n.books[k]
	if b == nil {
		b = &book{made: map[string]int{}, loosened: math.MinInt64}
		n.books[k] = b
	}
	return b
}

// loosen remembers that a refusal of any key may no longer be right.
func (n *node) loosen() {
	for _, b := range n.books {
		b.loosen(n.w.now, nil)
	}
}

// loosen remembers that process by gave something back, or another if by is nil.
func (b *book) loosen(now int64, by *process) {
	if b.loosened < now-late {
		b.by = by
	} else if b.by != by {
		b.by = nil
	}
	b.loosened = now
}

// checkDecision looks at a group that was decided. before has the rows of its ops.
func (n *node) checkDecision(g *store.Group, m *message, before []store.State, asked []*store.Definition) {
	if g.Cancel {
		n.cancelled(g, m)
		return
	}
	if g.Settles() {
		n.settled(g, m)
		return
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		b := n.book(op.Def.Name, op.Key)
		after, _, _ := n.table.Row(op.Def.Name, op.Key)
		n.checkRow(op, &before[i], &after, g)
		if before[i].Override != nil || before[i].Version != 0 && before[i].Version != op.Def.Number {
			b.loosen(n.w.now, m.p) // the row came back at another rate until now
		}
		switch {
		case op.Verb >= store.VerbCharge:
			b.apart = true
			b.loosen(n.w.now, m.p)
		case !g.Allowed:
			n.checkRetry(op, asked[i], g)
		case op.Took() > 0 && (g.Hold == nil || !g.Hold.Repeated):
			m.took += op.Granted
			n.w.taken += op.Granted
			if g.Hold != nil {
				b.made[g.Hold.ID] = len(b.grants)
			} else if g.Reserved {
				b.made[g.ID.String()] = len(b.grants)
			}
			if op.Delay > 0 {
				b.reserved = max(b.reserved, op.Granted)
			}
			gr := grant{at: max(op.TS, n.time()+op.Delay), tokens: op.Granted, back: n.backs}
			if !n.w.bounds[op.Def.Name].window {
				gr.at += n.back
			}
			if g.Hold != nil {
				gr.expires = g.Hold.Expires
			}
			b.grants = append(b.grants, gr)
			n.w.tracef("store at %.6f s: %d of %s %q for process %d, from %.6f s on", float64(n.time()-epoch)/1e6, gr.tokens, op.Def.Name, op.Key, m.p.id, float64(gr.at-epoch)/1e6)
		}
	}
}

func (n *node) cancelled(g *store.Group, m *message) {
	for k, b := range n.books {
		if i, ok := b.made[g.ID.String()]; ok {
			b.grants[i].tokens = 0
			b.loosen(n.w.now, m.p)
			n.w.tracef("store: %s %q: a reservation is cancelled", k.limit, k.key)
		}
	}
}

func (n *node) settled(g *store.Group, m *message) {
	for i := range g.Ops {
		op := &g.Ops[i]
		b := n.book(op.Def.Name, op.Key)
		b.loosen(n.w.now, m.p)
		j, ok := b.made[g.Hold.ID]
		if !ok || g.Hold.Verb != store.SettleHold || g.Hold.Repeated {
			continue
		}
		held := &b.grants[j]
		cost := g.Hold.Costs[0]
		if held.expires <= n.time() { // it gave everything back then, and the cost is a Charge now
			held.tokens = 0
		}
		b.apart = b.apart || cost > held.tokens || held.back != n.backs // it may have expired before the clock was set back
		held.tokens, held.expires = min(held.tokens, cost), 0
	}
}

// checkRow compares a row with what a plain verb makes of the row before.
func (n *node) checkRow(op *store.Op, before, after *store.State, g *store.Group) {
	r := &op.Def.Rule
	if before.Lows != nil || after.Lows != nil || before.Version != 0 && before.Version != op.Def.Number || op.Def.Plan != "" || g.Hold != nil || op.Def.Override != nil || before.Override != nil {
		return
	}
	t := max(n.time(), before.TS)
	used := before.Used
	if used > 0 {
		used = max(0, used-(floor(t-r.Origin, r.Every)-floor(before.TS-r.Origin, r.Every))*r.Add)
	}
	switch {
	case op.Verb == store.VerbReset && g.Allowed:
		used = 0
	case op.Verb == store.VerbRefund && g.Allowed:
		used = max(0, used-op.Cost*r.Unit)
	case g.Allowed:
		used += op.Granted * r.Unit
	}
	now := after.Used
	if now > 0 {
		now = max(0, now-(floor(t-r.Origin, r.Every)-floor(after.TS-r.Origin, r.Every))*r.Add)
	}
	if now != used {
		n.w.fail("row", "%s %d of %s %q: %d units are in use, not %d", op.Verb, op.Cost, op.Def.Name, op.Key, now, used)
	}
	if g.Allowed && op.Verb < store.VerbCharge && used > r.Cap+r.Debt {
		n.w.fail("row", "%s %d of %s %q: %d units are in use, of at most %d", op.Verb, op.Cost, op.Def.Name, op.Key, used, r.Cap+r.Debt)
	}
}

func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// checkRetry asks again at the time that a refusal named, and 1 µs before.
func (n *node) checkRetry(op *store.Op, asked *store.Definition, g *store.Group) {
	if op.Allowed || op.Never || op.Bound || g.Hold != nil {
		return
	}
	for i, want := range []bool{false, true} {
		later := op.Retry - 1 + int64(i)
		if allowed, err := n.would(op, asked, n.time()+later); err != nil || allowed != want {
			if dbg != nil {
				dbg(n, op, asked)
			}
			n.w.fail("retry", "%s %d of %s %q: refused for %d µs, but %d µs later it is allowed: %v (%v)", op.Verb, op.Cost, op.Def.Name, op.Key, op.Retry, later, allowed, err)
		}
	}
}

var dbg func(n *node, op *store.Op, asked *store.Definition)

// would reports whether an op would be allowed at a time, if nothing happened until
// then.
func (n *node) would(op *store.Op, d *store.Definition, time int64) (bool, error) {
	g := store.Group{Ops: []store.Op{{Def: d, Key: op.Key, Verb: op.Verb, Cost: op.Cost}}}
	n.table.begin()
	defer n.table.rollback()
	err := g.DecideIn(&n.table, &n.reg, time)
	return g.Allowed, err
}

// late is how long a refusal from memory may be wrong, because another process gave
// something back: the age of a refusal, and a round trip that was as slow as can be.
const late = 1_000_000 + patience

// checkRefusal looks whether the store would refuse as well.
func (w *world) checkRefusal(p *process, op *store.Op) {
	n := w.node
	b := n.book(op.Def.Name, op.Key)
	if age := w.now - b.loosened; age <= patience || age <= late && b.by != p {
		return
	}
	if allowed, err := n.would(op, op.Def, n.time()); err == nil && allowed {
		w.fail("refusal", "process %d: %s %d of %s %q is refused by %s; the store would allow it", p.id, op.Verb, op.Cost, op.Def.Name, op.Key, op.Source)
	}
}

// checkPromise compares the grants of each key over all pairs of instants with the
// largest burst and rate that its limit had.
func (w *world) checkPromise() {
	keys := make([]at, 0, len(w.node.books))
	for k := range w.node.books {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	for _, k := range keys {
		b := w.node.books[k]
		if b.apart {
			continue
		}
		bound := w.bounds[k.limit]
		slices.SortStableFunc(b.grants, func(a, b grant) int { return cmp.Compare(a.at, b.at) })
		if !bound.window {
			w.compare(k, bound, b, b.grants)
			continue
		}
		for i := range w.node.backs + 1 {
			w.compare(k, bound, b, slices.DeleteFunc(slices.Clone(b.grants), func(g grant) bool { return g.back != i }))
		}
	}
}

// compare compares grants of a key, in the order of their times, with a bound.
func (w *world) compare(k at, bound *bound, b *book, grants []grant) {
	// granted·period - rate·t at each grant, less the least before it, is at most burst·period.
	var total int64
	least, from := int64(math.MaxInt64), int64(0)
	start := int64(epoch)
	for _, g := range grants {
		if g.tokens == 0 || g.expires != 0 && g.expires <= w.node.time() {
			continue
		}
		earned := bound.rate * (g.at - start)
		scale := bound.period
		if bound.window {
			earned, scale = bound.rate*(floor(g.at, bound.period)-floor(start, bound.period)), 1
		}
		before := earned
		if bound.window && g.at%bound.period == 0 {
			before -= bound.rate // the boundary lies in the interval
		}
		if v := total*scale - before; v < least {
			least, from = v, g.at
		}
		total += g.tokens
		if over := total*scale - earned - least - max(bound.burst, b.reserved)*scale; over > 0 {
			w.fail("promise", "%s %q: from %.6f to %.6f s %d tokens too many were granted (burst %d, %d per %d µs): %v", k.limit, k.key,
				float64(from-epoch)/1e6, float64(g.at-epoch)/1e6, (over+scale-1)/scale, bound.burst, bound.rate, bound.period, between(grants, from, g.at))
			return
		}
	}
}

// between lists the grants of an interval in words.
func between(grants []grant, from, to int64) (list []string) {
	for _, g := range grants {
		if g.at >= from && g.at <= to {
			list = append(list, fmt.Sprintf("%d at %.6f s", g.tokens, float64(g.at-epoch)/1e6))
		}
	}
	return list
}

func compare(a, b at) int {
	return cmp.Or(cmp.Compare(a.limit, b.limit), cmp.Compare(a.key, b.key))
}
