package lockstep

import (
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/storetest"
)

// TestConformance is the suite, the regression table and golden vectors
// included, on every store under every decorator. The stores' own packages have
// it at full length.
func TestConformance(t *testing.T) {
	for _, s := range stores {
		for _, d := range decorators {
			t.Run(s.name+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, func(t testing.TB, now func() int64) dipwell.Store {
					t.Helper()
					return d.wrap(t, s.open(t, now), now)
				}, storetest.Brief)
			})
		}
	}
}
