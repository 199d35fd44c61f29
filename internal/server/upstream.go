package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/front"
)

// Upstream configures the upstream of a Proxy. Only URL is required.
type Upstream struct {
	URL           string        // the upstream's address, http or https
	By            string        // what the key of a request is: ip (default), shared, header:NAME
	PlanHeader    string        // header field with the plan of a request; default: none
	Floor         int64         // tokens that a request must leave free
	Timeout       time.Duration // longest time without a byte to or from the upstream, except on a WebSocket; default ten minutes
	ClientTimeout time.Duration // longest time without a byte from or to the client, for each part of a body; default a minute
	Report        func(error)   // if set, called for failures, once a minute for each kind
}

const (
	upstreamTimeout   = 10 * time.Minute
	idleConnections   = 256 // idle connections to the upstream that are kept
	maxResponseHeader = 1 << 20
)

// Check returns the error that Server.Proxy would return for u.
func (u Upstream) Check() error {
	_, err := u.target()
	if err == nil {
		_, err = (&Server{}).keyBy(u.By)
	}
	return err
}

// target returns the upstream's URL, if it and the name of the header field are valid.
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

// withoutUser removes what precedes the last @ in a text, which may be a password.
func withoutUser(text string) string {
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		return "..." + text[at:]
	}
	return text
}

// transport returns the transport to the upstream: that of net/http, which connects in 30
// seconds. The transport ignores HTTP_PROXY and does not decompress bodies.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil
	t.MaxIdleConns, t.MaxIdleConnsPerHost = idleConnections, idleConnections
	t.MaxResponseHeaderBytes = maxResponseHeader
	t.DisableCompression = true
	return t
}

func (s *Server) forwardTo(target *url.URL, u *Upstream) (http.Handler, error) {
	f := newUpstreamFailures(target.Host, u.Report)
	if err := s.metrics.reg.Register(f.counts); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite:        s.rewriteTo(target),
		Transport:      transport(),
		ModifyResponse: f.watch,
		ErrorHandler:   f.answer,
		ErrorLog:       log.New(io.Discard, "", 0), // upstreamFailures counts and reports errors
	}
	timeout, client := cmp.Or(u.Timeout, upstreamTimeout), cmp.Or(u.ClientTimeout, answerTimeout)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &passed{ResponseWriter: w, control: http.NewResponseController(w), client: client, header: w.Header().Clone(), timeout: timeout}
		clear(w.Header())
		ctx, end := context.WithCancelCause(context.WithValue(r.Context(), passedKey{}, p))
		p.late = time.AfterFunc(timeout, func() { end(os.ErrDeadlineExceeded) })
		defer p.late.Stop()
		if r = r.WithContext(ctx); r.Body != nil && r.Body != http.NoBody {
			r.Body = &clientBody{r.Body, p}
		}
		forward.ServeHTTP(p, r)
	}), nil
}

// passed is a request that the proxy passes on, and its ResponseWriter. Each part of a body
// that the client sends or takes must make progress within a time.
type passed struct {
	http.ResponseWriter
	control *http.ResponseController // an error of its methods means that there are no deadlines
	client  time.Duration
	// header has the fields that the limits have set. They must be saved because
	// ReverseProxy clears them if there is a 1xx response.
	header http.Header
	// badBody says that the client's body could not be read, no failure of the upstream.
	badBody atomic.Bool
	timeout time.Duration
	late    *time.Timer // ends the request when the timeout since its last progress is over
}

// Unwrap is for http.ResponseController.
func (p *passed) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *passed) WriteHeader(status int) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.client))
	p.ResponseWriter.WriteHeader(status)
}

func (p *passed) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.client))
	return p.ResponseWriter.Write(b)
}

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

type clientBody struct {
	io.ReadCloser
	*passed
}

func (b *clientBody) Read(p []byte) (int, error) {
	b.late.Reset(b.timeout)
	_ = b.control.SetReadDeadline(time.Now().Add(b.client)) // net/http removes the deadline at the end of the body
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.badBody.Store(true)
	}
	return n, err
}

// rewriteTo returns the function Rewrite of the proxy. rewriteTo keeps the forwarding
// header fields of a trusted proxy, and replaces those of anybody else.
func (s *Server) rewriteTo(target *url.URL) func(*httputil.ProxyRequest) {
	return func(r *httputil.ProxyRequest) {
		r.Out.URL.RawQuery = r.In.URL.RawQuery // unchanged, because the upstream parses it
		if r.In.RequestURI == "*" {            // an OPTIONS request for the whole server
			r.Out.URL = &url.URL{Scheme: target.Scheme, Host: target.Host, Opaque: "*"}
		} else {
			r.SetURL(target)
			if mustBeRaw(r.In.URL) {
				r.Out.URL.Opaque = strings.TrimSuffix(target.EscapedPath(), "/") + r.In.URL.RawPath
			}
		}
		r.Out.Host = r.In.Host
		if !isWebSocket(r.In) { // another protocol would be a tunnel that bypasses the limits
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

// mustBeRaw reports whether a path has bytes that URL.EscapedPath would escape, and then
// decode what the client escaped: /a|%2F would become /a%7C/.
func mustBeRaw(u *url.URL) bool { return u.RawPath != "" && u.RawPath != u.EscapedPath() }

// keepForwarded keeps the forwarding fields of a trusted proxy and appends its address.
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

// isWebSocket reports whether a request asks for an upgrade to WebSocket, and nothing else.
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
