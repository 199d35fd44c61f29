package keyhash_test

import (
	"testing"

	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestAgreesWithModel plays random histories of plans, overrides and holds. Only the
// ops of a hold that is settled have hashes.
func TestAgreesWithModel(t *testing.T) {
	h, err := keyhash.NewHasher(secret)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(20) {
		now := int64(1e15)
		s := keyhash.New(limittest.NewModel(func() int64 { return now }), h)
		limittest.Agree(t, s, &now, seed, 300, limittest.Differences{Answers: func(call *limittest.Call, got, want *store.Group) {
			for i := range want.Ops {
				if op := &want.Ops[i]; call.Group.Settles() && op.Key != "" {
					op.Key = h.Hash(op.Def.Name, op.Key)
				}
			}
		}})
	}
}
