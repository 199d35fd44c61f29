package replay

import (
	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// engine decides records in virtual time, with its own rows and the step of the
// stores.
type engine struct {
	defs  []*dipwell.Definition
	all   bool
	table *table
	sums  []sums // by limit
	group store.Group
	rows  []store.State // scratch of decideAll
	write []bool
	out   *decisionWriter

	first, last int64 // times of requests
}

func newEngine(defs []*dipwell.Definition, o *Options) *engine {
	n := len(defs)
	e := &engine{defs: defs, all: o.All, table: newTable(n, o.MaxKeys), sums: make([]sums, n)}
	e.first = -1
	e.group.Ops = make([]store.Op, n)
	e.rows, e.write = make([]store.State, n), make([]bool, n)
	for i, d := range defs {
		e.group.Ops[i].Def = d
	}
	if o.Decisions != nil {
		e.out = newDecisionWriter(o.Decisions)
	}
	return e
}

// decide takes the record's cost from every limit.
func (e *engine) decide(rec *record) error {
	id, ok := e.table.find(rec.key)
	if !ok {
		if e.table.full() {
			e.table.forget(e.defs, rec.t)
		}
		id = e.table.insert(rec.key)
	}
	if e.last = rec.t; e.first < 0 {
		e.first = rec.t
	}
	key := e.table.keys[id]
	rows, counts := e.table.of(id)
	for i := range e.group.Ops {
		op := &e.group.Ops[i]
		op.Key, op.Phase, op.Cost = key, 0, rec.cost
	}
	if e.all {
		if err := e.decideAll(rec, rows); err != nil {
			return err
		}
	} else if err := e.decideEach(rec, rows); err != nil {
		return err
	}
	for i := range e.group.Ops {
		op := &e.group.Ops[i]
		v := e.verdict(op)
		e.sums[i].add(rec, op, v)
		counts[i].add(rec.t, op.Retry, v)
		if e.out != nil {
			if err := e.out.write(rec, op, op.Allowed && v != refusedByOther); err != nil {
				return err
			}
		}
	}
	return nil
}

// decideEach decides each limit independently.
func (e *engine) decideEach(rec *record, rows []row) error {
	for i := range e.group.Ops {
		next, write, err := e.group.Ops[i].Step(rec.t, rows[i].state(e.defs[i]), false)
		if err != nil {
			return err
		}
		if write {
			rows[i] = rowOf(next)
		}
	}
	return nil
}

// decideAll decides all limits at once, all or nothing.
func (e *engine) decideAll(rec *record, rows []row) error {
	for i, d := range e.defs {
		e.rows[i] = rows[i].state(d)
	}
	if err := e.group.Decide(rec.t, e.rows, e.write); err != nil {
		return err
	}
	for i := range rows {
		if e.write[i] {
			rows[i] = rowOf(e.rows[i])
		}
	}
	return nil
}

// verdict is the result of a request at one limit.
type verdict uint8

const (
	granted        verdict = iota
	refused                // by this limit, perhaps by others too
	shadowed               // would have been refused by a limit in shadow mode
	refusedByOther         // allowed by this limit but refused by another; only with Options.All
)

func (e *engine) verdict(op *store.Op) verdict {
	switch {
	case !op.Allowed:
		return refused
	case e.all && !e.group.Allowed:
		return refusedByOther
	case op.Shadow:
		return shadowed
	}
	return granted
}

func (e *engine) flush() error {
	if e.out == nil {
		return nil
	}
	return e.out.flush()
}

// sums are the totals of a limit.
type sums struct {
	granted, refused, refusedByOther, never int64
	grantedCost, refusedCost                total
	delayed                                 int64 // granted with a delay, by a leaky bucket
	longestWait, longestDelay               int64 // µs
	first, last                             int64 // times of refusals
	bins                                    bins
}

func (s *sums) add(rec *record, op *store.Op, v verdict) {
	s.bins.add(rec.t, v)
	if v == granted {
		s.granted++
		s.grantedCost.add(rec.cost)
		if op.Delay > 0 {
			s.delayed++
			s.longestDelay = max(s.longestDelay, op.Delay)
		}
		return
	}
	s.refusedCost.add(rec.cost)
	if v == refusedByOther {
		s.refusedByOther++
		return
	}
	if s.refused == 0 {
		s.first = rec.t
	}
	s.refused++
	s.last = rec.t
	s.longestWait = max(s.longestWait, op.Retry)
	if op.Never {
		s.never++
	}
}

// total is a sum that saturates instead of overflowing.
type total int64

func (t *total) add(n int64) {
	if sum := *t + total(n); sum >= *t {
		*t = sum
	} else {
		*t = 1<<63 - 1
	}
}
