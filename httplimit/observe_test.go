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
	"github.com/dipwell/dipwell/store"
)

type pipeHijacker struct{ *httptest.ResponseRecorder }

func (pipeHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, _ := net.Pipe()
	return c, nil, nil
}

// Requests that an adaptive limit lets through are observed: the time to the header, and
// whether the status is below 500.
func TestAdaptiveObserved(t *testing.T) {
	slow := store.Observation{Count: 1, Slow: 1, Taken: 1}
	failed := store.Observation{Count: 1, Failed: 1, Taken: 1}
	good := store.Observation{Count: 1, Taken: 1}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		gone    bool
		want    store.Observation
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
		"the client goes": {func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }, true, store.Observation{Taken: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New(memstore.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer mem.Close()
				o := &limittest.Observing{Store: mem}
				l, err := dipwell.New(o, dipwell.Limit{Name: "up", Rate: 100, Period: time.Second, Burst: 20,
					Adaptive: dipwell.Adaptive{Floor: 50, Ceiling: 200, Latency: 500 * time.Millisecond, Errors: 0.1}})
				if err != nil {
					t.Fatal(err)
				}
				_ = l.Observe(t.Context(), "up", 0, true, 1) // from now on tokens are counted
				wrap, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "up"}}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.gone {
					time.AfterFunc(100*time.Millisecond, cancel)
				}
				func() {
					defer func() { _ = recover() }()
					wrap(c.handler).ServeHTTP(pipeHijacker{httptest.NewRecorder()}, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
				}()
				time.Sleep(time.Second)
				_ = l.Observe(t.Context(), "up", 0, true, 1) // sends what was counted
				c.want.Count += 2
				if got := o.Observed(); got != c.want {
					t.Errorf("%+v; want %+v", got, c.want)
				}
			})
		})
	}
}

// A hanging store does not answer what is observed.
type hanging struct{ store.Store }

func (h hanging) Abilities() store.Abilities {
	ab := store.AbilitiesOf(h.Store)
	ab.Observe = func(ctx context.Context, _ *store.Definition, _ store.Observation) error {
		<-ctx.Done()
		return ctx.Err()
	}
	return ab
}

// TestAdaptiveStoreHangs checks that a response does not wait for a store that does not
// answer what is observed: net/http sends a short one only once the handler has returned.
func TestAdaptiveStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		l, err := dipwell.New(hanging{mem}, dipwell.Limit{Name: "up", Rate: 100, Period: time.Second, Burst: 20, Timeout: 10 * time.Second,
			Adaptive: dipwell.Adaptive{Floor: 50, Ceiling: 200, Errors: 0.1}})
		if err != nil {
			t.Fatal(err)
		}
		wrap, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "up"}}})
		if err != nil {
			t.Fatal(err)
		}
		h := wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for range 2 {
			began := time.Now()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
			if took := time.Since(began); took > 0 {
				t.Errorf("the response waited for %v", took)
			}
			time.Sleep(time.Second) // what was counted is due
		}
		time.Sleep(10 * time.Second)
	})
}
