package main

import (
	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/denycache"
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
