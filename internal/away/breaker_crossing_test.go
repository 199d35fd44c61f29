package away_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestEveryFieldCrosses checks calls while the breaker is closed.
func TestEveryFieldCrosses(t *testing.T) {
	limittest.Crossing{Wrap: func(inner store.Store) store.Store {
		s := away.NewBreaker(inner, away.BreakerConfig{})
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}}.Run(t)
}
