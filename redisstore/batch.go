package redisstore

import (
	"context"
	"sync"

	"github.com/dipwell/dipwell/store"
)

var merges = sync.Pool{New: func() any { return new(store.Merge) }}

// many decides a batch in one pipeline: groups of plain buckets many a script,
// however many callers a row has; the rest a script each.
func (s *Store) many(ctx context.Context, b *store.Batch) {
	m := merges.Get().(*store.Merge)
	defer merges.Put(m)
	m.Arrange(b)
	p := pipeline{s: s, ctx: ctx}
	for i := range m.Rows {
		p.row(&m.Rows[i])
	}
	for _, g := range m.Whole {
		p.group(g)
	}
	for _, q := range p.open {
		p.send(q)
	}
	p.run()
	again := pipeline{s: s, ctx: ctx}
	for _, g := range p.rest {
		again.whole(g, true)
	}
	again.run()
	for _, g := range append(append(p.alone, again.rest...), again.alone...) {
		g.Err = s.group(ctx, g)
	}
}

// pipeline gathers the calls of a batch, what their answers mean, and the
// groups that are asked by themselves afterwards.
type pipeline struct {
	s      *Store
	ctx    context.Context
	calls  []call
	settle []func(call, error)
	open   map[uint16]*set // that take more rows and groups, by their slot
	last   *entry          // of the row before
	rest   []*store.Group  // that set.lua left alone, and whose rows may have records
	alone  []*store.Group  // that need more than one call
}

func (p *pipeline) run() {
	if len(p.calls) == 0 {
		return
	}
	errs := p.s.runMany(p.ctx, p.calls)
	for i, settle := range p.settle {
		settle(p.calls[i], errs[i])
	}
}

// row adds all calls about a row.
func (p *pipeline) row(row *store.Row) {
	if p.last == nil || p.last.def.Name != row.Limit {
		var known [1]*entry
		if err := p.s.cat.resolve(p.ctx, row.Groups[0], known[:]); err != nil {
			fail(row.Groups, err)
			return
		}
		p.last = known[0]
	}
	e, plain := p.last, true
	for _, g := range row.Groups {
		op := &g.Ops[0]
		op.Def = e.def
		plain = plain && e.settable(op, true)
	}
	if !plain {
		for _, g := range row.Groups {
			p.whole(g, len(row.Groups) > 1) // in their order, also where the row has records
		}
		return
	}
	name := e.row(row.Key)
	for groups := row.Groups; ; {
		n := min(len(groups), maxCosts)
		q := p.set(name, 1, n, e)
		q.run(groups[:n], q.add(e, &groups[0].Ops[0], name))
		if groups = groups[n:]; len(groups) == 0 {
			return
		}
		p.close(q, name) // a call must not name a row twice
	}
}

// group adds a group of several ops, or a cancellation.
func (p *pipeline) group(g *store.Group) {
	var known [store.MaxTakes]*entry
	if g.Err = p.s.cat.resolve(p.ctx, g, known[:]); g.Err != nil {
		return
	}
	if !settable(g, known[:]) {
		p.whole(g, false)
		return
	}
	if g.Err = p.s.names.oneSlot(g, known[:]); g.Err == nil {
		n := len(g.Ops)
		p.set(known[0].row(g.Ops[0].Key), n, n, known[:n]...).group(g, known[:n])
	}
}

func fail(groups []*store.Group, err error) {
	for _, g := range groups {
		g.Err = err
	}
}

// set returns the open set of a row's slot, which has room for so many rows and
// costs, and knows no other version of the limits.
func (p *pipeline) set(row string, rows, costs int, known ...*entry) *set {
	at := p.slot(row)
	q := p.open[at]
	if q != nil && (!q.fits(rows, costs) || !q.agrees(known)) {
		p.close(q, row)
		q = nil
	}
	if q == nil {
		if p.open == nil {
			p.open = map[uint16]*set{}
		}
		q = newSet(p.s)
		p.open[at] = q
	}
	return q
}

// close sends the open set of a row's slot.
func (p *pipeline) close(q *set, row string) {
	p.send(q)
	delete(p.open, p.slot(row))
}

// slot is that of a row, and the same of all where there are none.
func (p *pipeline) slot(row string) uint16 {
	if p.s.names.cluster {
		return slot(row)
	}
	return 0
}

// send makes the call of a set.
func (p *pipeline) send(q *set) {
	p.add(q.call(p.ctx), func(c call, err error) {
		defer q.free()
		switch {
		case len(q.groups) > 1 && replied(err, "OOM "): // some of them may need no memory
			p.rest = append(p.rest, q.groups...)
			return
		case len(q.rows) > 1 && replied(err, "TRYAGAIN "): // their slot is moving, and some of them have gone ahead
			p.alone = append(p.alone, q.groups...)
			return
		}
		var rest []*store.Group
		if err == nil {
			rest, err = q.settle(c.words())
		}
		if err != nil {
			fail(q.groups, err)
		}
		p.rest = append(p.rest, rest...)
	})
}

func (p *pipeline) add(c call, settle func(call, error)) {
	p.calls, p.settle = append(p.calls, c), append(p.settle, settle)
}

// whole adds a group that is decided by decide.lua, lists says whether its rows
// may have records. One that needs more than one call is asked afterwards.
func (p *pipeline) whole(g *store.Group, lists bool) {
	if g.Cancel || p.s.names.cluster && mayReserve(g) {
		p.alone = append(p.alone, g)
		return
	}
	var known [store.MaxTakes]*entry
	if g.Err = p.s.cat.resolve(p.ctx, g, known[:]); g.Err != nil {
		return
	}
	d, err := p.s.newDecision(g, known[:len(g.Ops)], p.s.guess(), nil, lists)
	if err != nil {
		g.Err = err
		return
	}
	p.add(d.call(p.ctx), func(c call, err error) {
		if g.Err = err; err != nil {
			return
		}
		done, err := d.settle(c.ints())
		switch g.Err = err; {
		case done:
		case d.lists && !lists:
			p.rest = append(p.rest, g)
		default:
			p.alone = append(p.alone, g)
		}
	})
}
