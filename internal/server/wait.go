package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
)

const (
	defaultWait = 30 * time.Second
	minWait     = time.Millisecond
	maxWait     = 10 * time.Minute
)

var (
	errStopping = errors.New("the service is stopping; nothing was taken")
	errWait     = bad("timeout", "must be from 1ms to 10m")
)

func (a *api) wait(w http.ResponseWriter, r *http.Request, x *exchange) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxWait + answerTimeout)) // an error means that w has no deadlines
	if err := a.await(r.Context(), &x.d, &x.req); err == nil || r.Context().Err() == nil {
		return a.answer(w, x, err)
	}
	return nil // the client has gone
}

// await takes the tokens of q as soon as they are free, if that is within the call's timeout.
// Otherwise the call is refused. If ctx ends or the server stops, nothing is taken.
func (s *Server) await(ctx context.Context, d *dipwell.Decision, q *request) error {
	timeout := q.timeout
	if !q.has(hasTimeout) {
		timeout = defaultWait
	} else if timeout < minWait || timeout > maxWait {
		return errWait
	}
	err := s.waiting(ctx, func(ctx context.Context) error { return s.limiter.DoWait(ctx, d, q.all(), timeout) })
	if errors.Is(err, errShed) {
		return err
	}
	s.metrics.counted(d, err, usesTokens)
	return q.inList(err)
}

// waiting calls wait. Half of MaxInFlight calls may wait, so that there is room for others; a
// further one is shed. The wait ends when the server stops, with errStopping.
func (s *Server) waiting(ctx context.Context, wait func(ctx context.Context) error) error {
	if !s.enter(&s.waiters, max(1, int64(s.live.Load().MaxInFlight)/2)) {
		return errShed
	}
	defer s.waiters.Add(-1)
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopped, cancel)()
	err := wait(within)
	if errors.Is(err, context.Canceled) && !errors.Is(err, dipwell.ErrStore) && ctx.Err() == nil {
		err = errStopping
	}
	return err
}
