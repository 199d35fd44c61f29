package store

import (
	"cmp"
	"slices"
)

// Rows arranges a batch by row, for stores that read and write each row once per
// batch, however many calls use it. The zero Rows is ready to use. Reusing a
// Rows saves allocations.
//
// Groups of different rows may be decided in any order. Groups of the same row are
// decided in the order of the batch.
type Rows struct {
	Rows  []RowGroups // rows of those groups that have one op, sorted by limit and key
	Whole []*Group    // groups to be decided alone: cancellations, and groups of several ops, with a plan, a floor or a hold

	groups []*Group // backs Rows[i].Groups
}

// RowGroups has the groups of one op that use one row.
type RowGroups struct {
	Limit, Key string
	Groups     []*Group // at least one, in the order of the batch
}

// Arrange sets Rows and Whole to the groups of b. m points into b: do not move or
// reuse b until its groups are decided.
func (m *Rows) Arrange(b *Batch) {
	clear(m.Rows)
	clear(m.Whole)
	clear(m.groups)
	m.Rows, m.Whole, m.groups = m.Rows[:0], m.Whole[:0], m.groups[:0]
	for i := range b.Groups {
		if g := &b.Groups[i]; plain(g) {
			m.groups = append(m.groups, g)
		} else {
			m.Whole = append(m.Whole, g)
		}
	}
	slices.SortStableFunc(m.groups, func(a, b *Group) int { return compareRows(&a.Ops[0], &b.Ops[0]) })
	for from := 0; from < len(m.groups); {
		first, to := &m.groups[from].Ops[0], from+1
		for to < len(m.groups) && compareRows(first, &m.groups[to].Ops[0]) == 0 {
			to++
		}
		m.Rows = append(m.Rows, RowGroups{first.Def.Name, first.Key, m.groups[from:to:to]})
		from = to
	}
}

// plain reports whether a group is one op under the base definition of its limit and at
// its full rate, so that it may be decided together with others of its row.
func plain(g *Group) bool {
	return len(g.Ops) == 1 && !g.Cancel && g.Hold == nil && g.Ops[0].Floor == 0 && g.Ops[0].Fraction == 0 && g.Ops[0].Def.Block == 0 && g.Ops[0].Def.Base() == g.Ops[0].Def
}

// compareRows orders ops by their rows, in byte order.
func compareRows(op, other *Op) int {
	if c := cmp.Compare(op.Def.Name, other.Def.Name); c != 0 {
		return c
	}
	return cmp.Compare(op.Key, other.Key)
}

// Decide decides the groups of the row one after the other at now, in µs, and sets
// their answers. Decide returns the row to store, and whether it must be stored. A
// group whose definition is too old for the row gets ErrStaleDefinition as its Err.
func (r *RowGroups) Decide(now int64, row State) (after State, write bool) {
	phase := r.Groups[0].Ops[0].Phase
	for _, g := range r.Groups {
		op := &g.Ops[0]
		op.Phase = phase // the ops have the same key
		next, wrote, err := op.Step(now, row, false)
		if g.Err = err; err != nil {
			g.Allowed, g.Reserved = false, false
			continue
		}
		if phase = op.Phase; wrote {
			row, write = next, true
		}
		g.Allowed, g.Reserved = op.Allowed, op.Delay > 0 && op.Granted > 0
	}
	return row, write
}
