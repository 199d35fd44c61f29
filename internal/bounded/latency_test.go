package bounded

import (
	"math"
	"testing"
	"time"
)

// Every duration lies in its own step, and no step is wider than 1/32.
func TestSteps(t *testing.T) {
	for _, ns := range []uint64{1, 63, 64, 65, 127, 128, 1000, 1e6, 1e9, 1e12, 1<<40 - 1, 1 << 40} {
		i := bin(ns)
		if end := uint64(binEnd(i)); end < ns || float64(end-ns) > math.Ceil(float64(ns)/steps) {
			t.Errorf("%d ns is in step %d that ends at %d", ns, i, end)
		}
		if i > 0 && uint64(binEnd(i-1)) >= ns {
			t.Errorf("%d ns is in step %d, but the one before ends at %d", ns, i, binEnd(i-1))
		}
	}
}

func TestPercentile(t *testing.T) {
	var h, other Histogram
	for i := range 1000 {
		other.Record(time.Duration(i+1) * time.Microsecond)
	}
	h.Add(&other)
	h.Record(time.Hour)
	for _, c := range []struct{ p, want float64 }{{0, 1}, {50, 501}, {99, 991}, {99.99, Micro(time.Hour)}} {
		if got := h.Percentile(c.p); got < c.want || got > c.want*(1+1.0/steps)+1 {
			t.Errorf("p%v is %v, want about %v", c.p, got, c.want)
		}
	}
	if h.Count != 1001 || h.Most != time.Hour || new(Histogram).Percentile(50) != 0 {
		t.Error(h.Count, h.Most)
	}
}
