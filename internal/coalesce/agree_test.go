package coalesce_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestAgreesWithModel plays random histories of plans, overrides and holds.

func TestAgreesWithModel(t *testing.T) {
	for seed := range uint64(20) {
		now := int64(1e15)
		model := limittest.NewModel(func() int64 { return now })
		s, err := coalesce.New(store.Lanes{Stores: []store.Store{model}}, coalesce.Config{})
		if err != nil {
			t.Fatal(err)
		}
		limittest.Agree(t, s, &now, seed, 300, limittest.Differences{})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
