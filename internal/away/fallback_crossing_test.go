package away

import (
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestEveryFieldCrosses checks calls while the store answers.
func TestEveryFieldCrosses(t *testing.T) {
	limittest.Crossing{Wrap: func(inner store.Store) store.Store {
		s, err := NewFallback(inner, FallbackConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}}.Run(t)
}
