package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

// tally counts what a store was asked.
type tally struct {
	batches, calls, errors atomic.Uint64
	full                   atomic.Pointer[full]
	sizes, took            prometheus.Histogram
}

// full is a call that found the store without space.
type full struct {
	why error
	at  time.Time
}

// fullFor is how long /readyz is 503 after such a call: only a call that writes
// can tell, and not each of them needs space.
const fullFor = 10 * time.Second

// spaceless says why the store took no new rows lately, or nil.
func (t *tally) spaceless() error {
	if f := t.full.Load(); f != nil && time.Since(f.at) < fullFor {
		return f.why
	}
	return nil
}

// open makes the histograms, before anything is counted.
func (t *tally) open() {
	t.sizes = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dipwell_store_batch_size",
		Help: "Calls that went to the store together.", Buckets: prometheus.ExponentialBuckets(1, 2, 13)})
	t.took = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dipwell_store_batch_seconds",
		Help: "How long the store took for a batch.", Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18)})
}

// gauges puts the counts on /metrics.
func (t *tally) gauges(s *server.Server) {
	for _, c := range []struct {
		name, help string
		n          *atomic.Uint64
	}{
		{"dipwell_store_batches_total", "Batches sent to the store, each of calls that waited together.", &t.batches},
		{"dipwell_store_calls_total", "Calls in those batches; divided by the batches it is how many ride together.", &t.calls},
		{"dipwell_store_failed_calls_total", "Calls in those batches that the store could not decide.", &t.errors},
	} {
		s.Counter(c.name, c.help, func() float64 { return float64(c.n.Load()) })
	}
	s.Collect(t.sizes)
	s.Collect(t.took)
}

// abilities are those of a store and of the decorators in front of it.
func (t *tally) abilities(all, base, front dipwell.Store) store.Abilities {
	ab, around := store.AbilitiesOf(base), store.AbilitiesOf(front)
	ready := ab.Ready
	ab.Ready = func(ctx context.Context) error {
		if err := around.Ready(ctx); err != nil {
			return err
		}
		if err := t.spaceless(); err != nil {
			return err
		}
		return ready(ctx)
	}
	ab.AddMetrics(around.Metrics)
	ab.Store, ab.Quick = all, nil
	return ab
}

// counted is a store that is counted.
type counted struct {
	dipwell.Store
	*tally
}

func (c *counted) Apply(ctx context.Context, b *store.Batch) error {
	start := time.Now()
	c.batches.Add(1)
	c.calls.Add(uint64(len(b.Groups)))
	c.sizes.Observe(float64(len(b.Groups)))
	err := c.Store.Apply(ctx, b)
	c.took.Observe(time.Since(start).Seconds())
	for i := range b.Groups {
		why := b.Groups[i].Err
		if (err != nil || errors.Is(why, dipwell.ErrStore)) && !errors.Is(why, dipwell.ErrLocked) { // those are asked again
			c.errors.Add(1)
		}
		if why != nil && errors.Is(why, dipwell.ErrNoSpace) {
			c.full.Store(&full{why, time.Now()})
		}
	}
	return err
}

// Unwrap lets abilities be found.
func (c *counted) Unwrap() dipwell.Store { return c.Store }

// gauges puts what the store tells of itself on /metrics.
func (p *postgres) gauges(s *server.Server) {
	p.tally.gauges(s)
	p.sweepGauges(s)
	s.Gauge("dipwell_store_connections", "Open connections to the store.", func() float64 { return float64(p.connections()) })
}
