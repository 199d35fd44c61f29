package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

func (a *api) hold(w http.ResponseWriter, r *http.Request, x *exchange) error {
	err := a.doHold(r.Context(), &x.d, &x.req)
	if errors.Is(err, dipwell.ErrHoldConflict) {
		err = conflictOfID{err}
	}
	return a.answer(w, x, err)
}

// conflictOfID is an ErrHoldConflict about the member "id", and not "hold".
type conflictOfID struct{ error }

var errOfID = errors.New("the id is taken")

func (conflictOfID) Is(class error) bool { return class == errOfID }

func (s *Server) doHold(ctx context.Context, d *dipwell.Decision, q *request) (err error) {
	*d, err = s.limiter.Hold(ctx, q.ttl, q.id, q.all()...)
	s.metrics.counted(d, err, usesCall)
	return q.inList(err)
}

// inList returns the error of a call with takes. If there is only one, the error names takes[0].
func (q *request) inList(err error) error {
	if !q.has(hasTakes) || len(q.takes) != 1 {
		return err
	}
	f, ok := errors.AsType[*dipwell.FieldError](err)
	if !ok && errors.Is(err, dipwell.ErrUnknownLimit) {
		f, ok = &dipwell.FieldError{Field: "limit", Reason: err.Error(), Err: err}, true
	}
	if !ok || ofTake.member(f.Field) == 0 {
		return err
	}
	in := *f
	in.Field = takesPath(0) + f.Field
	return &in
}

func (a *api) settle(w http.ResponseWriter, r *http.Request, x *exchange) error {
	err := a.doSettle(r.Context(), &x.d, &x.req)
	if err == nil && x.req.has(hasNote) && !x.d.Repeated {
		a.recordSettle(r, x)
	}
	return a.answerHold(w, x, err)
}

// recordSettle records a settle, for each limit that the caller named.
func (a *api) recordSettle(r *http.Request, x *exchange) {
	parts := x.d.Limits
	if parts == nil {
		parts = []dipwell.Decision{x.d}
	}
	parents := map[string]bool{} // which are charged with their children
	for _, d := range parts {
		parents[d.Definition.Base().Parent] = true
	}
	for _, d := range parts {
		if !parents[d.Limit] {
			a.record(r, store.AuditEntry{Action: "settle", Limit: d.Limit, Key: d.Key, What: fmt.Sprintf("hold %s, %d tokens", x.req.hold, d.Granted), Note: x.req.note})
		}
	}
}

func (a *api) extend(w http.ResponseWriter, r *http.Request, x *exchange) error {
	return a.answerHold(w, x, a.doExtend(r.Context(), &x.d, &x.req))
}

// answerHold writes the decision about a hold, with status 200 even if the bucket is in debt.
func (a *api) answerHold(w http.ResponseWriter, x *exchange, err error) error {
	if err != nil {
		return err
	}
	a.live.Load().Headers.Set(w.Header(), &x.d)
	return allowed(w, &x.d)
}

func (s *Server) doSettle(ctx context.Context, d *dipwell.Decision, q *request) (err error) {
	*d, err = s.limiter.Settle(ctx, q.hold, q.costs...)
	s.metrics.counted(d, err, usesSettled)
	return q.ofHold(err)
}

func (s *Server) doExtend(ctx context.Context, d *dipwell.Decision, q *request) (err error) {
	*d, err = s.limiter.Extend(ctx, q.hold, q.ttl)
	s.metrics.counted(d, err, usesNothing)
	return q.ofHold(err)
}

// ofHold changes an error about the id of a hold so that it names the member "hold", and
// one about the only cost so that it names the member that has the cost.
func (q *request) ofHold(err error) error {
	switch f, ok := errors.AsType[*dipwell.FieldError](err); {
	case ok && f.Field == "id":
		return bad("hold", f.Reason)
	case ok && f.Field == "cost" && q.has(hasCosts):
		return bad("costs[0]", f.Reason)
	case ok && f.Field == "costs" && q.has(hasCost):
		return bad("cost", "is of one take, but the hold is of several: give costs")
	}
	return err
}

func (a *api) holds(w http.ResponseWriter, r *http.Request, q *query) error {
	key, err := q.bucket()
	var holds []store.KeyHold
	if err == nil {
		holds, err = a.limiter.Holds(r.Context(), r.PathValue("name"), key)
	}
	return answerJSON(w, map[string]any{"holds": holdsOf(holds)}, err)
}

type LiveHold struct {
	Hold    string `json:"hold"`
	Tokens  int64  `json:"tokens"`
	Expires int64  `json:"expires_us"`
}

func holdsOf(holds []store.KeyHold) []LiveHold {
	list := []LiveHold{}
	for _, h := range holds {
		list = append(list, LiveHold{h.ID, h.Tokens, h.Expires})
	}
	return list
}

// checkPlain returns an error for a key that is too long, or not plain: see plainKey.
func checkPlain(key string) error {
	switch {
	case len(key) > store.MaxKey:
		return bad("key", fmt.Sprintf("has %d bytes; at most %d", len(key), store.MaxKey))
	case !plainKey(key):
		return bad("key", "is empty or has a NUL byte")
	}
	return nil
}

func unknownLimit(name string) error { return fmt.Errorf("%w %q", dipwell.ErrUnknownLimit, name) }
