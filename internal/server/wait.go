package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// Bounds of the timeout of a wait.
const (
	defaultWait = 30 * time.Second
	minWait     = time.Millisecond
	maxWait     = 10 * time.Minute
)

var (
	errStopping = errors.New("the service stops; nothing was taken")
	errWaiters  = errors.New("too many calls wait")
	errWait     = bad("timeout", "must be from 1ms to 10m")
)

// wait answers POST /v1/wait: a take that waits for its tokens.
func (a *api) wait(w http.ResponseWriter, r *http.Request) {
	x := exchanges.Get().(*exchange)
	defer x.free()
	err := a.read(w, r, x, ofTake|hasTimeout)
	if err == nil {
		// net/http ends the request's context when the deadline of its body passes.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // not supported: there is no deadline
		err = a.await(r.Context(), &x.d, &x.req)
	}
	switch {
	case errors.Is(err, errWaiters):
		shed(w)
	case errors.Is(err, errStopping):
		httplimit.Problem(w, http.StatusServiceUnavailable, "", err.Error())
	case r.Context().Err() != nil: // the client has gone
	case err != nil:
		a.fail(w, err)
	default:
		a.answer(w, x)
	}
}

// await takes the tokens of q when they can be had within its timeout, and refuses
// otherwise. If ctx ends or the server stops, nothing is taken.
func (s *Server) await(ctx context.Context, d *dipwell.Decision, q *request) error {
	timeout := q.timeout
	if !q.has(hasTimeout) {
		timeout = defaultWait
	} else if timeout < minWait || timeout > maxWait {
		return errWait
	}
	if s.waiters.Add(1) > max(1, s.live.Load().maxInFlight/2) {
		s.waiters.Add(-1)
		s.metrics.shed.Add(1)
		return errWaiters
	}
	defer s.waiters.Add(-1)
	err := s.awaitWithin(ctx, d, &q.take, timeout)
	s.metrics.counted(d, err)
	return err
}

func (s *Server) awaitWithin(ctx context.Context, d *dipwell.Decision, t *dipwell.Take, timeout time.Duration) (err error) {
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.stopped, func() { cancel(errStopping) })()
	within, stop := context.WithTimeout(within, timeout)
	defer stop()
	if t.Plan != "" || t.Floor != 0 {
		return bad("plan", "wait has neither a plan nor a floor yet")
	}
	*d, err = s.limiter.Wait(within, t.Limit, t.Key, t.Cost)
	if err == nil || within.Err() == nil || errors.Is(err, dipwell.ErrStore) {
		return err
	}
	if cause := context.Cause(within); !errors.Is(cause, context.DeadlineExceeded) || ctx.Err() != nil {
		return cause
	}
	// The tokens were not there in time. The decision says what the bucket has now.
	if err = s.limiter.DoTake(ctx, d, store.VerbCheck, *t); err == nil {
		d.Allowed, d.Shadow = false, false
	}
	return err
}
