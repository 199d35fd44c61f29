package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/server"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves on a free port until the test ends or stop is called.
func (w *fixture) serve(l server.Listener) (addr string, stop func() error) {
	w.t.Helper()
	var err error
	if l.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		w.t.Fatal(err)
	}
	if l.Handler == nil {
		l.Handler = w.server.API(server.Site{Loopback: server.IsLoopback(l)})
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(ctx, l) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	w.t.Cleanup(func() { _ = stop() })
	return l.Addr().String(), stop
}

// An endless chunked body is refused when it is too large.
func TestEndlessBody(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	addr, _ := w.serve(server.Listener{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		fmt.Fprintf(c, "POST /v1/take HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n", addr)
		chunk := "1000\r\n" + strings.Repeat(" ", 0x1000) + "\r\n"
		for {
			if _, err := io.WriteString(c, chunk); err != nil {
				return // the server has closed the connection
			}
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge || !res.Close {
		t.Errorf("%d, close %v", res.StatusCode, res.Close)
	}
}

// A request in flight at the stop is answered.
func TestDrain(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	addr, stop := w.serve(server.Listener{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	// "100 Continue" means that the handler has begun to read.
	fmt.Fprintf(c, "POST /v1/take HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", addr)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatal(line, err)
	}
	_, _ = in.ReadString('\n')
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for { // until the listener is closed
		probe, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		_ = probe.Close()
	}
	fmt.Fprint(c, "limit=all")
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestServeReturnsListenerError(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := w.server.Serve(context.Background(), server.Listener{Listener: l, Handler: w.api}); err == nil {
		t.Error("no error for a closed listener")
	}
}

func TestProxy(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s xff=%s", r.Host, r.URL, r.Header.Get("X-Forwarded-For"))
	}))
	defer upstream.Close()
	w := newFixture(t, server.Config{}, local)
	p, err := w.server.Proxy(server.Upstream{URL: upstream.URL + "/base", By: "header:X-User"})
	if err != nil {
		t.Fatal(err)
	}
	if err = p.Use([]string{"login", "jobs"}); err != nil {
		t.Fatal(err)
	}
	w.api = p
	rec := w.do("GET", "/v1/take?x=1", "", "X-User: 7", "X-Forwarded-For: 6.6.6.6")
	if rec.Code != 200 || rec.Body.String() != "localhost /base/v1/take?x=1 xff=192.0.2.1" || rec.Header().Get("RateLimit") == "" {
		t.Error(rec.Code, rec.Body, rec.Header())
	}
	rec = w.do("GET", "/", "", "X-User: 7")
	if got, want := rec.Body.String(), `{"title":"Too Many Requests","status":429,"retry_after":1}`+"\n"; rec.Code != 429 || got != want { // the app's users need not know the limits
		t.Errorf("%d %s, want %s", rec.Code, got, want)
	}
	w.want(w.do("GET", "/", ""), 400)
	w.api = w.server.API(local)
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_decisions_total{limit="jobs",result="allowed"} 1`, `dipwell_decisions_total{limit="jobs",result="refused"} 1`)
	w.api = p
	if err = p.Use(nil); err != nil {
		t.Fatal(err)
	}
	if rec = w.do("GET", "/", ""); rec.Code != 200 {
		t.Error(rec.Code)
	}
	upstream.Close()
	w.want(w.do("GET", "/", ""), 502)
	if err = p.Use([]string{"nobody"}); err == nil {
		t.Error("an unknown limit was accepted")
	}
	for _, bad := range []server.Upstream{{URL: "ftp://x"}, {URL: "127.0.0.1:80"}, {URL: "http://"}, {URL: "http://u:p@x"}, {URL: "http://x#y"}, {URL: "http://x/a|%2F"},
		{URL: "http://x", By: "cookie"}, {URL: "http://x", By: "header:"}, {URL: "http://x", By: "header:Host"}, {URL: "http://x", By: "header:X User"}} {
		if _, err := newFixture(t, server.Config{}, local).server.Proxy(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
	for _, by := range []string{"", "ip", "shared"} {
		if _, err := newFixture(t, server.Config{}, local).server.Proxy(server.Upstream{URL: "http://x", By: by}); err != nil {
			t.Error(by, err)
		}
	}
}
