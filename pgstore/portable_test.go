package pgstore_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/pgstore"
)

// TestPortableAgreesWithModel plays random histories of plans, overrides, holds,
// reservations and changed limits.
func TestPortableAgreesWithModel(t *testing.T) {
	for seed := range uint64(8) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			now := int64(1e15)
			s := newStore(t, portablePool(t), pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
			limittest.Agree(t, s, &now, seed, 400, nil)
		})
	}
}
