package replay

import (
	"bytes"
	"math"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// engine decides records in virtual time, with its own rows and the step of the
// stores.
type engine struct {
	registry *store.Registry
	limits   []judged
	sets     []*keySet
	ops      []store.Op    // by limit
	groups   []store.Group // of ops
	blocking []bool        // by group: one of its limits has a Block
	rows     []store.State // scratch of decideAll
	write    []bool
	out      *decisionWriter

	first, last int64 // times of requests
}

// A judged is a limit with its rows and results.
type judged struct {
	*target
	set    *keySet
	at     int          // index among the limits of the set
	result Limit        // its totals
	byPlan []PlanResult // by record.Plan
}

// A keySet has the keys of the limits whose keys have the same number of parts, or of those
// that are shared.
type keySet struct {
	up     int
	defs   []*store.Definition
	table  *table
	blocks map[blockedKey]block

	id  int32 // of the present record's key
	key string
}

func newEngine(l *lineup, o *Options) *engine {
	n := len(l.limits)
	e := &engine{first: -1, registry: l.registry, out: newDecisionWriter(o.Decisions), limits: make([]judged, n), ops: make([]store.Op, n), rows: make([]store.State, n), write: make([]bool, n)}
	for i := range l.limits {
		j := &e.limits[i]
		j.target = &l.limits[i]
		at := slices.IndexFunc(e.sets, func(s *keySet) bool { return s.up == j.up })
		if at < 0 {
			at = len(e.sets)
			e.sets = append(e.sets, &keySet{up: j.up, blocks: map[blockedKey]block{}})
		}
		j.set = e.sets[at]
		j.at = len(j.set.defs)
		j.set.defs = append(j.set.defs, j.def)
		if len(o.Plan) > 0 && j.plans != nil {
			j.byPlan = make([]PlanResult, len(j.plans))
		}
	}
	for _, s := range e.sets {
		s.table = newTable(len(s.defs), o.MaxKeys)
	}
	for _, g := range l.groups {
		e.groups = append(e.groups, store.Group{Ops: e.ops[g[0]:g[1]:g[1]]})
		e.blocking = append(e.blocking, slices.ContainsFunc(l.limits[g[0]:g[1]], func(x target) bool { return x.def.Block != 0 }))
	}
	return e
}

func (j *judged) row() *row {
	rows, _ := j.set.table.of(j.set.id)
	return &rows[j.at]
}

// find sets the present key: that of the record, without its last parts if the limits'
// keys have fewer, or "" if they are shared.
func (s *keySet) find(limits *store.Registry, rec *record) error {
	key := rec.Key
	if s.up == noKey {
		key = nil
	}
	for range max(s.up, 0) {
		key = key[:max(bytes.LastIndexByte(key, '/'), 0)]
	}
	id, ok := s.table.ids[string(key)]
	if !ok {
		if len(s.table.keys) >= s.table.most {
			if err := s.endBlocks(limits, rec.T); err != nil {
				return err
			}
			s.table.forget(s.defs, rec.T)
		}
		id = s.table.insert(string(key))
	}
	s.id, s.key = id, s.table.keys[id]
	return nil
}

// decide takes the record's cost from every limit.
func (e *engine) decide(rec *record) error {
	if e.last = rec.T; e.first < 0 {
		e.first = rec.T
	}
	for _, s := range e.sets {
		if err := s.find(e.registry, rec); err != nil {
			return err
		}
	}
	for i := range e.ops {
		op, l := &e.ops[i], &e.limits[i]
		op.Def, op.Key, op.Phase, op.Cost = l.plans[rec.Plan], l.set.key, 0, rec.Cost
		if l.times > 1 {
			op.Cost = min(rec.Cost, store.MaxInt/l.times) * l.times
		}
	}
	for i, first := 0, 0; i < len(e.groups); i++ {
		g := &e.groups[i]
		if err := e.decideGroup(rec, g, e.limits[first:], e.blocking[i]); err != nil {
			return err
		}
		first += len(g.Ops)
	}
	return nil
}

// decideGroup decides a group, whose limits are the first of limits, and counts it.
func (e *engine) decideGroup(rec *record, g *store.Group, limits []judged, blocking bool) (err error) {
	switch {
	case blocking:
		err = e.decideBlocking(rec.T, g, limits)
	case len(g.Ops) == 1:
		err = decideAlone(g, rec.T, limits[0].row())
	default:
		err = e.decideAll(rec.T, g, limits)
	}
	if err != nil {
		return err
	}
	for i := range g.Ops {
		op, l := &g.Ops[i], &limits[i]
		v := verdictOf(g, op)
		l.result.add(rec.T, op, v)
		_, counts := l.set.table.of(l.set.id)
		counts[l.at].add(rec.T, op.Retry, v)
		if l.byPlan != nil {
			l.byPlan[rec.Plan].add(v)
		}
		if err := e.out.write(rec, op, op.Allowed && v != refusedByOther); err != nil {
			return err
		}
	}
	return nil
}

// decideAlone decides a group of one limit.
func decideAlone(g *store.Group, t int64, r *row) error {
	state := r.state()
	write, err := g.Ops[0].StepRow(t, &state, false)
	if g.Allowed = g.Ops[0].Allowed; write && err == nil {
		*r = rowOf(state)
	}
	return err
}

// decideAll decides a group of several limits, all or nothing.
func (e *engine) decideAll(t int64, g *store.Group, limits []judged) error {
	n := len(g.Ops)
	for i := range n {
		e.rows[i] = limits[i].row().state()
	}
	if err := g.Decide(t, e.rows[:n], e.write); err != nil {
		return err
	}
	for i := range n {
		if e.write[i] {
			*limits[i].row() = rowOf(e.rows[i])
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

func verdictOf(g *store.Group, op *store.Op) verdict {
	switch {
	case !op.Allowed:
		return refused
	case !g.Allowed:
		return refusedByOther
	case op.Shadow:
		return shadowed
	}
	return granted
}

// add counts the decision of a request at t.
func (l *Limit) add(t int64, op *store.Op, v verdict) {
	l.bins.add(t, v)
	if v == granted {
		l.Granted++
		l.GrantedCost = sum(l.GrantedCost, op.Cost)
		if op.Delay > 0 {
			l.Delayed++
			l.LongestDelay = max(l.LongestDelay, op.Delay)
		}
		return
	}
	l.RefusedCost = sum(l.RefusedCost, op.Cost)
	if v == refusedByOther {
		l.RefusedByOther++
		return
	}
	if l.Refused == 0 {
		l.FirstRefusal, l.LastRefusal = new(t), new(t)
	}
	l.Refused++
	*l.LastRefusal = t
	l.LongestWait = max(l.LongestWait, op.Retry)
	if op.Never {
		l.Never++
	}
}

// sum saturates instead of overflowing.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
