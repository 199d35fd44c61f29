package server

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell/internal/bounded"
)

// bucketCount is the number of buckets of a histogram. Bucket i counts durations up to
// 2^(8+i) ns, from 256 ns to 8.6 s, and the last one all longer ones.
const bucketCount = 26

// A histogram counts durations. It has a copy for each processor.
type histogram struct {
	copies bounded.Copies[histogramCopy]
}

type histogramCopy struct {
	buckets [bucketCount]atomic.Uint64
	ns      atomic.Uint64 // sum of all durations
	_       [40]byte      // padding to a multiple of a cache line
}

func newHistogram() histogram { return histogram{bounded.NewCopies[histogramCopy]()} }

func (h *histogram) observe(d time.Duration) {
	i := max(bits.Len64(uint64(max(d, 1)-1)), 8) - 8
	c := h.copies.Mine()
	c.buckets[min(i, bucketCount-1)].Add(1)
	c.ns.Add(uint64(max(d, 1)))
}

// durations are the counts of a histogram at one time.
type durations struct {
	buckets [bucketCount]uint64
	ns      uint64
}

func (h *histogram) sum() (d durations) {
	for i := range h.copies {
		c := &h.copies[i]
		for j := range d.buckets {
			d.buckets[j] += c.buckets[j].Load()
		}
		d.ns += c.ns.Load()
	}
	return d
}

func (d *durations) metric(labels ...string) prometheus.Metric {
	bounds := make(map[float64]uint64, bucketCount)
	var count uint64
	for i, n := range d.buckets {
		count += n
		if i < bucketCount-1 {
			bounds[float64(uint64(1)<<(8+i))/1e9] = count
		}
	}
	return prometheus.MustNewConstHistogram(descTook, count, float64(d.ns)/1e9, bounds, labels...)
}
