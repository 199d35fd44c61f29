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
		limittest.Agree(t, s, &now, seed, 400, limittest.Differences{Answers: func(c *limittest.Call, got, want *store.Group) {
			cached := 0
			for i := range got.Ops {
				if got.Ops[i].Source == store.SourceDenyCache {
					cached++
				}
			}
			for i := range got.Ops {
				if op := &got.Ops[i]; op.Source == store.SourceDenyCache {
					op.Source = store.SourceStore
				} else if c.Beside && cached > 0 { // read after the calls that the cache had not seen
					op.Answer = want.Ops[i].Answer
				}
			}
			refused += cached
		}})
	}
	if refused < 50 {
		t.Errorf("%d refusals came from the cache", refused)
	}
}
