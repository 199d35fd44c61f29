// Package shadow refuses nothing: a store in, a store out.
//
// A call that the inner store refuses is allowed, charges nothing, as with a
// limit whose mode is shadow, and its answer says shadow. So does the answer of
// a call that the inner store could not decide; its source is
// store.SourceFallbackOpen. Errors of calls that cannot be refused, such as
// Charge, Reset and Cancel, and those that are the caller's mistake, stay.
package shadow

import (
	"context"
	"errors"

	"github.com/dipwell/dipwell/store"
)

// Store allows what another refuses. It is safe for concurrent use.
type Store struct{ inner store.Store }

var _ store.Store = (*Store)(nil)

// New returns a store that asks inner and refuses nothing.
func New(inner store.Store) *Store { return &Store{inner} }

// Unwrap returns the inner store.
func (s *Store) Unwrap() store.Store { return s.inner }

// Abilities are those of the inner store.
func (s *Store) Abilities() store.Abilities {
	ab := store.AbilitiesOf(s.inner)
	ab.Store, ab.Quick, ab.Lanes = s, nil, nil
	return ab
}

// Apply asks the inner store and allows what it refuses.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	err := s.inner.Apply(ctx, b)
	for i := range b.Groups {
		g := &b.Groups[i]
		if err != nil {
			g.Err = err
		}
		switch {
		case g.Err == nil:
			allow(g)
		case mayPass(g):
			pass(g)
		}
	}
	return nil
}

// allow changes a refusal into an answer that allows the call.
func allow(g *store.Group) {
	if g.Allowed || g.Cancel {
		return
	}
	g.Allowed = true
	for i := range g.Ops {
		if op := &g.Ops[i]; !op.Allowed {
			op.Allowed, op.Shadow = true, true
		}
	}
}

// mayPass reports whether a group failed in a way that would refuse its call,
// and not because of a mistake of the caller.
func mayPass(g *store.Group) bool {
	if g.Cancel || errors.As(g.Err, new(*store.FieldError)) {
		return false
	}
	for i := range g.Ops {
		if g.Ops[i].Verb > store.VerbReserve {
			return false
		}
	}
	return true
}

func pass(g *store.Group) {
	g.Err, g.Allowed, g.Reserved = nil, true, false
	for i := range g.Ops {
		g.Ops[i].Answer = store.Answer{Allowed: true, Shadow: true, Source: store.SourceFallbackOpen}
	}
}
