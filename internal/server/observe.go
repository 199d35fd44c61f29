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
	took := time.Duration(min(o.latency, math.MaxInt64/1000)) * time.Microsecond
	err := a.limiter.Observe(x.req.take.Limit, took, o.ok, o.count)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// completeObservation sets the defaults of a call of /v1/observe: one call, which
// succeeded.
func (q *request) completeObservation() error {
	switch {
	case !q.has(hasLimit):
		return bad("limit", "is missing")
	case !q.has(hasLatency):
		return bad("latency_us", "is missing")
	}
	if !q.has(hasOK) {
		q.observed.ok = true
	}
	if !q.has(hasCount) {
		q.observed.count = 1
	}
	return nil
}
