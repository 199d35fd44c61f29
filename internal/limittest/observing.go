package limittest

import (
	"context"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// Observing is a store that adds up what is observed behind adaptive limits.
type Observing struct {
	store.Store
	mu  sync.Mutex
	got store.Observation
}

// Abilities implements store.Store.
func (o *Observing) Abilities() store.Abilities {
	ab := store.AbilitiesOf(o.Store)
	inner := ab.Observe
	ab.Observe = func(ctx context.Context, d *store.Definition, s store.Observation) error {
		o.mu.Lock()
		o.got.Count, o.got.Slow, o.got.Failed, o.got.Taken = o.got.Count+s.Count, o.got.Slow+s.Slow, o.got.Failed+s.Failed, o.got.Taken+s.Taken
		o.mu.Unlock()
		return inner(ctx, d, s)
	}
	return ab
}

// Observed returns the sums.
func (o *Observing) Observed() store.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.got
}
