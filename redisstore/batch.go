package redisstore

import (
	"context"
	"sync"

	"github.com/dipwell/dipwell/internal/merge"
	"github.com/dipwell/dipwell/store"
)

var merges = sync.Pool{New: func() any { return new(merge.Batch) }}

// decideBatch decides a batch in one pipeline. Groups of plain buckets share
// calls of set.lua or take_many.lua, with any number of callers per row; each
// other group has a call of its own. Groups that a call leaves undecided get a
// second pipeline, or are decided one by one.
func (s *Store) decideBatch(ctx context.Context, b *store.Batch) {
	m := merges.Get().(*merge.Batch)
	defer merges.Put(m)
	m.Arrange(b)
	p := pipeline{s: s, ctx: ctx}
	for i := range m.Rows {
		p.addRow(&m.Rows[i])
	}
	for _, g := range m.Whole {
		p.addGroup(g)
	}
	for _, q := range p.open {
		p.sendSet(q)
	}
	p.run()
	second := pipeline{s: s, ctx: ctx}
	for _, g := range p.withRecords {
		second.addDecide(g, true)
	}
	second.run()
	for _, g := range append(append(p.single, second.withRecords...), second.single...) {
		g.Err = s.group(ctx, g)
	}
}

// A pipeline collects the calls of a batch, the handlers of their replies, and
// the groups that are left over.
type pipeline struct {
	s           *Store
	ctx         context.Context
	calls       []call
	handlers    []func(call, error)
	open        map[uint16]*setCall // calls with room for more rows and groups, by slot
	lastEntry   *entry              // entry of the previous row
	withRecords []*store.Group      // groups skipped by set.lua, whose rows may have records
	single      []*store.Group      // groups that need more than one call
}

func (p *pipeline) run() {
	if len(p.calls) == 0 {
		return
	}
	errs := p.s.runMany(p.ctx, p.calls)
	for i, settle := range p.handlers {
		settle(p.calls[i], errs[i])
	}
}

// addRow adds the calls of a row.
func (p *pipeline) addRow(row *merge.Row) {
	if p.lastEntry == nil || p.lastEntry.def.Name != row.Limit {
		e, err := p.s.limits.named(p.ctx, &row.Groups[0].Ops[0])
		if err != nil {
			failGroups(row.Groups, err)
			return
		}
		p.lastEntry = e
	}
	e, plain := p.lastEntry, true
	for _, g := range row.Groups {
		op := &g.Ops[0]
		op.Def = e.def
		plain = plain && e.canUseSet(op, true) && p.s.limits.overriding(e, op) == nil
	}
	if !plain {
		for _, g := range row.Groups {
			p.addDecide(g, len(row.Groups) > 1) // also if the row has records, to keep the order
		}
		return
	}
	name := e.row(row.Key)
	for groups := row.Groups; ; {
		n := min(len(groups), maxCosts)
		q := p.openSet(name, 1, n, e)
		q.addSingles(groups[:n], q.addRow(e, &groups[0].Ops[0], name))
		if groups = groups[n:]; len(groups) == 0 {
			return
		}
		p.closeSet(q, name) // a script must not be given a row twice
	}
}

// addGroup adds a group of several ops, or a cancellation.
func (p *pipeline) addGroup(g *store.Group) {
	var known [store.MaxTakes]*entry
	if needsGo(g) {
		p.single = append(p.single, g)
		return
	}
	if g.Err = p.s.limits.resolve(p.ctx, g, known[:]); g.Err != nil {
		return
	}
	if !canUseSet(g, known[:]) {
		p.addDecide(g, false)
		return
	}
	if g.Err = p.s.names.oneSlot(g, known[:]); g.Err == nil {
		n := len(g.Ops)
		p.openSet(known[0].row(g.Ops[0].Key), n, n, known[:n]...).addGroup(g, known[:n])
	}
}

func failGroups(groups []*store.Group, err error) {
	for _, g := range groups {
		g.Err = err
	}
}

// openSet returns the open call for the slot of a row. It has room for the rows
// and costs, and no other version of the limits.
func (p *pipeline) openSet(row string, rows, costs int, known ...*entry) *setCall {
	at := p.slot(row)
	q := p.open[at]
	if q != nil && (!q.fits(rows, costs) || !q.sameEntries(known)) {
		p.closeSet(q, row)
		q = nil
	}
	if q == nil {
		if p.open == nil {
			p.open = map[uint16]*setCall{}
		}
		q = newSetCall(p.s)
		p.open[at] = q
	}
	return q
}

// closeSet completes the open call for the slot of a row.
func (p *pipeline) closeSet(q *setCall, row string) {
	p.sendSet(q)
	delete(p.open, p.slot(row))
}

// slot returns the cluster slot of a row, or 0 without a cluster.
func (p *pipeline) slot(row string) uint16 {
	if p.s.names.cluster {
		return slot(row)
	}
	return 0
}

// sendSet adds the call to the pipeline.
func (p *pipeline) sendSet(q *setCall) {
	p.add(q.call(p.ctx), func(c call, err error) {
		defer q.free()
		switch {
		case len(q.groups) > 1 && replied(err, "OOM "): // some of them may need no memory
			p.withRecords = append(p.withRecords, q.groups...)
			return
		case len(q.rows) > 1 && replied(err, "TRYAGAIN "): // the slot is being migrated and some rows have moved
			p.single = append(p.single, q.groups...)
			return
		}
		var rest []*store.Group
		if err == nil {
			rest, err = q.answer(c.str())
		}
		if err != nil {
			failGroups(q.groups, err)
		}
		p.withRecords = append(p.withRecords, rest...)
	})
}

func (p *pipeline) add(c call, settle func(call, error)) {
	p.calls, p.handlers = append(p.calls, c), append(p.handlers, settle)
}

// addDecide adds a call of decide.lua for a group. records tells whether its
// rows may have records. A group that needs more than one call is left for
// later.
func (p *pipeline) addDecide(g *store.Group, records bool) {
	if g.Cancel || needsGo(g) || p.s.names.cluster && mayReserve(g) {
		p.single = append(p.single, g)
		return
	}
	var known [store.MaxTakes]*entry
	if g.Err = p.s.limits.resolve(p.ctx, g, known[:]); g.Err != nil {
		return
	}
	if needsGo(g) { // an override decides it
		p.single = append(p.single, g)
		return
	}
	d, err := p.s.newDecision(g, known[:len(g.Ops)], p.s.estimateNow(), nil, records)
	if err != nil {
		g.Err = err
		return
	}
	p.add(d.call(p.ctx), func(c call, err error) {
		if g.Err = err; err != nil {
			return
		}
		done, err := d.answer(c.ints())
		switch g.Err = err; {
		case done:
		case d.records && !records:
			p.withRecords = append(p.withRecords, g)
		default:
			p.single = append(p.single, g)
		}
	})
}
