package dipwell_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

func TestBurstCredit(t *testing.T) {
	for _, c := range []struct {
		rate        int64
		per, credit time.Duration
		burst       int64
	}{
		{100, time.Second, 300 * time.Second, 30_000},
		{1, time.Hour, time.Second, 1},
		{store.MaxInt, time.Microsecond, time.Hour, store.MaxInt},
	} {
		if l := dipwell.BurstCredit("c", c.rate, c.per, c.credit); l.Burst != c.burst || l.Rate != c.rate || l.Period != c.per {
			t.Errorf("%d per %v with a credit of %v: %+v, want a burst of %d", c.rate, c.per, c.credit, l, c.burst)
		}
	}
}
