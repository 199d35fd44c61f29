package replay

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// engine decides records in virtual time, with its own rows and the step of the stores.
type engine struct {
	registry *store.Registry
	limits   []judged
	tables   []*table
	ops      []store.Op     // by limit
	rows     []*store.State // of ops
	groups   []store.Group  // of ops
	present  states         // the table of the present group's rows
	out      *json.Encoder  // of decisions; or nil

	first, last int64 // times of the first and the last request
}

type judged struct {
	*target
	table  *table
	at     int          // index of the limit among those of its table
	result Limit        // its totals
	byPlan []PlanResult // by record.Plan
}

func newEngine(l *lineup, o *Options) *engine {
	n := len(l.limits)
	e := &engine{first: -1, registry: l.registry, limits: make([]judged, n), ops: make([]store.Op, n), rows: make([]*store.State, n)}
	for i := range l.limits {
		j := &e.limits[i]
		j.target = &l.limits[i]
		at := slices.IndexFunc(e.tables, func(t *table) bool { return t.up == j.up })
		if at < 0 {
			at = len(e.tables)
			e.tables = append(e.tables, &table{up: j.up, most: o.MaxKeys, budget: o.MaxKeys, ids: map[string]int32{}})
		}
		j.table = e.tables[at]
		j.at = j.table.add(j.def)
		if len(o.Plan) > 0 && j.plans != nil {
			j.byPlan = make([]PlanResult, len(j.plans))
		}
	}
	for _, g := range l.groups {
		e.groups = append(e.groups, store.Group{Ops: e.ops[g[0]:g[1]:g[1]]})
	}
	return e
}

func (e *engine) decide(rec *record) error {
	if e.last = rec.T; e.first < 0 {
		e.first = rec.T
	}
	for _, t := range e.tables {
		if err := t.find(e.registry, rec); err != nil {
			return err
		}
	}
	for i := range e.ops {
		op, l := &e.ops[i], &e.limits[i]
		op.Def, op.Key, op.Phase, op.Cost = l.plans[rec.Plan], l.table.keys[l.table.id], 0, rec.Cost
		if l.times > 1 {
			op.Cost = min(rec.Cost, store.MaxInt/l.times) * l.times
		}
		rows, _ := l.table.of(l.table.id)
		e.rows[i] = &rows[l.at]
	}
	first := 0
	for i := range e.groups {
		g := &e.groups[i]
		if err := e.decideGroup(rec, g, first); err != nil {
			return err
		}
		first += len(g.Ops)
	}
	return nil
}

// decideGroup decides for a group of limits, which begins at first, and counts the result.
func (e *engine) decideGroup(rec *record, g *store.Group, first int) error {
	e.present.ops, e.present.rows = g.Ops, e.rows[first:]
	if err := g.DecideIn(&e.present, e.registry, rec.T); err != nil {
		return err
	}
	for i := range g.Ops {
		op, l := &g.Ops[i], &e.limits[first+i]
		v := verdictOf(g, op)
		l.result.add(rec.T, op, v)
		_, counts := l.table.of(l.table.id)
		counts[l.at].add(rec.T, op.Retry, v)
		if l.byPlan != nil {
			l.byPlan[rec.Plan].add(v)
		}
		if err := e.write(rec, op, op.Allowed && v != refusedByOther); err != nil {
			return err
		}
	}
	return nil
}

type verdict uint8

const (
	granted        verdict = iota
	refused                // refused by this limit, perhaps by others too
	shadowed               // a limit in shadow mode would have refused it
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

// decision is a line of Options.Decisions.
type decision struct {
	Line      int64   `json:"line"`
	T         int64   `json:"t_us"`
	Limit     string  `json:"limit"`
	Key       *string `json:"key"` // nil for the limit's shared bucket
	Plan      string  `json:"plan,omitempty"`
	Allowed   bool    `json:"allowed"`
	Remaining int64   `json:"remaining"`
	Retry     *int64  `json:"retry_after_us"`
}

func (e *engine) write(rec *record, op *store.Op, allowed bool) error {
	if e.out == nil {
		return nil
	}
	d := decision{Line: rec.Line, T: rec.T, Limit: op.Def.Name, Plan: op.Def.Plan, Allowed: allowed, Remaining: op.Remaining}
	if op.Key != "" {
		d.Key = &op.Key
	}
	if !op.Never && (!allowed || op.Shadow) {
		d.Retry = &op.Retry
	}
	return e.out.Encode(&d)
}

// states is the store.Table of the rows of a group's ops. A replay makes no reservations
// and holds, so no row has records, and methods for these are not called.
type states struct {
	store.Table
	ops  []store.Op
	rows []*store.State
}

func (s *states) of(limit string) *store.State {
	i := 0
	for s.ops[i].Def.Name != limit {
		i++
	}
	return s.rows[i]
}

func (s *states) Row(limit, _ string) (store.State, error) { return *s.of(limit), nil }

func (s *states) SetRow(limit, _ string, row store.State) error {
	r := s.of(limit)
	row.Override = r.Override
	*r = row
	return nil
}

func (s *states) SetOverride(limit, _ string, o *store.Override) error {
	s.of(limit).Override = o
	return nil
}

func (s *states) Records(string, string) ([]store.Record, error) { return nil, nil }
