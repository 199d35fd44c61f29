package denycache

import "github.com/dipwell/dipwell/store"

// refusals are the ops of a group that rows kept here refuse: bit i is op i.
// store.MaxTakes bounds them.
type refusals uint16

var _ [16]struct{} = [store.MaxTakes]struct{}{}

// answerable reports whether a group may be refused from rows kept here: a
// single op, or takes and checks, whose others a check can speak for.
func answerable(g *store.Group) bool {
	if g.Cancel {
		return false
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; len(g.Ops) > 1 && (op.Verb > store.VerbCheck || op.Def.Rule.Leaky) {
			return false
		}
	}
	return true
}

// rest asks about the other ops of a refused group, and charges nothing.
func (known refusals) rest(g *store.Group) []store.Op {
	var out []store.Op
	for i := range g.Ops {
		if known != 0 && known>>i&1 == 0 {
			op := g.Ops[i]
			op.Verb = store.VerbCheck
			out = append(out, op)
		}
	}
	return out
}

// join puts the answers about the rest beside those that were known.
func (known refusals) join(g, rest *store.Group) {
	g.Err, g.Allowed, g.Reserved = rest.Err, false, false
	from := 0
	for i := range g.Ops {
		if known>>i&1 == 0 {
			g.Ops[i].Answer = rest.Ops[from].Answer
			from++
		}
	}
}
