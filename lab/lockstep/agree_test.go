package lockstep

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
)

// TestAgreesWithModel plays random histories of plans, floors, overrides, holds,
// concurrency and levels on every store. DIPWELL_LONG=1 plays more of them.
func TestAgreesWithModel(t *testing.T) {
	seeds, steps := uint64(4), 250
	if os.Getenv("DIPWELL_LONG") != "" {
		seeds, steps = 60, 1000
	}
	for _, s := range stores {
		for seed := range seeds {
			t.Run(fmt.Sprint(s.name, " ", seed), func(t *testing.T) {
				t.Parallel()
				now := epoch
				limittest.Agree(t, s.open(t, func() int64 { return atomic.LoadInt64(&now) }), &now, seed, steps, limittest.Differences{Sweeps: s.sweeps})
			})
		}
	}
}
