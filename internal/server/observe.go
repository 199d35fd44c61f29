package server

import (
	"math"
	"net/http"
	"time"
)

// observe answers POST /v1/observe, which reports how calls behind an adaptive limit went.
// It needs no admin right: whoever may take from a limit may also report what happened.
func (a *api) observe(w http.ResponseWriter, _ *http.Request, x *exchange) error {
	q := &x.req
	ok := q.ok || !q.has(hasOK)
	if !q.has(hasCount) {
		q.count = 1
	}
	took := time.Duration(min(q.latency, math.MaxInt64/1000)) * time.Microsecond
	err := a.limiter.Observe(q.take.Limit, took, ok, q.count)
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
