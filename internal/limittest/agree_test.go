package limittest_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
)

func TestModelAgreesWithItself(t *testing.T) {
	for seed := range uint64(50) {
		now := int64(1e15)
		limittest.Agree(t, limittest.NewModel(func() int64 { return now }), &now, seed, 300, limittest.Differences{})
	}
}
