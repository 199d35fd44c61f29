package lease_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/lease"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestEveryFieldCrosses checks calls that no lease answers.
func TestEveryFieldCrosses(t *testing.T) {
	limittest.Crossing{Wrap: func(inner store.Store) store.Store { return open(t, inner, lease.Config{}) }}.Run(t)
}
