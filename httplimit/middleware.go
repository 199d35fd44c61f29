package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Config configures the middleware. Only Limits is required.
type Config struct {
	// Limits are the limits that a request takes from, 1 to 16 of them. They
	// are decided at one instant, all or nothing.
	Limits []Limit

	// Headers selects the header fields of every response. Default: IETF.
	Headers Headers

	// Refused answers a refused request. The header fields, Retry-After
	// included, are already set. Default: Refuse with status 429.
	Refused func(http.ResponseWriter, *http.Request, *dipwell.Decision)

	// Failed answers a request that could not be decided. Default: Fail.
	Failed func(http.ResponseWriter, *http.Request, error)

	// Observe, if set, is called after every call of the limiter with its
	// result and duration, for metrics. It must not keep d.
	Observe func(d *dipwell.Decision, err error, took time.Duration)
}

// Limit is a limit that a request takes from.
type Limit struct {
	Name string                             // name of a limit that the Limiter has
	Key  KeyFunc                            // returns the key; default: the limit's shared bucket
	Cost func(*http.Request) (int64, error) // returns the cost in tokens; default: 1
}

// New returns middleware that takes from c.Limits before the next handler runs.
//
// A refused request gets status 429 and does not reach the next handler. A
// request whose key or cost function fails with a *dipwell.FieldError gets 400,
// and 503 if the store does not answer. New returns an error if the number of
// limits is out of range or the limiter does not have one of them.
func New(limiter *dipwell.Limiter, c Config) (func(http.Handler) http.Handler, error) {
	if len(c.Limits) == 0 || len(c.Limits) > store.MaxTakes {
		return nil, fmt.Errorf("httplimit: %d limits; from 1 to %d", len(c.Limits), store.MaxTakes)
	}
	for _, l := range c.Limits {
		if limiter.Limit(l.Name) == nil {
			return nil, fmt.Errorf("httplimit: %w %q", dipwell.ErrUnknownLimit, l.Name)
		}
	}
	m := &middleware{limiter, c}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if m.admit(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

type middleware struct {
	limiter *dipwell.Limiter
	Config
}

// admit decides a request. If it returns false, it has answered the request.
func (m *middleware) admit(w http.ResponseWriter, r *http.Request) bool {
	var d dipwell.Decision
	if err := m.take(r, &d); err != nil {
		if m.Failed != nil {
			m.Failed(w, r, err)
		} else {
			Fail(w, err)
		}
		return false
	}
	m.Headers.Set(w.Header(), &d)
	if d.Allowed {
		return true
	}
	if m.Refused != nil {
		m.Refused(w, r, &d)
	} else {
		Refuse(w, &d, http.StatusTooManyRequests)
	}
	return false
}

func (m *middleware) take(r *http.Request, d *dipwell.Decision) error {
	var buf [1]dipwell.Take
	takes := buf[:0]
	for i := range m.Limits {
		t, err := m.Limits[i].take(r)
		if err != nil {
			return err
		}
		takes = append(takes, t)
	}
	if m.Observe == nil {
		return m.decide(r, d, takes)
	}
	start := time.Now()
	err := m.decide(r, d, takes)
	m.Observe(d, err, time.Since(start))
	return err
}

func (m *middleware) decide(r *http.Request, d *dipwell.Decision, takes []dipwell.Take) error {
	if len(takes) > 1 {
		return m.limiter.DoAll(r.Context(), d, store.VerbTake, takes)
	}
	t := &takes[0]
	return m.limiter.Do(r.Context(), d, store.VerbTake, t.Limit, t.Key, t.Cost)
}

// take returns what a request takes from the limit.
func (l *Limit) take(r *http.Request) (t dipwell.Take, err error) {
	t = dipwell.Take{Limit: l.Name, Key: dipwell.Shared, Cost: 1}
	if l.Key != nil {
		if t.Key, err = l.Key(r); err != nil {
			return t, err
		}
		if t.Key == dipwell.Shared { // only a Limit without Key selects the shared bucket
			return t, &dipwell.FieldError{Field: "key", Reason: "has a NUL byte"}
		}
	}
	if l.Cost != nil {
		t.Cost, err = l.Cost(r)
	}
	return t, err
}

// Fail answers a request that could not be decided, with a problem document.
// The status is 400 for a *dipwell.FieldError, whose field and reason the body
// repeats; 500 for dipwell.ErrUnknownLimit; and 503 for any other error, whose
// text is not sent.
func Fail(w http.ResponseWriter, err error) {
	if field, ok := errors.AsType[*dipwell.FieldError](err); ok {
		Problem(w, http.StatusBadRequest, field.Field, field.Error())
		return
	}
	if errors.Is(err, dipwell.ErrUnknownLimit) {
		Problem(w, http.StatusInternalServerError, "", err.Error())
		return
	}
	Problem(w, http.StatusServiceUnavailable, "", "the rate limit cannot be decided now")
}
