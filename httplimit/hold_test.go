package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// slots returns a limiter with a concurrency limit of 1 and a limit of 5 tokens that
// never come back within a test.
func slots(t *testing.T) *dipwell.Limiter {
	t.Helper()
	kept, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	l, err := dipwell.New(kept, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 1, TTL: time.Minute, Shared: true},
		dipwell.Limit{Name: "day", Rate: 5, Period: 24 * time.Hour, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// holdsOf returns the live holds of slots.
func holdsOf(t *testing.T, l *dipwell.Limiter) []store.KeyHold {
	t.Helper()
	holds, err := l.Holds(t.Context(), "slots", dipwell.Shared)
	if err != nil {
		t.Fatal(err)
	}
	return holds
}

// held returns how many tokens of slots are held.
func held(t *testing.T, l *dipwell.Limiter) (n int64) {
	t.Helper()
	for _, h := range holdsOf(t, l) {
		n += h.Tokens
	}
	return n
}

func concurrent(t *testing.T, l *dipwell.Limiter, next http.HandlerFunc) http.Handler {
	t.Helper()
	m, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "day"}, {Name: "slots"}}})
	if err != nil {
		t.Fatal(err)
	}
	return m(next)
}

// A request of a concurrency limit holds until its handler returns or panics. Of the
// other limits it keeps what it took.
func TestConcurrency(t *testing.T) {
	l := slots(t)
	var h http.Handler
	h = concurrent(t, l, func(w http.ResponseWriter, r *http.Request) {
		if held(t, l) != 1 {
			t.Error("nothing is held while the handler runs")
		}
		if r.URL.Path == "/nested" {
			if w := get(h, "/"); w.Code != 429 || w.Header().Get("Retry-After") != "60" || w.Body.String() != refusalAfter60 {
				t.Errorf("a second request: %d %v %s", w.Code, w.Header(), w.Body)
			}
		}
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "done")
	})
	w := get(h, "/nested")
	if w.Code != 200 || w.Header().Get("RateLimit-Policy") != `"day";q=5;w=86400, "slots";q=1;qu="concurrent-requests"` ||
		w.Header().Get("RateLimit") != `"day";r=4;t=69120, "slots";r=0` {
		t.Error(w.Code, w.Header())
	}
	func() {
		defer func() {
			if recover() != http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				t.Error("the panic is gone")
			}
		}()
		get(h, "/panic")
	}()
	get(h, "/")
	if n := held(t, l); n != 0 {
		t.Errorf("%d are held when no handler runs", n)
	}
	if d, err := l.Check(t.Context(), "day", dipwell.Shared, 0); err != nil || d.Remaining != 2 {
		t.Errorf("%d left of the day, want 2: %v", d.Remaining, err)
	}
}

// A hold that is lost while the handler runs ends its context, and a handler that
// outlives its client holds on.
func TestConcurrencyLost(t *testing.T) { synctest.Test(t, testConcurrencyLost) }

func testConcurrencyLost(t *testing.T) {
	kept, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	l, err := dipwell.New(kept, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 1, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	m, err := httplimit.New(l, httplimit.Config{Limits: []httplimit.Limit{{Name: "slots"}}, TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	m(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		hangUp()
		<-r.Context().Done()
		for before := holdsOf(t, l); holdsOf(t, l)[0].Expires == before[0].Expires; { // until it is extended
			time.Sleep(10 * time.Millisecond)
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
	m(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := l.Settle(t.Context(), holdsOf(t, l)[0].ID); err != nil {
			t.Fatal(err)
		}
		<-r.Context().Done()
		if err := context.Cause(r.Context()); !errors.Is(err, dipwell.ErrHoldConflict) {
			t.Error(err)
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
}

var errFlush = errors.New("the client has gone")

// broken is a ResponseWriter of a client that has gone.
type broken struct{ http.ResponseWriter }

func (broken) FlushError() error { return errFlush }

func (broken) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errFlush }

// A handler that streams hears that its client has gone, whatever the limit wraps around
// its ResponseWriter.
func TestFlushError(t *testing.T) {
	mem, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	l, err := dipwell.New(mem, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 1, Shared: true}, dipwell.Limit{Name: "plain", Rate: 100, Period: time.Second, Shared: true},
		dipwell.Limit{Name: "adaptive", Rate: 100, Period: time.Second, Shared: true, Adaptive: dipwell.Adaptive{Floor: 50, Errors: 0.1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"plain"}, {"slots"}, {"adaptive"}, {"slots", "adaptive"}} {
		var limits []httplimit.Limit
		for _, name := range names {
			limits = append(limits, httplimit.Limit{Name: name})
		}
		wrap, err := httplimit.New(l, httplimit.Config{Limits: limits})
		if err != nil {
			t.Fatal(err)
		}
		for where, c := range map[string]struct {
			w    http.ResponseWriter
			want error
		}{
			"gone":          {broken{httptest.NewRecorder()}, errFlush},
			"not supported": {struct{ http.ResponseWriter }{httptest.NewRecorder()}, http.ErrNotSupported},
			"supported":     {httptest.NewRecorder(), nil},
		} {
			wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if err := http.NewResponseController(w).Flush(); !errors.Is(err, c.want) {
					t.Errorf("%v, %s: %v, not %v", names, where, err, c.want)
				}
			})).ServeHTTP(c.w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		}
	}
}

// A hijacked connection is released, and the handler's context goes on.
func TestConcurrencyHijack(t *testing.T) {
	l := slots(t)
	ended := make(chan struct{})
	srv := httptest.NewServer(concurrent(t, l, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		if _, ok := w.(http.Flusher); !ok {
			t.Error("the ResponseWriter cannot flush any more")
		}
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("the ResponseWriter is no ReaderFrom any more")
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if held(t, l) != 0 || r.Context().Err() != nil {
			t.Error("not released, or the context has ended", r.Context().Err())
		}
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: test\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
	}))
	defer srv.Close()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: test\r\nConnection: Upgrade\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res)
	}
	<-ended
}
