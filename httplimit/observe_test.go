package httplimit_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
)

type pipeHijacker struct{ *httptest.ResponseRecorder }

func (pipeHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, _ := net.Pipe()
	return c, nil, nil
}

// Requests that an adaptive limit lets through are observed: the time to the header, and
// whether the status is below 500.
func TestAdaptiveObserved(t *testing.T) {
	const slow, failed, good, nothing = "latency", "errors", "good", "nothing"
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		gone    bool
		want    string
	}{
		"good":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, false, good},
		"nothing": {func(http.ResponseWriter, *http.Request) {}, false, good},
		"slow":    {func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }, false, slow},
		"streams": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("x"))
			time.Sleep(time.Second)
		}, false, good},
		"flushes": {func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
		}, false, good},
		"hints": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			time.Sleep(time.Second)
		}, false, slow},
		"fails":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, false, failed},
		"not found": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, false, good},
		"panics":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, failed},
		"hijacks": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			time.Sleep(time.Second)
			_ = c.Close()
		}, false, good},
		"the client goes": {func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }, true, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New(memstore.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer mem.Close()
				l, err := dipwell.New(mem, limittest.Adaptive)
				if err != nil {
					t.Fatal(err)
				}
				wrap, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "up"}}})
				if err != nil {
					t.Fatal(err)
				}
				got := limittest.Observed(l, func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if c.gone {
						time.AfterFunc(100*time.Millisecond, cancel)
					}
					defer func() { _ = recover() }()
					wrap(c.handler).ServeHTTP(pipeHijacker{httptest.NewRecorder()}, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
				})
				if got != c.want {
					t.Errorf("%s; want %s", got, c.want)
				}
			})
		})
	}
}
