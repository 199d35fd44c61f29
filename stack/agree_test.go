package stack_test

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// TestAgreesWithModel plays random histories of plans, overrides and holds through
// the decorators of a stack.
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

// TestLayersAgreeWithModel is the same with all layers that a stack may have for a shared
// store, with the clock of the history, and with refusals that are remembered for long.
func TestLayersAgreeWithModel(t *testing.T) {
	refused, seeds := 0, 160
	if testing.Short() {
		seeds = 20
	}
	for seed := range uint64(seeds) {
		now := int64(1e15)
		s, closeAll := layers(t, &now)
		limittest.Agree(t, s, &now, seed, 400, limittest.Differences{Answers: func(_ *limittest.Call, got, want *store.Group) {
			fromCache := slices.ContainsFunc(got.Ops, func(op store.Op) bool { return op.Source == store.SourceDenyCache })
			for i := range got.Ops {
				// The cache refuses a group before the other calls of its batch. What it says of
				// the group's other rows the store is asked beside them.
				if fromCache && got.Ops[i].Source != store.SourceDenyCache {
					got.Ops[i].Answer = want.Ops[i].Answer
				}
				if got.Ops[i].Source == store.SourceDenyCache {
					refused++
					got.Ops[i].Source = store.SourceStore
				}
			}
		}})
		closeAll()
	}
	if refused < seeds/8 {
		t.Errorf("%d refusals came from the cache", refused)
	}
}

// layers puts the layers of a stack around a model.
func layers(t *testing.T, now *int64) (s store.Store, closeAll func()) {
	t.Helper()
	clock := func() int64 { return *now - 1e15 }
	var opened []io.Closer
	put := func(next store.Store, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := next.(io.Closer); ok {
			opened = append(opened, c)
		}
		s = next
	}
	model := limittest.NewModel(func() int64 { return *now })
	put(coalesce.New(store.Lanes{Stores: []store.Store{model, model}}, coalesce.Config{}))
	put(away.NewBreaker(s, away.BreakerConfig{}), nil)
	put(denycache.New(s, denycache.Config{Clock: clock, MaxAge: time.Hour}))
	put(lease.New(s, lease.Config{}), nil)
	put(away.NewFallback(s, away.FallbackConfig{Clock: clock, MaxKeys: 1000}))
	return s, func() {
		for _, c := range slices.Backward(opened) {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// withLanes is a model that calls are coalesced for.
type withLanes struct{ *limittest.Model }

func (s *withLanes) Abilities() store.Abilities {
	ab := s.Model.Abilities()
	ab.Store = s
	ab.Lanes = func(_ context.Context, n int) (store.Lanes, error) {
		return store.Lanes{Stores: slices.Repeat([]store.Store{s}, n)}, nil
	}
	return ab
}
