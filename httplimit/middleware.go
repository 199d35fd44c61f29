package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Config says what a request costs, and of which limits.
type Config struct {
	Limits  []Limit                                                     // from 1 to 16, taken all or nothing at one instant
	Headers Headers                                                     // default IETF
	Refused func(http.ResponseWriter, *http.Request, *dipwell.Decision) // default: Refuse with 429; the headers are set already
	Failed  func(http.ResponseWriter, *http.Request, error)             // default: Fail
	Observe func(d *dipwell.Decision, err error, took time.Duration)    // sees every call of the limiter, for metrics; default: nobody
}

// Limit is one limit that a request is held to.
type Limit struct {
	Name string   // of a limit that the Limiter knows
	Key  KeyFunc  // default: the limit's one shared bucket
	Cost CostFunc // default: 1
}

// A CostFunc tells what a request costs, in tokens.
type CostFunc func(*http.Request) (int64, error)

// New returns middleware that takes from the limits before the next handler
// runs. A refused request gets 429 and never reaches it; one whose key or cost
// cannot be told gets 400, and 503 is for a store that cannot answer.
func New(limiter *dipwell.Limiter, c Config) (func(http.Handler) http.Handler, error) {
	if len(c.Limits) == 0 || len(c.Limits) > store.MaxTakes {
		return nil, fmt.Errorf("httplimit: %d limits; from 1 to %d", len(c.Limits), store.MaxTakes)
	}
	for _, l := range c.Limits {
		if limiter.Limit(l.Name) == nil {
			return nil, fmt.Errorf("httplimit: %w", &dipwell.UnknownLimitError{Limit: l.Name})
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

// admit decides a request, and answers it where the answer is no.
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
		t, err := m.Limits[i].of(r)
		if err != nil {
			return err
		}
		takes = append(takes, t)
	}
	if m.Observe == nil {
		return m.ask(r, d, takes)
	}
	start := time.Now()
	err := m.ask(r, d, takes)
	m.Observe(d, err, time.Since(start))
	return err
}

func (m *middleware) ask(r *http.Request, d *dipwell.Decision, takes []dipwell.Take) error {
	if len(takes) > 1 {
		return m.limiter.DoAll(r.Context(), d, store.VerbTake, takes)
	}
	t := &takes[0]
	return m.limiter.Do(r.Context(), d, store.VerbTake, t.Limit, t.Key, t.Cost)
}

// of is what a request takes from a limit.
func (l *Limit) of(r *http.Request) (t dipwell.Take, err error) {
	t = dipwell.Take{Limit: l.Name, Key: dipwell.Shared, Cost: 1}
	if l.Key != nil {
		if t.Key, err = l.Key(r); err != nil {
			return t, err
		}
		if t.Key == dipwell.Shared { // only the limit's own configuration says that
			return t, &dipwell.FieldError{Field: "key", Reason: "has a NUL byte"}
		}
	}
	if l.Cost != nil {
		t.Cost, err = l.Cost(r)
	}
	return t, err
}

// Fail answers a request that could not be decided: 400 when it is at fault,
// 503 when the store is, 500 when the program is.
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
