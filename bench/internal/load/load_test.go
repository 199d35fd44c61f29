package load

import (
	"math"
	"testing"
	"time"
)

// Every duration lies in its own step, and no step is wider than 1/32.
func TestHistogramSteps(t *testing.T) {
	for _, ns := range []uint64{1, 63, 64, 65, 127, 128, 1000, 1e6, 1e9, 1e12, 1<<40 - 1, 1 << 40} {
		i := bin(ns)
		if end := binEnd(i); end < ns || float64(end-ns) > math.Ceil(float64(ns)/steps) {
			t.Errorf("%d ns is in step %d that ends at %d", ns, i, end)
		}
		if i > 0 && binEnd(i-1) >= ns {
			t.Errorf("%d ns is in step %d, but the one before ends at %d", ns, i, binEnd(i-1))
		}
	}
}

func TestPercentile(t *testing.T) {
	var h Histogram
	for i := range 1000 {
		h.Record(time.Duration(i+1) * time.Microsecond)
	}
	for _, c := range []struct{ p, want float64 }{{50, 500}, {99, 990}, {0, 1}} {
		if got := h.Percentile(c.p); math.Abs(got-c.want) > c.want/steps+1 {
			t.Errorf("p%v is %v, want about %v", c.p, got, c.want)
		}
	}
}
