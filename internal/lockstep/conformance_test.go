package lockstep

import (
	"os"
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestConformance runs the suite on every store under every decorator, in its
// short form unless DIPWELL_LONG=1. The packages of the stores run more of it,
// without decorators.
func TestConformance(t *testing.T) {
	long := os.Getenv("DIPWELL_LONG") != ""
	for _, s := range stores {
		for _, d := range decorators {
			t.Run(s.name+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
					t.Helper()
					return d.wrap(t, s.open(t, now), now)
				}, storetest.Options{Quick: long, Brief: !long})
			})
		}
	}
}
