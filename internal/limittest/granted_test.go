package limittest_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/dipwell/dipwell/internal/limittest"
)

// TestMostGranted compares MostGranted with all pairs of instants.
func TestMostGranted(t *testing.T) {
	for range 200 {
		var grants []limittest.Grant
		for range 1 + rand.IntN(40) {
			at := rand.Int64N(100)
			grants = append(grants, limittest.Grant{Asked: at, Answered: at + rand.Int64N(10)})
		}
		rate, want := rand.Float64(), 0.0
		for from := range int64(101) {
			for to := from; to < 111; to++ {
				n := 0.0
				for _, g := range grants {
					if g.Asked >= from && g.Answered <= to {
						n++
					}
				}
				want = max(want, n-rate*float64(to-from))
			}
		}
		if got := limittest.MostGranted(grants, rate); math.Abs(got-want) > 1e-6 {
			t.Fatalf("%v at %v: %v, want %v", grants, rate, got, want)
		}
	}
}
