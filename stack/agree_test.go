package stack_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// TestAgreesWithModel plays random histories of plans, overrides and holds through
// the decorators of a stack. The deny cache has a test of its own, with its clock.
func TestAgreesWithModel(t *testing.T) {
	for seed := range uint64(20) {
		now := int64(1e15)
		st, err := stack.New(t.Context(), &withLanes{limittest.NewModel(func() int64 { return now })}, stack.Options{Breaker: true, Fallback: true, FallbackKeys: 1000, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		limittest.Agree(t, st.Store, &now, seed, 300, limittest.Differences{})
		if err = st.Close(); err != nil {
			t.Error(err)
		}
	}
}

// withLanes is a model that calls are coalesced for.
type withLanes struct{ *limittest.Model }

func (s *withLanes) Abilities() store.Abilities {
	ab := s.Model.Abilities()
	ab.Store = s
	ab.Lanes = func(_ context.Context, n, spare int) (store.Lanes, error) {
		return store.Lanes{Stores: slices.Repeat([]store.Store{s}, n+spare), Spare: spare}, nil
	}
	return ab
}
