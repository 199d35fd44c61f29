package pgstore

import (
	"errors"

	"github.com/dipwell/dipwell/store"
)

// lockedRows are the rows for which a group of the batch timed out waiting for
// a lock. Other groups with these rows get the same error without waiting
// again.
type lockedRows map[rowName]error

type rowName struct{ limit, key string }

// note records the row of a group that timed out on a lock. With several rows
// it is not known which one was locked.
func (r *lockedRows) note(g *store.Group) {
	if len(g.Ops) != 1 || !errors.Is(g.Err, store.ErrLocked) {
		return
	}
	if *r == nil {
		*r = lockedRows{}
	}
	(*r)[nameOf(&g.Ops[0])] = g.Err
}

// err returns the error of a group that would wait for one of the rows, or nil.
func (r lockedRows) err(g *store.Group) error {
	for i := 0; r != nil && i < len(g.Ops); i++ {
		if err := r[nameOf(&g.Ops[i])]; err != nil && g.Ops[i].Verb != store.VerbCheck {
			return err
		}
	}
	return nil
}

// fail sets the error of groups that would wait, and returns the others.
func (r lockedRows) fail(groups []*store.Group) (others []*store.Group) {
	for _, g := range groups {
		if g.Err = r.err(g); g.Err == nil {
			others = append(others, g)
		}
	}
	return others
}

func nameOf(op *store.Op) rowName { return rowName{op.Def.Name, op.Key} }

// firstOfEach returns in first the groups that share no row with an earlier
// group.
func firstOfEach(groups []*store.Group) (first, others []*store.Group) {
	if len(groups) < 2 {
		return groups, nil
	}
	seen := make(map[rowName]bool, len(groups))
	for _, g := range groups {
		shared := false
		for i := range g.Ops {
			n := nameOf(&g.Ops[i])
			shared = shared || seen[n]
			seen[n] = true
		}
		if shared {
			others = append(others, g)
		} else {
			first = append(first, g)
		}
	}
	return first, others
}
