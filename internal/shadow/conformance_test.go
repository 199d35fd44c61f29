package shadow_test

import (
	"context"
	"sync"
	"testing"

	"github.com/dipwell/dipwell/internal/shadow"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// enforcing refuses what the decorator has allowed.
type enforcing struct {
	*shadow.Store
	refused sync.Map // ids of holds
}

func (e *enforcing) Apply(ctx context.Context, b *store.Batch) error {
	err := e.Store.Apply(ctx, b)
	for i := range b.Groups {
		g := &b.Groups[i]
		if core.Settles(g) {
			if _, refused := e.refused.Load(g.Hold.ID); refused {
				g.Err, g.Allowed, g.Ops = store.ErrUnknownHold, false, nil
			}
			continue
		}
		for j := range g.Ops {
			if op := &g.Ops[j]; op.Shadow && op.Def.Mode != store.Shadow {
				op.Allowed, op.Shadow, g.Allowed = false, false, false
			}
		}
		if g.Hold != nil && g.Err == nil {
			e.refused.Delete(g.Hold.ID)
			if !g.Allowed {
				e.refused.Store(g.Hold.ID, true)
			}
		}
	}
	return err
}

// TestStore runs the suite of all stores. All that the decorator changes in an answer
// is that a refusal is allowed and has Shadow.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		inner, err := memstore.New(memstore.Config{Clock: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = inner.Close() })
		return &enforcing{Store: shadow.New(inner)}
	}, storetest.Options{Quick: true})
}
