package bounded

import (
	"math/bits"
	"time"
)

// A Histogram counts durations in bins of at most 1/32 of their value.
type Histogram struct {
	Count int
	Most  time.Duration // the longest duration
	bins  [64 * steps]int
}

const steps = 32

func (h *Histogram) Record(d time.Duration) {
	h.Count++
	h.Most = max(h.Most, d)
	h.bins[bin(uint64(max(d, 1)))]++
}

func bin(ns uint64) int {
	if ns < 2*steps {
		return int(ns)
	}
	shift := bits.Len64(ns) - 6
	return shift*steps + int(ns>>shift)
}

// binEnd returns the longest duration in a bin.
func binEnd(i int) time.Duration {
	if i < 2*steps {
		return time.Duration(i)
	}
	shift := i/steps - 1
	return time.Duration(uint64(i-shift*steps+1)<<shift - 1)
}

func (h *Histogram) Add(o *Histogram) {
	h.Count, h.Most = h.Count+o.Count, max(h.Most, o.Most)
	for i, n := range o.bins {
		h.bins[i] += n
	}
}

// Percentile returns a percentile in µs. The percentile may be too high by a bin,
// but is never above Most. The percentile is 0 if the histogram is empty.
func (h *Histogram) Percentile(p float64) float64 {
	left := int(float64(h.Count) * p / 100)
	for i, n := range h.bins {
		if left -= n; left < 0 {
			return Micro(min(binEnd(i), h.Most))
		}
	}
	return 0
}

// Micro returns a duration in µs.
func Micro(d time.Duration) float64 { return float64(d) / 1e3 }
