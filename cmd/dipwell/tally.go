package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/server"
)

// tally counts what a store was asked.
type tally struct {
	batches, calls, errors, swept atomic.Uint64
}

// counted is a store that is counted.
type counted struct {
	dipwell.Store
	*tally
}

func (c *counted) Apply(ctx context.Context, b *dipwell.Batch) error {
	c.batches.Add(1)
	c.calls.Add(uint64(len(b.Groups)))
	err := c.Store.Apply(ctx, b)
	for i := range b.Groups {
		if err != nil || errors.Is(b.Groups[i].Err, dipwell.ErrStore) {
			c.errors.Add(1)
		}
	}
	return err
}

// Unwrap lets abilities be found.
func (c *counted) Unwrap() dipwell.Store { return c.Store }

// gauges puts what the store tells of itself on /metrics.
func (p *postgres) gauges(s *server.Server) {
	for _, c := range []struct {
		name, help string
		n          *atomic.Uint64
	}{
		{"dipwell_store_batches_total", "Batches sent to the store, each of calls that waited together.", &p.batches},
		{"dipwell_store_calls_total", "Calls in those batches; divided by the batches it is how many ride together.", &p.calls},
		{"dipwell_store_failed_calls_total", "Calls in those batches that the store could not decide.", &p.errors},
		{"dipwell_swept_rows_total", "Full rows that this service deleted.", &p.swept},
	} {
		s.Counter(c.name, c.help, func() float64 { return float64(c.n.Load()) })
	}
	s.Gauge("dipwell_store_connections", "Open connections to the store.", func() float64 { return float64(p.connections()) })
}
