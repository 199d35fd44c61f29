package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// Config configures the middleware. Only Limits is required. The functions in a Config
// are called by many goroutines at once.
type Config struct {
	// Limits are the limits that a request takes from, 1 to 16 of them. They
	// are decided at one instant, all or nothing: a request that one of them refuses
	// takes from none. The parents of the limits count towards the 16 when a request is
	// decided; beyond that it fails.
	Limits []Limit

	// Skip reports whether a request is not limited, as health checks should not
	// be. A skipped request reaches the next handler without header fields, and
	// without asking the store. Default of Skip: every request is limited.
	Skip func(*http.Request) bool

	// TTL is how long the tokens that a request holds stay taken if the program dies; while
	// the handler runs, the hold is extended. TTL is not how long a request may take. If the
	// TTL is too short, holds expire while the store is down; if it is too long, tokens stay
	// taken for long after a crash. Without a concurrency limit TTL has no effect. Default
	// of TTL: 1 minute, and at most the TTL of each limit.
	TTL time.Duration

	// Headers selects the header fields of every response that was decided, allowed or
	// refused. An unknown value of Headers means IETF. Default: IETF.
	Headers Headers

	// Refused answers a refused request, in place of Refuse. The header fields,
	// Retry-After included, are already set. Refused must write the response, whose
	// status is otherwise 200. Default: The default is Refuse with status 429.
	Refused func(http.ResponseWriter, *http.Request, *dipwell.Decision)

	// Failed answers a request that could not be decided: its key or cost function failed,
	// or the store did not answer and a limit fails closed. Failed must write the response.
	// The request does not reach the next handler; to let requests through while the store
	// is down, give the limit OnStoreError FailOpen. Default: Fail.
	Failed func(http.ResponseWriter, *http.Request, error)

	// Observe, if set, is called after every call of the limiter with its
	// result and duration, for metrics. Observe must not keep d. It is called before
	// the request is answered, which waits for it; requests that are skipped, that no
	// limit is chosen for, or whose key or cost function fails are not observed.
	Observe func(d *dipwell.Decision, err error, took time.Duration)
}

// Limit is a limit that a request takes from. A Limit needs a Name or Choose.
type Limit struct {
	// Name is the name of a limit that the Limiter has; New returns an error otherwise.
	Name string

	// Key returns the key: whose bucket the request takes from. If it returns an error, the
	// request is not decided. A limit with a Parent needs a path: see dipwell.Key. Default
	// of Key: none, for a limit that is Shared; a request to any other is then answered 400.
	Key KeyFunc

	// Cost returns the cost in tokens, from 0 to 2^53-1; at 0 the request takes nothing,
	// and is refused only if the bucket is in debt or the key is blocked. A cost that the
	// limit can never grant is refused without Retry-After. Default: 1.
	Cost func(*http.Request) (int64, error)

	// Choose returns the name of the limit, in place of Name, or "" if the request
	// takes from none. A limit that the Limiter does not have is an error of the
	// request, which Fail answers with 500. The name must not be the client's text.
	Choose func(*http.Request) string

	// Plan returns the plan of the limit that decides, unless the key has an override, or ""
	// for the limit itself. Plan must not return text of the client. A plan that the limit
	// does not have is an error of the request, which Fail answers with 500. Default of
	// Plan: the limit itself.
	Plan func(*http.Request) string

	// Floor is how many tokens must stay free for others after the request, as for work
	// of low priority. If Floor is not below the burst, every request is refused. A
	// leaky bucket has no floor: the request then fails. Default: 0.
	Floor int64
}

// New returns middleware that takes from c.Limits before the next handler runs.
//
// A refused request gets status 429 and does not reach the next handler. A request whose
// key or cost function fails with a *dipwell.FieldError gets 400, and 503 if the store
// does not answer. New returns an error if the number of limits, a Floor or the TTL is
// out of range, or if the limiter does not have one of the limits. The middleware may
// wrap any number of handlers, which then share the limits.
//
// Tokens are taken before the handler runs and stay taken whatever it does. A client
// that disconnects in the meantime is charged too.
//
// A request that a leaky bucket allows with a delay waits that long, except in shadow mode; so
// its requests are evenly spaced. The wait is at most the time in which MaxDebt comes back. If
// the request's context ends first, its tokens are given back and Failed answers it.
//
// If one of the limits has the algorithm dipwell.Concurrency, the request holds its
// tokens, of all limits in one hold. They are settled to what was held, which releases
// those of concurrency limits, when the next handler returns, panics, or hijacks the
// connection. If the hold is lost before, the request's context is cancelled.
//
// Requests that take from an adaptive limit are observed: how long each took until the
// header of its response was written, and whether its status is below 500.
func New(limiter *dipwell.Limiter, c Config) (func(http.Handler) http.Handler, error) {
	if len(c.Limits) == 0 || len(c.Limits) > store.MaxTakes {
		return nil, fmt.Errorf("httplimit: %d limits; from 1 to %d", len(c.Limits), store.MaxTakes)
	}
	for _, l := range c.Limits {
		if err := front.Check(limiter, l.Name, l.Choose != nil, l.Floor, front.Holds); err != nil {
			return nil, fmt.Errorf("httplimit: %w", err)
		}
	}
	var err error
	if c.TTL, err = front.CheckTTL(c.TTL); err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	m := &middleware{limiter, c}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

type middleware struct {
	limiter *dipwell.Limiter
	Config
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.Skip != nil && m.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	var buf [1]dipwell.Take
	takes, err := front.AskAll(buf[:0], m.Limits, func(l *Limit) (dipwell.Take, error) {
		return front.Ask(r, l.Name, l.Floor, l.Choose, l.Plan, l.Key, l.Cost)
	})
	if err == nil && len(takes) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	var d dipwell.Decision
	var ttl time.Duration
	if err == nil {
		ttl, err = front.Decide(r.Context(), m.limiter, &d, takes, front.NoWait, m.TTL, m.Observe)
	}
	if err != nil {
		if m.Failed != nil {
			m.Failed(w, r, err)
		} else {
			Fail(w, err)
		}
		return
	}
	m.Headers.Set(w.Header(), &d)
	if d.Allowed {
		next = m.observed(next, front.Adaptive(&d))
	}
	switch {
	case d.Allowed && d.Hold != "":
		m.serveHeld(w, r, next, d.Hold, ttl)
	case d.Allowed:
		next.ServeHTTP(w, r)
	case m.Refused != nil:
		m.Refused(w, r, &d)
	default:
		Refuse(w, http.StatusTooManyRequests)
	}
}

// Fail answers a request that could not be decided, with a problem document. The status
// is 400 for a *dipwell.FieldError, whose field and reason the body repeats; 500 for
// dipwell.ErrUnknownLimit and store.ErrUnknownPlan, which are mistakes of the program;
// and 503 for any other error, whose text is not sent. There is no Retry-After, because
// it is not known when the store will answer.
func Fail(w http.ResponseWriter, err error) {
	if errors.Is(err, dipwell.ErrUnknownLimit) || errors.Is(err, store.ErrUnknownPlan) {
		Problem(w, http.StatusInternalServerError, "", err.Error())
		return
	}
	if field, ok := errors.AsType[*dipwell.FieldError](err); ok {
		Problem(w, http.StatusBadRequest, field.Field, field.Error())
		return
	}
	Problem(w, http.StatusServiceUnavailable, "", "the rate limit cannot be decided now")
}
