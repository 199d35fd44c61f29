package server_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// live is an API over a store with the machine's clock.
func live(t *testing.T, c server.Config, limits ...string) *fixture {
	t.Helper()
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return (&fixture{t: t}).over(st, c, local, limits...)
}

func TestWait(t *testing.T) {
	for _, debt := range []string{"max_debt=0", "max_debt=5"} {
		w := live(t, server.Config{}, "fast=50/1s,burst=1,"+debt, "slow=1/1h,burst=1,"+debt)
		for _, body := range []string{`{"limit":"fast","key":"k","timeout":"20s"}`, `limit=fast&key=k&timeout=20s`, `{"limit":"fast","key":"k"}`} {
			w.want(w.post("wait", body), 200, `"allowed":true`, `"granted":1`)
		}
		w.want(w.post("wait", `{"limit":"slow","key":"k"}`), 200)
		rec := w.post("wait", `{"limit":"slow","key":"k","timeout":"1s"}`)
		w.want(rec, 429, `"allowed":false`, `"granted":0`, `"remaining":0`)
		if rec.Header().Get("Retry-After") == "" {
			t.Error("a refused wait has no Retry-After")
		}
		w.want(w.post("wait", `{"limit":"slow","key":"k3","cost":2,"timeout":"1s"}`), 429)
		w.want(w.post("wait", `{"takes":[{"limit":"fast","key":"k"},{"limit":"slow","key":"k2"}],"timeout":"20s"}`), 200, `"limits":[`)
		w.want(w.do("GET", "/metrics", ""), 200, `dipwell_decisions_total{limit="slow",result="refused"} 2`, "dipwell_waiting 0")
	}
}

func TestWaitBadInput(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	for body, field := range map[string]string{
		`{"limit":"login","timeout":"0s"}`:         "timeout",
		`{"limit":"login","timeout":"11m"}`:        "timeout",
		`{"limit":"login","timeout":"-1s"}`:        "timeout",
		`{"limit":"login","timeout":5}`:            "timeout",
		`{"limit":"login","timeout":"soon"}`:       "timeout",
		`{"limit":"login","Timeout":"1s"}`:         "Timeout",
		`{"takes":[{"limit":"login","cost":-1}]}`:  "takes[0].cost",
		`{"limit":"login","plan":""}`:              "plan",
		`{"limit":"login","floor":-1}`:             "floor",
		`{"timeout":"1s"}`:                         "limit",
		`{"limit":"login","cost":-1}`:              "cost",
		`{"limit":"login","key":""}`:               "key",
		`limit=login&timeout=1s&timeout=1s`:        "timeout",
		`limit=login&timeout=`:                     "timeout",
		`limit=login&reservation=x`:                "reservation",
		`{"limit":"login","timeout":"1s","key":7}`: "key",
	} {
		w.want(w.post("wait", body), 400, `"field":"`+field+`"`)
	}
	w.want(w.post("wait", `limit=nobody`), 404)
	w.want(w.do("GET", "/v1/wait", ""), 405)
	w.want(w.post("take", `limit=login&timeout=1s`), 400, `"field":"timeout"`)
	w.want(w.post("check", `limit=all&cost=20`), 200)
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline, tick := time.After(time.Minute), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("not within a minute: " + what)
		case <-tick.C:
		}
	}
}

func (w *fixture) metric(line string) func() bool {
	return func() bool { return strings.Contains(w.do("GET", "/metrics", "").Body.String(), line+"\n") }
}

// A client that hangs up costs nothing, with debt and without. A wait is longer than
// the ten seconds that the server gives a request to arrive.
func TestWaitHangUp(t *testing.T) {
	const head, body = "POST /v1/wait%s HTTP/1.1\r\nHost: localhost\r\n", `{"limit":"slow","key":"k","timeout":"10m"}`
	calls := []string{ // the server ends none of them at the deadline of its body
		fmt.Sprintf(head+"\r\n", "?limit=slow&key=k&timeout=10m"),
		fmt.Sprintf(head+"Content-Length: %d\r\n\r\n%s", "", len(body), body),
		fmt.Sprintf(head+"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", "", len(body), body),
	}
	for debt, remain := range map[string]int64{"max_debt=0": 3, "max_debt=unlimited": 2} { // the last call has a reservation
		synctest.Test(t, func(t *testing.T) {
			w := live(t, server.Config{}, "slow=1/1m,burst=3,"+debt)
			waiting := func(calls int) {
				t.Helper()
				synctest.Wait()
				w.want(w.do("GET", "/metrics", ""), 200, fmt.Sprintf("dipwell_waiting %d\n", calls))
			}
			serve := func(ctx context.Context, l net.Listener) error {
				return w.server.Serve(ctx, server.Listener{Listener: l, Handler: w.api})
			}
			w.serving(t, serve, func(dial func() net.Conn, stop context.CancelFunc) {
				w.want(w.post("take", "limit=slow&key=k&cost=3"), 200)
				conns := make([]net.Conn, 5)
				for i := range conns {
					conns[i] = dial()
					defer conns[i].Close()
					if _, err := conns[i].Write([]byte(calls[i%len(calls)])); err != nil {
						t.Fatal(err)
					}
					waiting(i + 1) // so that the first call, which stays, has the first reservation
				}
				time.Sleep(30 * time.Second) // of the bubble
				waiting(5)
				for _, c := range conns[1:] {
					_ = c.Close()
				}
				waiting(1)
				if d, err := w.limiter.Refund(t.Context(), "slow", "k", 3); err != nil || d.Remaining != remain {
					t.Errorf("%s: %d remain, want %d: %v", debt, d.Remaining, remain, err)
				}
				stop() // ends the last wait
				res, err := http.ReadResponse(bufio.NewReader(conns[0]), nil)
				if err != nil {
					t.Fatal(err)
				}
				if res.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("%s: status %d, want 503", debt, res.StatusCode)
				}
				_ = res.Body.Close()
			})
		})
	}
}

// leisurely is a store whose calls take a time, and end with their context.
type leisurely struct {
	store.Store
	takes time.Duration
}

func (s *leisurely) Abilities() store.Abilities {
	a := store.AbilitiesOf(s.Store)
	a.Quick, a.InProcess = nil, false
	return a
}

func (s *leisurely) Apply(ctx context.Context, b *store.Batch) error {
	select {
	case <-time.After(s.takes):
		return s.Store.Apply(ctx, b)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A stop during a call of the store lets the call end: the wait is allowed and charged, or
// answered that the service stops and not charged. It is not the store that failed.
func TestStopWhileStoreDecides(t *testing.T) {
	for _, limit := range []string{"max_debt=0", "max_debt=5", "max_debt=0,on_store_error=open", "max_debt=5,on_store_error=open"} {
		for _, c := range []struct {
			used, cost int64 // of the three of the burst
			takes      time.Duration
			status     int
			detail     string
		}{
			{0, 1, 100 * time.Millisecond, 200, `"allowed":true`},
			{3, 1, 100 * time.Millisecond, 503, "the service is stopping; nothing was taken"},
			{0, 1, time.Hour, 503, "the store cannot answer"},
		} {
			if c.takes == time.Hour && strings.Contains(limit, "open") {
				continue // allowed, as by any call that the store does not answer
			}
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New(memstore.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer mem.Close()
				st := &leisurely{Store: mem}
				w := (&fixture{t: t}).over(st, server.Config{}, local, "slow=1/1m,burst=3,"+limit)
				if _, err := w.limiter.Take(t.Context(), "slow", "k", c.used); err != nil {
					t.Fatal(err)
				}
				st.takes = c.takes
				time.AfterFunc(50*time.Millisecond, w.server.Stop)
				w.want(w.post("wait", fmt.Sprintf("limit=slow&key=k&cost=%d&timeout=10m", c.cost)), c.status, c.detail)
				st.takes = 0
				used := c.used
				if c.status == 200 {
					used += c.cost
				}
				if d, err := w.limiter.Check(t.Context(), "slow", "k", 0); err != nil || d.Remaining != 3-used {
					t.Errorf("%s, %+v: %d remain, %v", limit, c, d.Remaining, err)
				}
			})
		}
	}
}

// At most half of the calls in flight may wait, so that others are answered.
func TestWaitersAreBounded(t *testing.T) {
	w := live(t, server.Config{MaxInFlight: 5}, "slow=1/5m,burst=1,max_debt=0,shared=true")
	w.want(w.post("take", "limit=slow"), 200)
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan *httptest.ResponseRecorder)
	for range 2 {
		go func() {
			rec := httptest.NewRecorder()
			w.api.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, "POST", "http://localhost/v1/wait?limit=slow&timeout=10m", nil))
			done <- rec
		}()
	}
	until(t, "two calls wait", w.metric("dipwell_waiting 2"))
	w.want(w.post("wait", "limit=slow&timeout=10m"), 503, "too many")
	w.want(w.post("check", "limit=slow"), 429)
	hangUp()
	for range 2 {
		if rec := <-done; rec.Body.Len() > 0 {
			t.Errorf("a client that has gone got %s", rec.Body)
		}
	}
	w.want(w.post("wait", "limit=slow&timeout=1ms"), 429)
	w.server.Stop()
	w.want(w.post("wait", "limit=slow&timeout=10m"), 503, "is stopping")
}

// TestCallersWhoLeft checks that calls whose callers have left before the store answered
// are not counted as those that the store could not answer.
func TestCallersWhoLeft(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.down.Store(true)
	left, cancel := context.WithCancel(t.Context())
	cancel()
	call := func(ctx context.Context) string {
		for _, target := range []string{"/v1/take?limit=login&key=k", "/v1/take?limit=open&key=k", "/v1/auth?limit=login&key=k"} {
			w.api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+target, nil))
		}
		return w.do("GET", "/metrics", "").Body.String()
	}
	if got := call(left); !strings.Contains(got, "dipwell_store_errors_total 0\n") || !strings.Contains(got, "dipwell_abandoned_calls_total 3\n") || strings.Contains(got, "dipwell_fallbacks_total{") {
		t.Error("counted: " + got)
	}
	got := call(t.Context())
	for _, want := range []string{`store_errors_total 2`, `fallbacks_total{kind="closed",limit="login"} 2`, `fallbacks_total{kind="open",limit="open"} 1`} {
		if !strings.Contains(got, "dipwell_"+want+"\n") {
			t.Errorf("%s is not in %s", want, got)
		}
	}
}
