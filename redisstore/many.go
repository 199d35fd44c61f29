package redisstore

import (
	"context"
	"strconv"
	"sync"

	"github.com/dipwell/dipwell"
)

// chunk is how many rows one script decides, so that none of them keeps the
// server from others for long: about 0.1 ms.
const chunk = 64

var merges = sync.Pool{New: func() any { return new(dipwell.Merge) }}

// many decides a batch in one pipeline: takes of one limit many rows a script,
// however many callers a row has; the rest a script each.
func (s *Store) many(ctx context.Context, b *dipwell.Batch) {
	m := merges.Get().(*dipwell.Merge)
	defer merges.Put(m)
	m.Arrange(b)
	p := pipeline{s: s, ctx: ctx}
	for i := range m.Rows {
		p.row(&m.Rows[i])
	}
	p.flush()
	for _, g := range m.Whole {
		p.whole(g)
	}
	p.run()
	again := pipeline{s: s, ctx: ctx, lists: true}
	for _, g := range p.listed {
		again.whole(g)
	}
	again.run()
	for _, g := range append(append(p.alone, again.listed...), again.alone...) {
		g.Err = s.group(ctx, g)
	}
}

// pipeline gathers the calls of a batch, what their answers mean, and the
// groups that are asked by themselves afterwards.
type pipeline struct {
	s      *Store
	ctx    context.Context
	calls  []call
	settle []func([]int64, error)
	alone  []*dipwell.Group
	listed []*dipwell.Group // whose rows may have records, or are of another version
	lists  bool             // the rows of this pipeline may have records

	e    *entry // of the rows
	rows []*dipwell.Row
}

func (p *pipeline) run() {
	if len(p.calls) == 0 {
		return
	}
	errs := p.s.runMany(p.ctx, p.calls)
	for i, settle := range p.settle {
		settle(p.calls[i].ints(), errs[i])
	}
}

func (p *pipeline) row(row *dipwell.Row) {
	e := p.e
	if e == nil || e.def.Name != row.Limit {
		var known [1]*entry
		if err := p.s.cat.resolve(p.ctx, row.Groups[0], known[:]); err != nil {
			for _, g := range row.Groups {
				g.Err = err
			}
			return
		}
		e = known[0]
	}
	for _, g := range row.Groups {
		g.Ops[0].Def = e.def
	}
	if !e.plain(&row.Groups[0].Ops[0]) || !row.Alike() {
		for _, g := range row.Groups {
			p.whole(g)
		}
		return
	}
	if p.e != e || len(p.rows) == chunk || p.s.names.cluster {
		p.flush()
	}
	p.e, p.rows = e, append(p.rows, row)
}

// flush makes one call of the rows gathered so far.
func (p *pipeline) flush() {
	if len(p.rows) == 0 {
		return
	}
	e, rows := p.e, p.rows
	p.rows = nil
	args := make([]any, 3, 12+4*len(rows))
	args[2] = len(rows)
	for _, row := range rows {
		args = append(args, e.row(row.Key))
	}
	args = append(args, e.version, e.add, e.cap, e.every, e.origin)
	for _, row := range rows {
		n := boxedOne
		if len(row.Groups) > 1 {
			n = strconv.Itoa(len(row.Groups))
		}
		args = append(args, e.units(row.Groups[0].Ops[0].Cost, &e.def.Rule), n)
		if e.def.Rule.Spread {
			var scratch dipwell.Rule
			args = append(args, e.def.RuleFor(row.Key, &scratch).Origin)
		}
	}
	c := newCall(p.ctx, p.s.scripts.take, true, p.s.withClock(args))
	c.split = len(rows) > 1
	p.add(c, func(v []int64, err error) {
		for i, row := range rows {
			switch {
			case len(rows) > 1 && replied(err, "TRYAGAIN "): // their slot is moving, and some of them have gone ahead
				p.alone = append(p.alone, row.Groups...)
			case err != nil:
				for _, g := range row.Groups {
					g.Err = err
				}
			case v[2*i+1] < 0:
				p.listed = append(p.listed, row.Groups...)
			default:
				row.Decide(v[0], e.state(v[2*i+1], v[2*i+2]))
			}
		}
	})
}

func (p *pipeline) add(c call, settle func([]int64, error)) {
	p.calls, p.settle = append(p.calls, c), append(p.settle, settle)
}

// whole adds a group that is decided by itself. One that needs more than one
// call is asked afterwards.
func (p *pipeline) whole(g *dipwell.Group) {
	if g.Cancel || p.s.names.cluster && mayReserve(g) {
		p.alone = append(p.alone, g)
		return
	}
	var known [dipwell.MaxTakes]*entry
	if g.Err = p.s.cat.resolve(p.ctx, g, known[:]); g.Err != nil {
		return
	}
	d, err := p.s.newDecision(g, known[:len(g.Ops)], p.s.guess(), nil, p.lists)
	if err != nil {
		g.Err = err
		return
	}
	p.add(d.call(p.ctx), func(v []int64, err error) {
		if g.Err = err; err != nil {
			return
		}
		done, err := d.settle(v)
		switch g.Err = err; {
		case done:
		case d.lists && !p.lists:
			p.listed = append(p.listed, g)
		default:
			p.alone = append(p.alone, g)
		}
	})
}
