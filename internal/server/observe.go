package server

import (
	"math"
	"net/http"
	"time"
)

// An observation is the body of a call of /v1/observe.
type observation struct {
	latency int64 // µs
	ok      bool
	count   int64
}

// observe answers POST /v1/observe, which reports how calls behind an adaptive limit went.
// It needs no admin right: whoever may take from a limit may also report what happened.
func (a *api) observe(w http.ResponseWriter, _ *http.Request, x *exchange) error {
	o := &x.req.observed
	if !x.req.has(hasOK) {
		o.ok = true
	}
	if !x.req.has(hasCount) {
		o.count = 1
	}
	took := time.Duration(min(o.latency, math.MaxInt64/1000)) * time.Microsecond
	err := a.limiter.Observe(x.req.take.Limit, took, o.ok, o.count)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
