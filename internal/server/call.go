package server

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

func membersOf(v store.Verb) members {
	switch {
	case v >= store.VerbRefund:
		return ofBucket | hasNote
	case v > store.VerbReserve:
		return ofBucket
	case v == store.VerbTakeUpTo:
		return ofTake
	}
	return ofTake | hasTakes
}

// An exchange has the buffers of a call. It comes from a pool.
type exchange struct {
	in  []byte
	out []byte
	req request
	d   dipwell.Decision

	verb store.Verb // of the route
}

var exchanges = sync.Pool{New: func() any {
	return &exchange{in: make([]byte, 0, 512), out: make([]byte, 0, 512)}
}}

// keepBuffer is the largest buffer that is returned to the pool.
const keepBuffer = 4 << 10

func (x *exchange) free() {
	if cap(x.in) > keepBuffer || cap(x.out) > keepBuffer {
		return
	}
	x.req, x.d = request{}, dipwell.Decision{}
	exchanges.Put(x)
}

// decided answers POST /v1/{verb}, which timed has decided.
func (a *api) decided(w http.ResponseWriter, r *http.Request, x *exchange) error {
	if x.req.has(hasNote) {
		t := &x.req.take // use t, not x.d, which may describe a parent
		e := store.AuditEntry{Action: x.verb.String(), Limit: t.Limit, Key: t.Key, Note: x.req.note}
		if x.verb == store.VerbRefund {
			e.What = strconv.FormatInt(x.d.Cost, 10) + " tokens"
		}
		a.record(r, e)
	}
	return a.answer(w, x, nil)
}

// timed decides a call, and counts the decision.
func (a *api) timed(ctx context.Context, verb store.Verb, d *dipwell.Decision, q *request) (err error) {
	start := time.Now()
	if q.has(hasTakes) {
		err = a.limiter.DoAll(ctx, d, verb, q.takes)
	} else {
		err = a.limiter.Do(ctx, d, verb, q.take)
	}
	a.metrics.observe(ctx, verb, d, err, time.Since(start))
	return err
}

var jsonType = []string{"application/json"}

// answer writes a decision, with status 200 or 429, unless there was an error.
func (a *api) answer(w http.ResponseWriter, x *exchange, err error) error {
	if err != nil {
		return err
	}
	a.live.Load().Headers.Set(w.Header(), &x.d)
	if !x.d.Allowed {
		return refuse(w, &x.d, http.StatusTooManyRequests)
	}
	x.out = append(x.d.AppendMembers(append(x.out[:0], '{')), '}', '\n')
	return writeJSON(w, http.StatusOK, x.out)
}

func (a *api) cancel(w http.ResponseWriter, r *http.Request, x *exchange) error {
	var id dipwell.Reservation
	err := id.UnmarshalText([]byte(x.req.reservation))
	if err == nil {
		err = a.limiter.Cancel(r.Context(), id)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, []byte(`{"cancelled":true,"reservation":"`+id.String()+"\"}\n"))
}

// quotaExceeded is the problem type of a refusal.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// refuse answers a refused call with a problem document of the type quota-exceeded, which
// lists the limits that refused and has the members of the decision's JSON object.
func refuse(w http.ResponseWriter, d *dipwell.Decision, status int) error {
	front.Problem(w, status, func(b []byte) []byte { return appendRefusal(b, d, status) })
	return nil
}

// appendRefusal appends the problem document of a refusal.
func appendRefusal(b []byte, d *dipwell.Decision, status int) []byte {
	b = append(b, `{"type":"`+quotaExceeded+`","title":"Request cannot be satisfied as assigned quota has been exceeded","status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	if d.Never {
		b = append(b, `,"detail":"`...)
		if front.Blocked(d) {
			b = append(b, `the key is blocked`...)
		} else {
			b = append(b, `the call asks for more than the limit could ever hold`...)
		}
		b = append(b, `; no wait will help"`...)
	}
	b = append(b, `,"violated-policies":[`...)
	first := true
	for e := range front.Refused(d) {
		if !first {
			b = append(b, ',')
		}
		b, first = texts.AppendJSON(b, e.Limit), false
	}
	return append(d.AppendMembers(append(b, `],`...)), '}')
}
