package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// proxied is a proxy on a socket.
type proxied struct {
	*fixture
	addr  string
	proxy *server.Proxy

	mu       sync.Mutex
	reported []string
}

func newProxied(t *testing.T, c server.Config, u server.Upstream, limits ...string) *proxied {
	t.Helper()
	p := &proxied{fixture: newFixture(t, c, local)}
	u.Report = func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reported = append(p.reported, err.Error())
	}
	var err error
	if p.proxy, err = p.server.Proxy(u); err != nil {
		t.Fatal(err)
	}
	if err = p.proxy.Use(limits); err != nil {
		t.Fatal(err)
	}
	p.addr = listenOn(t, p.server, server.Listener{Handler: p.proxy, Streams: true})
	return p
}

// listenOn serves on a free port until the test ends.
func listenOn(t *testing.T, s *server.Server, on server.Listener) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	on.Listener = l
	go func() { stopped <- s.Serve(ctx, on) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// raw sends lines unchanged and reads one response.
func (p *proxied) raw(lines ...string) (status int, body io.Reader, c net.Conn, in *bufio.Reader) {
	p.t.Helper()
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	if _, err = io.WriteString(c, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		p.t.Fatal(err)
	}
	in = bufio.NewReader(c)
	method, _, _ := strings.Cut(lines[0], " ")
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = res.Body.Close() })
	return res.StatusCode, res.Body, c, in
}

// ask is raw with the whole body.
func (p *proxied) ask(lines ...string) (int, string) {
	p.t.Helper()
	status, body, c, _ := p.raw(lines...)
	b, err := io.ReadAll(body)
	if err != nil {
		p.t.Fatal(err)
	}
	_ = c.Close()
	return status, string(b)
}

// metrics returns /metrics of the proxy's server.
func (p *proxied) metrics() string { return p.do("GET", "/metrics", "").Body.String() }

// switching is an upstream that switches to every protocol and echoes.
func switching(w http.ResponseWriter, r *http.Request) {
	up := r.Header.Get("Upgrade")
	if r.URL.Path == "/unasked" {
		up = "h2c"
	}
	if up == "" {
		fmt.Fprintf(w, "plain, Connection %q", r.Header["Connection"])
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", up)
	_ = rw.Flush()
	_, _ = io.Copy(c, rw)
}

// Only a WebSocket becomes a tunnel, and it takes from the limits.
func TestProxyUpgrades(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(switching))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "header:X-User"}, "login")
	for _, lines := range [][]string{
		{"GET / HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"},
		{"GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket, h2c"},
		{"GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c"},
		{"GET / HTTP/1.1", "Connection: Upgrade", "Upgrade: TLS/1.0"},
		{"GET / HTTP/1.1", "Connection: close", "Upgrade: websocket"},
		{"POST / HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Content-Length: 0"},
	} {
		if status, body := p.ask(append(lines, "Host: x", "X-User: others")...); status != 200 || body != `plain, Connection []` {
			t.Errorf("%q: %d %s", lines, status, body)
		}
	}
	if status, body := p.ask("GET /unasked HTTP/1.1", "Host: x", "X-User: others"); status != 502 {
		t.Error("an upstream that switches unasked:", status, body)
	}
	if status, body := p.ask("CONNECT elsewhere:443 HTTP/1.1", "Host: elsewhere:443", "X-User: others"); status != 405 {
		t.Error("CONNECT:", status, body)
	}
	handshake := []string{"GET / HTTP/1.1", "Host: x", "X-User: 7", "Connection: keep-alive, Upgrade", "Upgrade: WebSocket"}
	for i := range 20 {
		status, _, c, in := p.raw(handshake...)
		if status != http.StatusSwitchingProtocols {
			t.Fatalf("handshake %d: %d", i, status)
		}
		if _, err := io.WriteString(c, "frame\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := in.ReadString('\n'); line != "frame\n" {
			t.Fatalf("through the tunnel: %q %v", line, err)
		}
		_ = c.Close()
	}
	if status, _ := p.ask(handshake...); status != 429 {
		t.Error("a handshake after the burst:", status)
	}
	if status, _ := p.ask("GET / HTTP/1.1", "Host: x"); status != 400 || !strings.Contains(p.metrics(), `dipwell_keyless_requests_total{by="header"} 1`) {
		t.Error("a request without a key:", status, grep(p.metrics(), "keyless"))
	}
}

func grep(text, part string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// The upstream receives the path that the client sent: %2F is not a slash, and # is not %23.
func TestProxyPath(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }))
	defer up.Close()
	for _, base := range []string{"", "/b%2Fc", "/b/"} {
		p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL + base, By: "shared"})
		for _, path := range []string{"/", "//a//b", "/a%2Fb/%7e/%2e%2E/", "/a;b=c,d/@:!$&'()*+=~", "/a|b/c%2Fd", "/[x]/{y}/%25", "/\xff%2f\"^\\`<>",
			"/p#x", "/p#?q=1", "/?a#b", "/p|?x|y#z", "/|?"} {
			want := strings.TrimSuffix(base, "/") + path
			if status, got := p.ask("GET "+path+" HTTP/1.1", "Host: host"); status != 200 || got != want {
				t.Errorf("%q: %d %q, want %q", path, status, got, want)
			}
			if status, got := p.ask("GET http://host"+path+" HTTP/1.1", "Host: host"); status != 200 || got != want {
				t.Errorf("http://host%q: %d %q, want %q", path, status, got, want)
			}
		}
	}
}

// A path that net/http cannot send unchanged is refused, and takes nothing.
func TestProxyBadPath(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error(r.RequestURI) }))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "header:X-User"}, "login")
	if status, body := p.ask("GET //a|b HTTP/1.1", "Host: host", "X-User: u"); status != 400 || !strings.Contains(body, "escape") {
		t.Errorf("%d %s", status, body)
	}
	if d, err := p.limiter.Check(t.Context(), "login", "u", 20); err != nil || !d.Allowed {
		t.Error("a bad request was charged", err)
	}
}

// The upstream receives the client's query unchanged.
func TestProxyQuery(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL})
	for _, target := range []string{"/", "/?", "/?a=1;b=2", "/?q=100%&a=1", "/?q=%zz", "/?%", "/?b=2&a=1&b=1", "/?a=%2F+%20&&=", "/?x=\xc3\xa4\xff", "/?a#b",
		"/a%2Fb/?c", "/?" + strings.Repeat("a=1&", 12000)} {
		if status, got := p.ask("GET "+target+" HTTP/1.1", "Host: x"); status != 200 || got != target {
			t.Errorf("%.60q came as %d %.60q", target, status, got)
		}
	}
}

// Forwarding fields of a trusted proxy are kept; those of others are replaced.
func TestProxyForwarded(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "host=%s", r.Host)
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "Forwarded", "X-Real-Ip"} {
			fmt.Fprintf(w, " %s", strings.Join(r.Header[name], "|"))
		}
	}))
	defer up.Close()
	given := []string{"GET / HTTP/1.1", "Host: site.example", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Host: www.example", "X-Forwarded-Proto: https",
		"X-Forwarded-Port: 443", "Forwarded: for=203.0.113.7;proto=https", "X-Real-IP: 203.0.113.7"}
	trust := server.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	for _, tc := range []struct {
		name  string
		c     server.Config
		lines []string
		want  string
	}{
		{"a stranger", server.Config{}, given, "host=site.example 127.0.0.1 site.example http   "},
		{"a trusted proxy", trust, given, "host=site.example 203.0.113.7, 127.0.0.1 www.example https 443 for=203.0.113.7;proto=https 203.0.113.7"},
		{"a trusted proxy that says nothing", trust, given[:2], "host=site.example 127.0.0.1 site.example http   "},
	} {
		p := newProxied(t, tc.c, server.Upstream{URL: up.URL})
		if _, got := p.ask(tc.lines...); got != tc.want {
			t.Errorf("%s: %q\nwant %q", tc.name, got, tc.want)
		}
	}
}

// silent answers the first bytes of each connection with a fixed text, and then
// sends nothing.
func silent(t *testing.T, says string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go func() {
				if _, err := c.Read(make([]byte, 1)); err == nil { // a response before the request would be another kind of failure
					_, _ = io.WriteString(c, says)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Each kind of failure has its response, its count, and one report a minute.
func TestProxyFailures(t *testing.T) {
	const short, ample = 50 * time.Millisecond, 4 * time.Second // ample: enough for the header on a busy machine
	for _, tc := range []struct {
		name, kind string
		u          server.Upstream
		status     int
	}{
		{"nobody listens", "connect", server.Upstream{URL: "http://127.0.0.1:1"}, 502},
		{"no header comes", "timeout", server.Upstream{URL: "http://" + silent(t, ""), Timeout: short}, 504},
		{"no TLS handshake comes", "timeout", server.Upstream{URL: "https://" + silent(t, ""), Timeout: short}, 504},
		{"no HTTP", "answer", server.Upstream{URL: "http://" + silent(t, "hello\r\n\r\n")}, 502},
		{"the body stalls", "body", server.Upstream{URL: "http://" + silent(t, "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"+strings.Repeat("x", 9999)), Timeout: ample}, 200},
	} {
		p := newProxied(t, server.Config{}, tc.u)
		var requests sync.WaitGroup
		for range 3 {
			requests.Go(func() {
				status, body, _, _ := p.raw("GET / HTTP/1.1", "Host: x")
				if status != tc.status {
					t.Errorf("%s: %d, want %d", tc.name, status, tc.status)
				}
				if _, err := io.ReadAll(body); (err != nil) != (tc.kind == "body") {
					t.Errorf("%s: the body: %v", tc.name, err)
				}
			})
		}
		requests.Wait()
		if want := fmt.Sprintf("dipwell_upstream_errors_total{kind=%q} 3", tc.kind); !strings.Contains(p.metrics(), want) {
			t.Errorf("%s: %v, want %s", tc.name, grep(p.metrics(), "upstream_errors"), want)
		}
		p.mu.Lock()
		if len(p.reported) != 1 || !strings.HasPrefix(p.reported[0], "upstream 127.0.0.1:") {
			t.Errorf("%s: reported %q", tc.name, p.reported)
		}
		p.mu.Unlock()
	}
}

// useConcurrency lets the proxy use one limit, of which three requests can be in flight. A
// hold is extended each second: a busy machine may stand still for less than two more.
func (p *proxied) useConcurrency() {
	p.t.Helper()
	l := dipwell.Limit{Name: "inference", Algorithm: dipwell.Concurrency, Burst: 3, TTL: 3 * time.Second, Shared: true}
	if _, err := p.limiter.Define(p.t.Context(), l, terms.OwnerAPI); err != nil {
		p.t.Fatal(err)
	}
	if err := p.proxy.Use([]string{l.Name}); err != nil {
		p.t.Fatal(err)
	}
}

// A request that ends for a reason of the client's, or of the limits, is no failure of
// the upstream.
func TestProxyNotTheUpstream(t *testing.T) {
	reading := make(chan struct{}, 1)
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reading <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "shared"})
	p.useConcurrency()
	for name, body := range map[string]string{
		"a malformed chunk":  "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX",
		"a chunk too short":  "Transfer-Encoding: chunked\r\n\r\n3\r\nhello",
		"no length of chunk": "Transfer-Encoding: chunked\r\n\r\nmany\r\n",
	} {
		if status, text := p.ask("POST / HTTP/1.1", "Host: x", body); status != 400 || !strings.Contains(text, "body") {
			t.Errorf("%s: %d %s", name, status, text)
		}
		<-reading
	}
	// The hold of a request is reset while its upstream works.
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if status, text := p.ask("GET / HTTP/1.1", "Host: x"); status != 503 || !strings.Contains(text, "holds") {
			t.Errorf("a lost hold: %d %s", status, text)
		}
	}()
	<-reading
	if _, err := p.limiter.Reset(t.Context(), "inference", dipwell.Shared); err != nil {
		t.Fatal(err)
	}
	<-answered
	for _, line := range grep(p.metrics(), "dipwell_upstream_errors_total{") {
		if !strings.HasSuffix(line, " 0") {
			t.Error(line)
		}
	}
}

// A WebSocket holds the tokens of a concurrency limit until it ends.
func TestProxyHoldsWebSockets(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(switching))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "shared"})
	p.useConcurrency()
	handshake := []string{"GET / HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket"}
	var open []net.Conn
	for {
		status, _, c, _ := p.raw(handshake...)
		if status != http.StatusSwitchingProtocols {
			if status != 429 || len(open) != 3 {
				t.Errorf("WebSocket %d: %d", len(open), status)
			}
			break
		}
		if open = append(open, c); len(open) > 3 {
			t.Fatal("more WebSockets than the limit has tokens")
		}
	}
	_ = open[0].Close()
	for deadline := time.Now().Add(time.Minute); ; {
		if status, _, _, _ := p.raw(handshake...); status == http.StatusSwitchingProtocols {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the tokens of a closed WebSocket stay taken:", status)
		}
		runtime.Gosched()
	}
}

// A server that stops closes the WebSockets, and gives back what they hold before the
// store is closed.
func TestProxyStopsWebSockets(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(switching))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "shared"})
	p.useConcurrency()
	addr, stop := p.serve(server.Listener{Handler: p.proxy, Streams: true})
	p.addr = addr
	status, _, c, in := p.raw("GET / HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket")
	if held, err := p.limiter.Holds(t.Context(), "inference", dipwell.Shared); status != http.StatusSwitchingProtocols || err != nil || len(held) != 1 {
		t.Fatal(status, held, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if held, err := p.limiter.Holds(t.Context(), "inference", dipwell.Shared); err != nil || len(held) != 0 {
		t.Fatalf("held after the end: %v, %v", held, err)
	}
	if b, err := io.ReadAll(in); err != nil || len(b) > 0 {
		t.Errorf("the client reads %q, %v", b, err)
	}
	_ = c.Close()
}

// OPTIONS of the whole server is passed on, and takes from the limits.
func TestProxyOptionsOfTheServer(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }))
	up.Config.DisableGeneralOptionsHandler = true
	up.Start()
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "shared"}, "all")
	for i := range 21 {
		status, got := p.ask("OPTIONS * HTTP/1.1", "Host: x")
		if i < 20 && (status != 200 || got != "*") || i == 20 && status != 429 {
			t.Errorf("request %d: %d %q", i, status, got)
		}
	}
}

// Connections are reused by the next burst of requests, and nothing is added to
// the client's request.
func TestProxyConnections(t *testing.T) {
	const together = 32
	var opened atomic.Int64
	var all sync.WaitGroup
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all.Done()
		all.Wait() // so that each has its own connection
		fmt.Fprint(w, r.Header["Accept-Encoding"], r.Header["User-Agent"])
		w.(http.Flusher).Flush() // without a length, so that the client's response ends after the proxy has the end of this one
	}))
	up.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	up.Start()
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL})
	for range 3 {
		all.Add(together)
		var wg sync.WaitGroup
		for range together {
			wg.Go(func() {
				if status, got := p.ask("GET / HTTP/1.1", "Host: x"); status != 200 || got != "[] []" {
					t.Error(status, got)
				}
			})
		}
		wg.Wait()
	}
	if n := opened.Load(); n > together*3/2 { // a connection that is being returned to the pool cannot be reused yet
		t.Errorf("3 × %d requests opened %d connections", together, n)
	}
}

// A limit that was dropped is a mistake of the service: the request has a key, and shadow
// mode does not let it pass.
func TestProxyOfADroppedLimit(t *testing.T) {
	p := newProxied(t, server.Config{Shadow: true}, server.Upstream{URL: "http://127.0.0.1:9", By: "header:X-User"}, "login", "open")
	if err := p.limiter.Drop(t.Context(), "open", terms.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if status, _ := p.ask("GET / HTTP/1.1", "Host: x", "X-User: 7"); status != 500 || strings.Contains(p.metrics(), `dipwell_keyless_requests_total{by="header"} 1`) {
		t.Error(status, grep(p.metrics(), "keyless"))
	}
}

// The keys of a proxy are no paths.
func TestProxyRefusesParents(t *testing.T) {
	w := ofPlans(t, server.Config{}, local)
	p, err := w.server.Proxy(server.Upstream{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err = p.Use([]string{"user"}); err == nil || !strings.Contains(err.Error(), "paths") {
		t.Error(err)
	}
}

// Requests have the key that the proxy is told, and no key of a shared limit.
func TestProxyOfSharedLimits(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "header:X-User"}, "login", "all")
	for _, user := range []string{"X-User: 7", "X-User: 8"} {
		if status, text := p.ask("GET / HTTP/1.1", "Host: x", user); status != 200 {
			t.Error(status, text)
		}
	}
	if status, _ := p.ask("GET / HTTP/1.1", "Host: x"); status != 400 {
		t.Error("without a key of login:", status)
	}
	for limit, want := range map[string]int64{"login": 19, "all": 18} {
		key := dipwell.Shared
		if limit == "login" {
			key = "7"
		}
		if d, err := p.limiter.Check(t.Context(), limit, key, 0); err != nil || d.Remaining != want {
			t.Errorf("%s: %d are left, want %d: %v", limit, d.Remaining, want, err)
		}
	}
	shared, err := newFixture(t, server.Config{}, local).server.Proxy(server.Upstream{URL: up.URL, By: "shared"})
	if err != nil {
		t.Fatal(err)
	}
	if err = shared.Use([]string{"all", "login"}); err == nil || !strings.Contains(err.Error(), "by: shared: limit login has a bucket for each key") {
		t.Error(err)
	}
	if err = shared.Use([]string{"all"}); err != nil {
		t.Error(err)
	}
}

// The final response has the limits' header fields even after a 1xx response.
func TestProxyAnnounces(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("RateLimit-Policy", `"theirs";q=1;w=1`)
		_, _ = io.Copy(w, r.Body) // sends 100 Continue
	}))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL}, "login")
	for i, lines := range [][]string{{"GET / HTTP/1.1", "Host: x"}, {"POST / HTTP/1.1", "Host: x", "Content-Length: 0", "Expect: 100-continue"}} {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = io.WriteString(c, strings.Join(append(lines, "Connection: close"), "\r\n")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(c)
		_ = c.Close()
		_, final, _ := strings.Cut(string(all), "HTTP/1.1 200 OK")
		for _, field := range []string{fmt.Sprintf("Ratelimit: \"login\";r=%d", 19-i), `Ratelimit-Policy: "login";q=20;w=240`, `Ratelimit-Policy: "theirs";q=1;w=1`} {
			if err != nil || strings.Count(final, field) != 1 {
				t.Errorf("%s: %d times %s in %q %v", lines[0], strings.Count(final, field), field, all, err)
			}
		}
	}
	up.Close()
	if status, _ := p.ask("GET / HTTP/1.1", "Host: x"); status != 502 {
		t.Error(status)
	}
	rec := httptest.NewRecorder()
	p.proxy.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Code != http.StatusBadGateway || len(rec.Header()["Ratelimit"]) != 1 {
		t.Errorf("a failure: %d %v", rec.Code, rec.Header())
	}
}

// A response without a Content-Type gets none, also after a 1xx response: to guess one may
// let a browser take for a page what the upstream did not call one.
func TestProxyAddsNoType(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hints" {
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header()["Content-Type"] = nil
		if r.URL.Path == "/typed" {
			w.Header().Set("Content-Type", "text/css")
		}
		_, _ = io.WriteString(w, "<html><script>")
	}))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL}, "login")
	for path, want := range map[string]string{"/": "", "/hints": "", "/typed": "text/css"} {
		res, err := http.Get("http://" + p.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := res.Header.Get("Content-Type"); got != want || res.Header.Get("Ratelimit") == "" {
			t.Errorf("%s: Content-Type %q, want %q; %v", path, got, want, res.Header)
		}
	}
}

// The plan of a proxied request is in a header field, and a floor leaves tokens to others.
func TestProxyPlanAndFloor(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer behind.Close()
	w := ofPlans(t, server.Config{}, local)
	proxy, err := w.server.Proxy(server.Upstream{URL: behind.URL, By: "header:X-Key", PlanHeader: "X-Plan", Floor: 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Use([]string{"api", "tokens"}); err != nil {
		t.Fatal(err)
	}
	for plan, status := range map[string]int{"pro": 204, "": 204, "banned": 429, "staff": 204, "none of these": 204} {
		ask := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodGet, "http://a/", nil)
			r.Header.Set("X-Key", "k"+plan)
			if plan != "" {
				r.Header.Set("X-Plan", plan)
			}
			rec := httptest.NewRecorder()
			proxy.ServeHTTP(rec, r)
			return rec
		}
		n := 0
		for ; n < 20 && ask().Code == 204; n++ {
		}
		want := 10 // of api's 20, the floor stays
		switch {
		case status == 429:
			want = 0
		case plan == "pro":
			want = 20
		}
		if n != want {
			t.Errorf("plan %q: %d requests passed, want %d", plan, n, want)
		}
	}
	if err := (server.Upstream{URL: behind.URL, PlanHeader: "Host"}).Check(); err == nil {
		t.Error("a header field that no request has is no error")
	}
}

// A service in shadow mode does not make requests wait for a leaky bucket.
func TestProxyDoesNotWaitInShadowMode(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer behind.Close()
	w := ofPlans(t, server.Config{Shadow: true}, local)
	if _, err := w.limiter.Define(t.Context(), dipwell.Limit{Name: "even", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Hour, MaxDebt: 9, Shared: true}, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	proxy, err := w.server.Proxy(server.Upstream{URL: behind.URL, By: "shared"})
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Use([]string{"even"}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the second would wait for an hour
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		rec := httptest.NewRecorder()
		proxy.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://a/", nil))
		stop()
		if rec.Code != http.StatusNoContent {
			t.Fatal(rec.Code, rec.Body)
		}
	}
}

// Requests that wait for a leaky bucket take at most half of the places of calls in flight,
// and their wait ends when the server stops.
func TestProxyWaitsInHalfOfThePlaces(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer behind.Close()
	w := ofPlans(t, server.Config{MaxInFlight: 4}, local)
	if _, err := w.limiter.Define(t.Context(), dipwell.Limit{Name: "even", Algorithm: dipwell.LeakyBucket, Rate: 1, Period: time.Hour, MaxDebt: 9, Shared: true}, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	proxy, err := w.server.Proxy(server.Upstream{URL: behind.URL, By: "shared"})
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Use([]string{"even"}); err != nil {
		t.Fatal(err)
	}
	get := func() *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		proxy.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://a/", nil))
		return rec
	}
	if rec := get(); rec.Code != http.StatusNoContent {
		t.Fatal(rec.Code, rec.Body)
	}
	answers := make(chan int, 8)
	for range 8 { // each has a turn in an hour or more
		go func() { answers <- get().Code }()
	}
	for range 6 {
		if code := <-answers; code != http.StatusServiceUnavailable {
			t.Errorf("%d, want 503: more than two wait", code)
		}
	}
	w.server.Stop()
	for range 2 {
		if code := <-answers; code != http.StatusServiceUnavailable {
			t.Errorf("%d at the stop, want 503", code)
		}
	}
	if d, err := w.limiter.Check(t.Context(), "even", dipwell.Shared, 0); err != nil || d.ResetAfter > time.Hour {
		t.Errorf("%+v, %v: who did not wait has given its place back", d, err)
	}
}
