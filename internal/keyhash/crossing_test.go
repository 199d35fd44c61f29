package keyhash_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestEveryFieldCrosses checks that the decorator changes keys alone.
func TestEveryFieldCrosses(t *testing.T) {
	h, err := keyhash.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	limittest.Crossing{Wrap: func(inner store.Store) store.Store { return keyhash.New(inner, h) }, Changes: []string{"Op.Key", "Op.Phase", "Override.Key"}}.Run(t)
}
