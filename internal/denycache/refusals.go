package denycache

import (
	"github.com/dipwell/dipwell/store"
)

// refusals is the set of ops of a group that the cache refuses: bit i is op i. A
// group has at most store.MaxTakes ops.
type refusals uint16

var _ [16]struct{} = [store.MaxTakes]struct{}{}

// refusable reports whether the cache may refuse a group: a single op, or takes
// and checks, because their other ops can be sent as checks.
func refusable(g *store.Group) bool {
	if g.Cancel || g.Hold != nil { // a hold may be a repeated call
		return false
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; len(g.Ops) > 1 && (op.Verb > store.VerbCheck || op.Def.Rule.Leaky) {
			return false
		}
	}
	return true
}

// others returns the other ops of a refused group, as checks.
func (refused refusals) others(g *store.Group) []store.Op {
	var out []store.Op
	for i := range g.Ops {
		if refused != 0 && refused>>i&1 == 0 {
			op := g.Ops[i]
			op.Verb = store.VerbCheck
			out = append(out, op)
		}
	}
	return out
}

// merge copies the answers of the other ops into the group.
func (refused refusals) merge(g, others *store.Group) {
	g.Err, g.Allowed, g.Reserved = others.Err, false, false
	next := 0
	for i := range g.Ops {
		if refused>>i&1 == 0 {
			g.Ops[i].CopyAnswer(&others.Ops[next])
			next++
		}
	}
}
