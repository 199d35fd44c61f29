package redisstore

import (
	"context"
	"slices"
	"sync"

	"github.com/dipwell/dipwell/store"
)

var merges = sync.Pool{New: func() any { return new(store.Rows) }}

// decideBatch decides the groups of a batch that use plain buckets in one pipeline of
// calls of set.lua, with any number of callers per row. All other groups, and those that
// set.lua leaves, are decided concurrently, each on its own.
func (s *Store) decideBatch(ctx context.Context, b *store.Batch) {
	m := merges.Get().(*store.Rows)
	defer merges.Put(m)
	m.Arrange(b)
	p := pipeline{s: s, ctx: ctx}
	for i := range m.Rows {
		p.addRow(&m.Rows[i])
	}
	for _, g := range m.Whole {
		p.addGroup(g)
	}
	p.run()
	var all sync.WaitGroup
	places := make(chan struct{}, maxAtOnce)
	for _, groups := range p.single {
		places <- struct{}{}
		all.Go(func() {
			for _, g := range groups {
				g.Err = s.group(ctx, g)
			}
			<-places
		})
	}
	all.Wait()
}

// maxAtOnce bounds the groups of a batch that are decided at the same time outside of its
// pipeline: as many as clients of Redis have connections by default on two processors.
const maxAtOnce = 16

// A pipeline collects the calls of a batch, and the groups that are left over.
type pipeline struct {
	s         *Store
	ctx       context.Context
	full      []*setCall          // complete calls
	open      map[uint16]*setCall // by slot: calls with room for more rows and groups
	lastEntry *entry              // entry of the row added before
	single    [][]*store.Group    // groups that set.lua cannot decide; those of one row are together, in order
}

// run sends the calls, and fills in the answers.
func (p *pipeline) run() {
	for _, q := range p.open {
		p.full = append(p.full, q)
	}
	calls := make([]call, len(p.full))
	for i, q := range p.full {
		calls[i] = q.call(p.ctx)
	}
	for i, err := range p.s.runMany(p.ctx, calls) {
		p.answer(p.full[i], calls[i], err)
	}
}

// answer fills in the answers of a call that was sent.
func (p *pipeline) answer(q *setCall, c call, err error) {
	if len(q.groups) > 1 && replied(err, "OOM ") || // some of the groups may need no memory
		len(q.rows) > 1 && replied(err, "TRYAGAIN ") { // the slot is being migrated and some rows have moved
		p.single = append(p.single, q.groups)
		return
	}
	var rest []*store.Group
	if err == nil {
		rest, err = q.answer(c.str())
	}
	if err != nil {
		failGroups(q.groups, err)
	}
	if len(rest) > 0 {
		p.single = append(p.single, rest)
	}
}

// addRow adds the calls of a row.
func (p *pipeline) addRow(row *store.RowGroups) {
	if p.lastEntry == nil || p.lastEntry.def.Name != row.Limit {
		e, err := p.s.limits.named(p.ctx, &row.Groups[0].Ops[0])
		if err != nil {
			failGroups(row.Groups, err)
			return
		}
		p.lastEntry = e
	}
	e, groups := p.lastEntry, row.Groups
	for _, g := range groups {
		g.Ops[0].Def = e.def
	}
	leaves := func(g *store.Group) bool {
		return !e.canUseSet(&g.Ops[0], true) || p.s.limits.overriding(e, &g.Ops[0]) != nil
	}
	if at := slices.IndexFunc(groups, leaves); at >= 0 { // the groups after it are left too, to keep their order
		p.single = append(p.single, groups[at:])
		groups = groups[:at]
	}
	if len(groups) == 0 {
		return
	}
	name := e.row(row.Key)
	for {
		n := min(len(groups), maxCosts)
		q := p.openSet(name, 1, n, e)
		at := q.addRow(e, &groups[0].Ops[0], name)
		for _, g := range groups[:n] {
			q.addSingle(g, at)
		}
		if groups = groups[n:]; len(groups) == 0 {
			return
		}
		p.closeSet(q, name) // the same row must not be given to a script twice
	}
}

// addGroup adds a group of several ops, or a cancellation.
func (p *pipeline) addGroup(g *store.Group) {
	var known [store.MaxTakes]*entry
	if !g.Cancel && g.Hold == nil {
		if g.Err = p.s.limits.resolve(p.ctx, g, known[:]); g.Err != nil {
			return
		}
	}
	if !canUseSet(g, known[:]) {
		p.single = append(p.single, []*store.Group{g})
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

// openSet returns the open call for the slot of a row. The call has room for
// the rows and costs, and no other version of the limits.
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
		q = &setCall{s: p.s}
		p.open[at] = q
	}
	return q
}

// closeSet completes the open call for the slot of a row.
func (p *pipeline) closeSet(q *setCall, row string) {
	p.full = append(p.full, q)
	delete(p.open, p.slot(row))
}

// slot returns the cluster slot of a row, or 0 without a cluster.
func (p *pipeline) slot(row string) uint16 {
	if p.s.names.cluster {
		return slot(row)
	}
	return 0
}
