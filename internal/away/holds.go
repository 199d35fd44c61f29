package away

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// maxOpen bounds the holds of Fallback.open. Those that have ended are forgotten first.
const maxOpen = 1 << 16

// takesOf is how many takes a call had, and how many up to the last one that is held.
type takesOf struct{ all, held int }

func countTakes(ops []store.Op) int {
	var all uint16
	for i := range ops {
		all |= ops[i].Takes
	}
	return bits.Len16(all)
}

// partHere returns a settle or extend of a hold with the costs that the local store knows of.
func (s *Fallback) partHere(h store.HoldCall) (store.HoldCall, error) {
	switch n, ok := s.open.Get(h.ID); {
	case !ok || h.Costs == nil || len(s.local.Hold(h.ID).Parts) == 0:
	case len(h.Costs) != n.all:
		return h, &store.FieldError{Field: "costs", Reason: fmt.Sprintf("there are %d, and the hold has %d", len(h.Costs), n.all)}
	default:
		h.Costs = h.Costs[:n.held]
	}
	return h, nil
}

// isHere reports whether a group makes a hold that was made in memory, and that is live or not
// yet forgotten.
func (s *Fallback) isHere(g store.Group) bool {
	if g.Hold == nil || g.Hold.Verb != store.MakeHold || !slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.OnStoreError == store.FailLocal }) {
		return false
	}
	h := s.local.Hold(g.Hold.ID)
	return len(h.Parts) > 0 && h.Forget > s.now()
}

// repeat repeats holds in a batch that were made in memory, even if the inner store
// answers, because that store would make a second hold. repeat returns the other groups
// and their places in the batch; the places are nil if these are the whole batch.
func (s *Fallback) repeat(b *store.Batch) (rest *store.Batch, at []int) {
	if !slices.ContainsFunc(b.Groups, s.isHere) {
		return b, nil
	}
	rest = new(store.Batch)
	for i := range b.Groups {
		g := &b.Groups[i]
		if !s.isHere(*g) {
			rest.Groups, at = append(rest.Groups, *g), append(at, i)
			continue
		}
		var can bool
		if g.Err, can = s.decideHere(g); !can { // a limit that fails closed makes it another call
			g.Err = store.ErrHoldConflict
		}
	}
	return rest, at
}
