package server

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// A verbCall is the verb that a path calls.
type verbCall struct {
	verb    store.Verb
	needs   Role
	members members // members of its request
}

// membersOf returns the members of a verb's request.
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

// call answers POST /v1/{verb}.
func (a *api) call(w http.ResponseWriter, r *http.Request, c *verbCall) error {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		httplimit.Problem(w, http.StatusMethodNotAllowed, "", notAllowed(r.Method, http.MethodPost))
		return nil
	}
	if r = a.admitted(w, r, c.needs); r == nil {
		return nil
	}
	x := exchanges.Get().(*exchange)
	defer x.free()
	if err := a.read(w, r, x, c.members); err != nil {
		return err
	}
	start := time.Now()
	err := a.decide(r.Context(), c.verb, &x.d, &x.req)
	a.metrics.observe(r.Context(), c.verb, &x.d, err, time.Since(start))
	if err != nil {
		return err
	}
	if x.req.has(hasNote) {
		t := &x.req.take // use t, not x.d, which may describe a parent
		e := store.AuditEntry{Action: c.verb.String(), Limit: t.Limit, Key: t.Key, Note: x.req.note}
		if c.verb == store.VerbRefund {
			e.What = strconv.FormatInt(x.d.Cost, 10) + " tokens"
		}
		a.record(r, e)
	}
	return a.answer(w, x)
}

// timed decides a call, and counts the decision.
func (a *api) timed(ctx context.Context, verb store.Verb, d *dipwell.Decision, q *request) error {
	start := time.Now()
	err := a.decide(ctx, verb, d, q)
	a.metrics.observe(ctx, verb, d, err, time.Since(start))
	return err
}

func (a *api) decide(ctx context.Context, verb store.Verb, d *dipwell.Decision, q *request) error {
	if q.has(hasTakes) {
		return a.limiter.DoAll(ctx, d, verb, q.takes)
	}
	return a.limiter.Do(ctx, d, verb, q.take)
}

var jsonType = []string{"application/json"}

// answer writes a decision, with status 200 or 429.
func (a *api) answer(w http.ResponseWriter, x *exchange) error {
	a.live.Load().Headers.Set(w.Header(), &x.d)
	if !x.d.Allowed {
		return refuse(w, &x.d, http.StatusTooManyRequests)
	}
	x.out = append(x.d.AppendMembers(append(x.out[:0], '{')), '}', '\n')
	return writeJSON(w, http.StatusOK, x.out)
}

// exchange reads the request of a call with members m, lets do make its decision, and
// answers it.
func (a *api) exchange(w http.ResponseWriter, r *http.Request, m members, do func(context.Context, *exchange) error, answer func(http.ResponseWriter, *exchange) error) error {
	x := exchanges.Get().(*exchange)
	defer x.free()
	err := a.read(w, r, x, m)
	if err == nil {
		err = do(r.Context(), x)
	}
	switch {
	case err == nil:
		return answer(w, x)
	case r.Context().Err() != nil: // the client has gone
		return nil
	}
	return err
}

// cancel answers POST /v1/cancel.
func (a *api) cancel(w http.ResponseWriter, r *http.Request) error {
	return a.exchange(w, r, ofCancel, func(ctx context.Context, x *exchange) error {
		var id dipwell.Reservation
		err := id.UnmarshalText([]byte(x.req.reservation))
		x.req.reservation = id.String()
		if err == nil {
			err = a.limiter.Cancel(ctx, id)
		}
		return err
	}, func(w http.ResponseWriter, x *exchange) error {
		return writeJSON(w, http.StatusOK, []byte(`{"cancelled":true,"reservation":"`+x.req.reservation+"\"}\n"))
	})
}
