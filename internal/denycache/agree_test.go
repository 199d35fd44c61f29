package denycache_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestAgreesWithModel plays random histories of plans, overrides and holds. An answer
// from the cache is that of the store.
func TestAgreesWithModel(t *testing.T) {
	refused := 0
	for seed := range uint64(160) {
		now := int64(1e15)
		clock := func() int64 { return now }
		s := open(t, limittest.NewModel(clock), denycache.Config{Clock: func() int64 { return now - 1e15 }})
		limittest.Agree(t, s, &now, seed, 400, limittest.Differences{Answers: func(_ *limittest.Call, got, _ *store.Group) {
			if ops := got.Ops; len(ops) == 1 && ops[0].Source == store.SourceDenyCache {
				ops[0].Source = store.SourceStore
				refused++
			}
		}})
	}
	if refused < 30 {
		t.Errorf("%d refusals came from the cache", refused)
	}
}
