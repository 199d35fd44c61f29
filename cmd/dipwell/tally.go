package main

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

const failedEvery = 10 * time.Second // the shortest time between two logged errors of calls

// tally counts the batches that go to a store, and reports why calls fail.
type tally struct {
	report   func(error)  // called at most once in failedEvery
	reported atomic.Int64 // when report was last called, in Unix ns

	sizes, took prometheus.Histogram
	failures    prometheus.Counter
}

func newTally(report func(error)) *tally {
	return &tally{report: report,
		sizes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dipwell_store_batch_size",
			Help: "Calls that went to the store together.", Buckets: prometheus.ExponentialBuckets(1, 2, 13)}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dipwell_store_batch_seconds",
			Help: "How long the store took for a batch.", Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18)}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "dipwell_store_failed_calls_total",
			Help: "Calls in those batches that the store could not decide."}),
	}
}

// Calls of locked rows do not count as failures, because they are retried.
func (t *tally) count(b *store.Batch, took time.Duration, err error) {
	t.sizes.Observe(float64(len(b.Groups)))
	t.took.Observe(took.Seconds())
	for i := range b.Groups {
		why := b.Groups[i].Err
		if (err != nil || errors.Is(why, dipwell.ErrStore)) && !errors.Is(why, store.ErrLocked) {
			t.failures.Inc()
			t.failed(cmp.Or(why, err))
		}
	}
}

// failed reports an error, unless the caller has gone, or an error was reported just now.
// A caller is only told that the store cannot answer.
func (t *tally) failed(why error) {
	if errors.Is(why, context.Canceled) {
		return
	}
	last, now := t.reported.Load(), time.Now().UnixNano()
	if (last == 0 || now-last >= int64(failedEvery)) && t.reported.CompareAndSwap(last, now) {
		t.report(why)
	}
}
