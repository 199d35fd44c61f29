package httpclient_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httpclient"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
)

// Each attempt that an adaptive limit lets through is observed: the time to the header,
// and whether it was answered with a status below 500 other than 429.
func TestAdaptiveObserved(t *testing.T) {
	const slow, failed, good, nothing = "latency", "errors", "good", "nothing"
	status := func(code int) roundTrip {
		return func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Body: http.NoBody, Header: http.Header{}}, nil
		}
	}
	refused := 0
	for name, c := range map[string]struct {
		base roundTrip
		ends time.Duration // of the caller, who goes away
		late time.Duration // deadline
		want string
	}{
		"good":      {base: status(http.StatusOK), want: good},
		"not found": {base: status(http.StatusNotFound), want: good},
		"fails":     {base: status(http.StatusServiceUnavailable), want: failed},
		"refused, then good": {base: func(r *http.Request) (*http.Response, error) {
			if refused++; refused%2 == 1 {
				return status(http.StatusTooManyRequests)(r)
			}
			return status(http.StatusOK)(r)
		}, want: failed},
		"no answer": {base: func(*http.Request) (*http.Response, error) { return nil, errors.New("connection reset") }, want: failed},
		"slow": {base: func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return status(http.StatusOK)(r)
		}, want: slow},
		"too late":        {base: hang, late: time.Second, want: failed},
		"the caller goes": {base: hang, ends: time.Second, want: nothing},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New(memstore.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer mem.Close()
				l, err := dipwell.New(mem, limittest.Adaptive, dipwell.Limit{Name: "fixed", Rate: 100, Period: time.Second, Shared: true})
				if err != nil {
					t.Fatal(err)
				}
				rt := newTransport(t, httpclient.Config{Base: c.base, Limiter: l, Limits: []httpclient.Limit{{Name: "fixed"}, {Name: "up"}}})
				got := limittest.Observed(l, func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if c.ends > 0 {
						time.AfterFunc(c.ends, cancel)
					}
					if c.late > 0 {
						ctx, cancel = context.WithTimeout(ctx, c.late)
						defer cancel()
					}
					_, _ = get(rt, ctx, "http://service/")
				})
				if got != c.want {
					t.Errorf("%s; want %s", got, c.want)
				}
			})
		})
	}
}

// roundTrip is a RoundTripper that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// hang answers when the context ends.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}
