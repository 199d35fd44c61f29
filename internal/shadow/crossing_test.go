package shadow_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/shadow"
	"github.com/dipwell/dipwell/store"
)

// TestEveryFieldCrosses checks calls that the inner store allows.
func TestEveryFieldCrosses(t *testing.T) {
	limittest.Crossing{Wrap: func(inner store.Store) store.Store { return shadow.New(inner) }, Allows: true}.Run(t)
}
