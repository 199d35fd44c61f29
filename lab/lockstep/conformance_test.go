package lockstep

import (
	"os"
	"testing"

	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestConformance runs the suite on every store under every decorator: on memory under each
// one alone, on all stores under all of them together, and on PostgreSQL and one Redis server
// under coalesce too, which makes their batches. With DIPWELL_LONG=1 it runs every store under
// each decorator alone, and more of each case. The packages of the stores run more of it,
// without decorators.
func TestConformance(t *testing.T) {
	long := os.Getenv("DIPWELL_LONG") != ""
	for _, s := range stores {
		for _, d := range decorators {
			if alone := s.alone || d.name == "coalesce" && (s.name == "pgstore" || s.name == "redisstore"); d.name != "all" && !alone && !long {
				continue
			}
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
