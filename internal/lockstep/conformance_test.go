package lockstep

import (
	"os"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/storetest"
)

// TestConformance is the suite, the regression table and golden vectors
// included, on every store under every decorator: in brief, but for
// DIPWELL_LONG=1. The stores' own packages have it without decorators at length.
func TestConformance(t *testing.T) {
	much := storetest.Brief
	if os.Getenv("DIPWELL_LONG") != "" {
		much = storetest.Quick
	}
	for _, s := range stores {
		for _, d := range decorators {
			t.Run(s.name+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
					t.Helper()
					return d.wrap(t, s.open(t, now), now)
				}, much)
			})
		}
	}
}
