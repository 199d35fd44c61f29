package server

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// histogram counts durations in buckets whose bounds are powers of two, from 256 ns
// to 8.6 s.
type histogram struct {
	buckets [26]atomic.Uint64 // up to 2^(8+i) ns; the last without a bound
	sum     atomic.Uint64     // ns
}

func (h *histogram) observe(d time.Duration) {
	i := max(bits.Len64(uint64(max(d, 1)-1)), 8) - 8
	h.buckets[min(i, len(h.buckets)-1)].Add(1)
	h.sum.Add(uint64(max(d, 1)))
}

func (h *histogram) metric(labels ...string) prometheus.Metric {
	bounds := make(map[float64]uint64, len(h.buckets))
	var count uint64
	for i := range h.buckets {
		count += h.buckets[i].Load()
		if i < len(h.buckets)-1 {
			bounds[float64(uint64(1)<<(8+i))/1e9] = count
		}
	}
	return prometheus.MustNewConstHistogram(descTook, count, float64(h.sum.Load())/1e9, bounds, labels...)
}
