package pgstore_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// TestSQLAgreesWithModel plays random histories of plans, overrides, holds,
// reservations and changed limits through the SQL functions. DIPWELL_LONG=1 plays more of
// them; DIPWELL_SEEDS=50-80 and DIPWELL_STEPS=400 choose which, and how long they are.
func TestSQLAgreesWithModel(t *testing.T) {
	seeds, steps := uint64(4), 250
	if os.Getenv("DIPWELL_LONG") != "" {
		seeds, steps = 40, 1000
	}
	first := uint64(0)
	if n, _ := fmt.Sscanf(os.Getenv("DIPWELL_SEEDS"), "%d-%d", &first, &seeds); n == 2 {
		seeds += 1 - first
	}
	_, _ = fmt.Sscan(os.Getenv("DIPWELL_STEPS"), &steps)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			now := int64(1_800_000_000_000_000)
			limittest.Agree(t, openSQL(t, func() int64 { return now }), &now, seed, steps, limittest.Differences{Whole: true, Answers: func(_ *limittest.Call, got, want *store.Group) {
				for i := range min(len(got.Ops), len(want.Ops)) {
					if got.Ops[i].TS == 0 { // the functions do not return Bound
						want.Ops[i].Bound = got.Ops[i].Bound
					}
				}
			}})
		})
	}
}
