package dipwell

import (
	"context"

	"github.com/dipwell/dipwell/store"
)

// Limit returns the definition of a limit, or nil.
func (l *Limiter) Limit(name string) *Definition { return l.reg.Lookup(name) }

// Limits returns all definitions, sorted by name.
func (l *Limiter) Limits() []*Definition { return l.reg.All() }

// Define adds a limit or changes it while it is in use. The change takes effect
// at the next call; keys in use are converted by the limit's OnChange. A limit
// has one owner, and a change by another is ErrOwner.
func (l *Limiter) Define(ctx context.Context, limit Limit, owner string) (*Definition, error) {
	return l.def.Define(ctx, limit, owner)
}

// Drop ends a limit.
func (l *Limiter) Drop(ctx context.Context, name, owner string) error {
	return l.def.Drop(ctx, name, owner)
}

// Keys pages through the live keys of a limit, in byte order.
func (l *Limiter) Keys(ctx context.Context, limit, prefix, after string, n int) ([]store.KeyState, error) {
	def := l.reg.Lookup(limit)
	if def == nil {
		return nil, l.reg.Missing(limit)
	}
	if l.can.Keys == nil {
		return nil, ErrNotSupported
	}
	return l.can.Keys(ctx, def, prefix, after, n)
}

// ownLimits keeps the limits of a store that keeps none itself.
type ownLimits struct {
	now func(ctx context.Context) (int64, error)
	reg store.Registry
}

var _ store.Definer = (*ownLimits)(nil)

func (o *ownLimits) Registry() *store.Registry { return &o.reg }

func (o *ownLimits) Define(ctx context.Context, l Limit, owner string) (*Definition, error) {
	now, err := o.now(ctx)
	if err != nil {
		return nil, err
	}
	return o.reg.Define(now, l, owner)
}

func (o *ownLimits) Drop(_ context.Context, name, owner string) error { return o.reg.Drop(name, owner) }
