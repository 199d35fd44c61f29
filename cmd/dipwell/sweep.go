package main

import (
	"time"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/pgstore"
)

// startSweeping deletes full rows regularly, until Close.
func (p *postgres) startSweeping(report func(error)) {
	p.janitor = pgstore.NewJanitor(p.Store, report)
	p.close = append(p.close, p.janitor.Close)
}

// sweepGauges puts on /metrics what the janitor does.
func (p *postgres) sweepGauges(s *server.Server) {
	counter := func(name, help string, f func(pgstore.JanitorStats) float64) {
		s.Counter(name, help, func() float64 { return f(p.janitor.Stats()) })
	}
	counter("dipwell_store_sweep_rows_total", "Full rows that this service deleted.", func(j pgstore.JanitorStats) float64 { return float64(j.Rows) })
	counter("dipwell_store_sweep_seconds_total", "Time that this service's sweeps took in the store.", func(j pgstore.JanitorStats) float64 { return j.Spent.Seconds() })
	counter("dipwell_store_sweep_passes_total", "Passes over the table that this service's sweeps ended.", func(j pgstore.JanitorStats) float64 { return float64(j.Passes) })
	s.Gauge("dipwell_store_sweep_lag_seconds", "Since the last whole pass over the table began, whoever made it: rows that were full before are deleted. 0 before the first.",
		func() float64 {
			if since := p.janitor.Stats().Covered; !since.IsZero() {
				return time.Since(since).Seconds()
			}
			return 0
		})
}
