package stack

import (
	"context"
	"errors"
	"sync"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/store"
)

// shadowStore is a store that allows every call. It is safe for concurrent use.
//
// A call that the inner store refuses is allowed and charges nothing, and its answer has
// Shadow set, as for a limit in shadow mode. A call that the inner store failed to decide
// is allowed too, with the source store.SourceFallbackOpen. Errors of calls that cannot
// be refused, such as Charge, Reset and Cancel, and errors about invalid input remain.
//
// A hold that was allowed in this way is not in the inner store. This process remembers
// it, and repeats, settles and extends it as a store does, but charges nothing; another
// process answers that the hold is unknown.
type shadowStore struct {
	inner store.Store

	mu    sync.Mutex
	holds bounded.Map[string, *hold] // by id
}

var _ store.Store = (*shadowStore)(nil)

// newShadow returns a store that sends calls to inner and allows them all.
func newShadow(inner store.Store) *shadowStore {
	return &shadowStore{inner: inner, holds: bounded.Map[string, *hold]{Most: maxHolds / 2, Keep: live}}
}

// Abilities returns those of the inner store, except Quick and Lanes.
func (s *shadowStore) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	return ab
}

// Apply sends the batch to the inner store and allows what it refuses.
func (s *shadowStore) Apply(ctx context.Context, b *store.Batch) error {
	var ids []string // ids as the calls have them: the store may set others
	for i := range b.Groups {
		g := &b.Groups[i]
		if s.repeat(g) { // repeated here, because the inner store would make a second hold
			return errors.Join(s.Apply(ctx, &store.Batch{Groups: b.Groups[:i]}), s.Apply(ctx, &store.Batch{Groups: b.Groups[i+1:]}))
		}
		if g.Hold != nil {
			ids = append(ids, g.Hold.ID)
		}
	}
	if len(b.Groups) == 0 {
		return nil
	}
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		g, id := &b.Groups[i], ""
		if g.Hold != nil {
			id, ids = ids[0], ids[1:]
		}
		if err != nil {
			g.Err = err
		}
		switch {
		case g.Settles():
			if errors.Is(g.Err, store.ErrUnknownHold) {
				s.settle(g)
			}
		case g.Err == nil && (g.Allowed || isCharge(g)): // a refused charge is too large, which is an error
		case g.Err == nil:
			allow(g)
			s.remember(g, id)
		case mayAllow(g):
			allowFailed(g)
			s.remember(g, id)
		}
	}
	return nil
}

func isCharge(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbCharge }

// allow allows a group that was refused.
func allow(g *store.Group) {
	if g.Cancel {
		return
	}
	g.Allowed = true
	for i := range g.Ops {
		if op := &g.Ops[i]; !op.Allowed {
			op.Allowed, op.Shadow = true, true
		}
	}
}

// mayAllow reports whether all verbs of a failed group can be refused, and it
// did not fail because of invalid input.
func mayAllow(g *store.Group) bool {
	if g.Cancel || g.NoWait && errors.Is(g.Err, store.ErrLocked) || errors.As(g.Err, new(*store.FieldError)) || errors.Is(g.Err, store.ErrHoldConflict) {
		return false
	}
	for i := range g.Ops {
		if g.Ops[i].Verb > store.VerbReserve {
			return false
		}
	}
	return true
}

// allowFailed allows a group that failed.
func allowFailed(g *store.Group) {
	g.Err, g.Allowed, g.Reserved = nil, true, false
	for i := range g.Ops {
		g.Ops[i].Answer = store.Answer{Allowed: true, Shadow: true, Source: store.SourceFallbackOpen}
	}
}
