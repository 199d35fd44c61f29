package denycache_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestEveryFieldCrosses checks calls that the cache does not answer.
func TestEveryFieldCrosses(t *testing.T) {
	limittest.Crossing{Wrap: func(inner store.Store) store.Store { return open(t, inner, denycache.Config{}) }}.Run(t)
}
