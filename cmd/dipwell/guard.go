package main

import (
	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/server"
)

// newBreaker puts a breaker around a store outside this process. What it does
// is in the log, on /metrics and in /readyz.
func newBreaker(s dipwell.Store, o storeOptions) (*breaker.Store, error) {
	return breaker.New(s, breaker.Config{OnChange: func(why error) {
		switch {
		case why != nil:
			o.report(why)
		case o.note != nil:
			o.note("it answers again")
		}
	}})
}

// withDenyCache answers known refusals without the store, unless that is switched off.
func withDenyCache(s dipwell.Store, o storeOptions) (dipwell.Store, error) {
	if o.denyMaxAge < 0 {
		return s, nil
	}
	return denycache.New(s, denycache.Config{MaxAge: o.denyMaxAge})
}

// denyGauges puts what a deny cache counts on /metrics, where there is one.
func denyGauges(s *server.Server, front dipwell.Store) {
	d, ok := front.(*denycache.Store)
	if !ok {
		return
	}
	s.Counter("dipwell_deny_cache_hits_total", "Lookups that found a refusal which could be believed.", func() float64 { return float64(d.Stats().Hits) })
	s.Counter("dipwell_deny_cache_misses_total", "Other lookups for calls that could have been refused.", func() float64 { return float64(d.Stats().Misses) })
	s.Counter("dipwell_deny_cache_refusals_total", "Calls refused by a refusal that was remembered.", func() float64 { return float64(d.Stats().Refused) })
	s.Gauge("dipwell_deny_cache_keys", "Refusals in memory.", func() float64 { return float64(d.Stats().Keys) })
}

// breakerGauges puts a breaker's state on /metrics.
func breakerGauges(s *server.Server, b *breaker.Store) {
	s.Gauge("dipwell_store_breaker_open", "1: the store does not answer, and calls are answered at once by their failure mode.", func() float64 {
		if b.Open() {
			return 1
		}
		return 0
	})
	s.Counter("dipwell_store_breaker_calls_total", "Calls that were not sent because the breaker was open.", func() float64 { return float64(b.Refused()) })
}
