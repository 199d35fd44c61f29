package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/front"
)

// Upstream configures the upstream of a Proxy. Only URL is required.
type Upstream struct {
	URL           string        // http or https
	By            string        // key of a request: ip (default), shared, header:NAME
	PlanHeader    string        // header field with the plan of a request; default: none
	Floor         int64         // tokens that a request must leave free
	DialTimeout   time.Duration // to connect; default 5 s
	TLSTimeout    time.Duration // for the TLS handshake; default 5 s
	HeaderTimeout time.Duration // from the end of the request to the header of the response; default 60 s
	// IdleTimeout is how long an idle connection is kept, and how long one in
	// use may carry no byte in either direction, which is at least 5/4 of
	// HeaderTimeout; default 90 s.
	IdleTimeout     time.Duration
	IdleConnections int         // most idle connections; default 256
	Report          func(error) // if set, called for failures, once a minute for each kind
}

const (
	defaultDialTimeout     = 5 * time.Second
	defaultTLSTimeout      = 5 * time.Second
	defaultHeaderTimeout   = time.Minute
	defaultIdleTimeout     = 90 * time.Second
	defaultIdleConnections = 256
	continueTimeout        = time.Second // wait for a response to Expect: 100-continue
	maxResponseHeader      = 1 << 20
)

// Check returns the error that Server.Proxy would return for u.
func (u Upstream) Check() error {
	_, err := u.target()
	if err == nil {
		_, err = (&Server{}).keyBy(u.By)
	}
	return err
}

// target returns the URL, if it and the name of the header field are valid.
func (u *Upstream) target() (*url.URL, error) {
	if reason := badHeaderName(u.PlanHeader); u.PlanHeader != "" && reason != "" {
		return nil, fmt.Errorf("upstream_plan_header: %q: %s", u.PlanHeader, reason)
	}
	target, err := url.Parse(u.URL)
	switch {
	case err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "":
		return nil, fmt.Errorf("upstream: %q is not a URL such as http://127.0.0.1:3000", withoutUser(u.URL))
	case target.User != nil || target.Fragment != "":
		return nil, errors.New("upstream: the URL has a user or a fragment, which would not be sent; leave it out")
	case mustBeRaw(target):
		return nil, fmt.Errorf("upstream: the path %s has bytes that must be escaped with %%", target.RawPath)
	}
	return target, nil
}

// withoutUser removes what is before the last @ in text, which may be a password.
func withoutUser(text string) string {
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		return "..." + text[at:]
	}
	return text
}

// stall returns how long a connection in use may carry nothing.
func (u *Upstream) stall() time.Duration {
	header := cmp.Or(u.HeaderTimeout, defaultHeaderTimeout)
	return max(cmp.Or(u.IdleTimeout, defaultIdleTimeout), header+header/4)
}

// transport returns the transport to the upstream. It ignores HTTP_PROXY and does
// not decompress bodies.
func (u *Upstream) transport() *http.Transport {
	idle := cmp.Or(u.IdleTimeout, defaultIdleTimeout)
	header := cmp.Or(u.HeaderTimeout, defaultHeaderTimeout)
	connections := cmp.Or(u.IdleConnections, defaultIdleConnections)
	stall := u.stall()
	dialer := &net.Dialer{Timeout: cmp.Or(u.DialTimeout, defaultDialTimeout)}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &idleConn{Conn: c, limit: stall}, nil
		},
		TLSHandshakeTimeout:    cmp.Or(u.TLSTimeout, defaultTLSTimeout),
		ResponseHeaderTimeout:  header,
		ExpectContinueTimeout:  continueTimeout,
		IdleConnTimeout:        idle,
		MaxIdleConns:           connections,
		MaxIdleConnsPerHost:    connections,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
}

// forwardTo returns the handler that forwards requests.
func (s *Server) forwardTo(target *url.URL, u *Upstream) (http.Handler, error) {
	f := newUpstreamFailures(target.Host, u.Report)
	if err := errors.Join(s.metrics.reg.Register(f.counts), s.metrics.reg.Register(f.upgrades)); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	transport, idle := u.transport(), u.stall()
	forward := &httputil.ReverseProxy{
		Rewrite:        s.rewriteTo(target, f),
		Transport:      transport,
		ModifyResponse: f.watch,
		ErrorHandler:   f.answer,
		ErrorLog:       log.New(io.Discard, "", 0), // f counts and reports errors
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &passed{header: w.Header().Clone()}
		clear(w.Header())
		p.to = w.Header()
		r = r.WithContext(context.WithValue(r.Context(), passedKey{}, p))
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &clientBody{ReadCloser: r.Body, passed: p, control: http.NewResponseController(w), idle: idle}
		}
		forward.ServeHTTP(w, r)
	}), nil
}

// passed is what is known of a request that is passed on.
type passed struct {
	// header are the fields that the limits have set. They must be saved because
	// ReverseProxy clears them if there is a 1xx response.
	header http.Header
	to     http.Header // of the response to the client
	// badBody says that the client's body could not be read, which is no failure of
	// the upstream.
	badBody atomic.Bool
}

// passedKey is the context key of a request's *passed.
type passedKey struct{}

func passedOf(r *http.Request) *passed {
	p, _ := r.Context().Value(passedKey{}).(*passed)
	return p
}

// announce adds the limits' fields to the header of the final response.
func (p *passed) announce(to http.Header) {
	for name, values := range p.header {
		to[name] = append(slices.Clone(values), to[name]...)
	}
}

// untyped keeps net/http from adding a Content-Type, which it guesses from the body, to a
// response that has none.
func (p *passed) untyped(r http.Header) {
	if r["Content-Type"] == nil {
		p.to["Content-Type"] = nil
	}
}

// clientBody is the body of a client's request. A Read of which the client sends nothing
// for idle fails; so does what net/http reads after an early Close.
type clientBody struct {
	io.ReadCloser
	passed  *passed
	control *http.ResponseController
	idle    time.Duration

	mu   sync.Mutex
	over bool // read to its end, failed or closed; the deadline is then net/http's
}

func (b *clientBody) Read(p []byte) (int, error) {
	b.deadline(time.Now().Add(b.idle), false)
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
		b.deadline(time.Time{}, false)
	case errors.Is(err, io.EOF):
		b.deadline(time.Time{}, true) // or net/http would take the client for gone when it passes
	case !errors.Is(err, http.ErrBodyReadAfterClose):
		b.passed.badBody.Store(true)
		b.deadline(time.Now(), true) // nothing more is read
	}
	return n, err
}

func (b *clientBody) Close() error {
	b.deadline(time.Now().Add(b.idle), true)
	return b.ReadCloser.Close()
}

// deadline sets the deadline of what is read from the client, unless a call before was the
// last. The recorder of a test has no deadlines.
func (b *clientBody) deadline(t time.Time, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		_ = b.control.SetReadDeadline(t)
		b.over = last
	}
}

// rewriteTo returns the Rewrite of the proxy. It keeps the forwarding fields of a
// trusted proxy, and replaces those of anybody else.
func (s *Server) rewriteTo(target *url.URL, f *upstreamFailures) func(*httputil.ProxyRequest) {
	return func(r *httputil.ProxyRequest) {
		r.Out.URL.RawQuery = r.In.URL.RawQuery // unchanged, because the upstream parses it
		if r.In.RequestURI == "*" {            // OPTIONS of the whole server
			r.Out.URL = &url.URL{Scheme: target.Scheme, Host: target.Host, Opaque: "*"}
		} else {
			r.SetURL(target)
			if mustBeRaw(r.In.URL) {
				r.Out.URL.Opaque = strings.TrimSuffix(target.EscapedPath(), "/") + r.In.URL.RawPath
			}
		}
		r.Out.Host = r.In.Host
		if isWebSocket(r.In) {
			f.upgrades.Inc()
		} else { // another protocol would be a tunnel that bypasses the limits
			r.Out.Header.Del("Upgrade")
			r.Out.Header.Del("Connection")
		}
		if front.Proxies(s.live.Load().TrustedProxies).Sent(r.In.RemoteAddr) {
			keepForwarded(r)
			return
		}
		for name := range r.Out.Header {
			if name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
				delete(r.Out.Header, name)
			}
		}
		r.SetXForwarded()
	}
}

// mustBeRaw reports whether a path has bytes that URL.EscapedPath would escape, and with
// them decode what the client escaped: /a|%2F would become /a%7C/.
func mustBeRaw(u *url.URL) bool { return u.RawPath != "" && u.RawPath != u.EscapedPath() }

// keepForwarded keeps the fields of a trusted proxy and appends its address.
func keepForwarded(r *httputil.ProxyRequest) {
	in := r.In.Header
	r.Out.Header["X-Forwarded-For"] = in["X-Forwarded-For"]
	r.SetXForwarded()
	for _, name := range [...]string{"Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values := in[name]; values != nil {
			r.Out.Header[name] = slices.Clone(values)
		}
	}
}

// isWebSocket reports whether a request asks for an upgrade to WebSocket, and to no
// other protocol.
func isWebSocket(r *http.Request) bool {
	up := r.Header["Upgrade"]
	if r.Method != http.MethodGet || len(up) != 1 || !strings.EqualFold(up[0], "websocket") {
		return false
	}
	for _, line := range r.Header["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}
