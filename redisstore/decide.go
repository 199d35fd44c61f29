package redisstore

import (
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

func unitsOf(tokens int64, r *store.Rule) int64 { return algebra.UnitsOf(tokens, r.Unit) }

// mayReserve reports whether the group may leave a reservation.
func mayReserve(g *store.Group) bool {
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Verb == store.VerbReserve && op.Cost > 0 || op.Def.Rule.Leaky && op.Verb == store.VerbTake {
			return true
		}
	}
	return false
}

func resets(g *store.Group) bool {
	for i := range g.Ops {
		if g.Ops[i].Verb == store.VerbReset {
			return true
		}
	}
	return false
}
