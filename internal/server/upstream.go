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
	"time"

	"github.com/dipwell/dipwell/httplimit"
)

// Upstream says where a Proxy passes requests on to, and how long it waits
// there. A zero field means the default named in its comment.
type Upstream struct {
	URL           string        // http or https
	By            string        // whose bucket a request takes from: ip (default), shared, header:NAME
	DialTimeout   time.Duration // to connect; default 5 s
	TLSTimeout    time.Duration // for the TLS handshake; default 5 s
	HeaderTimeout time.Duration // from the end of the request to the header of the answer; default 60 s
	// IdleTimeout is how long an idle connection is kept, and how long one in
	// use may carry no byte in either direction, but never less than 5/4 of
	// HeaderTimeout; default 90 s.
	IdleTimeout     time.Duration
	IdleConnections int         // kept for the next requests; default 256
	Report          func(error) // hears of failures, of each kind once a minute; default nobody
}

const (
	defaultDialTimeout     = 5 * time.Second
	defaultTLSTimeout      = 5 * time.Second
	defaultHeaderTimeout   = time.Minute
	defaultIdleTimeout     = 90 * time.Second
	defaultIdleConnections = 256
	continueTimeout        = time.Second // for an answer to Expect: 100-continue
	maxResponseHeader      = 1 << 20
)

// Check says what a Proxy of this upstream would refuse.
func (u Upstream) Check() error {
	if _, err := u.target(); err != nil {
		return err
	}
	_, err := (&Server{}).keyBy(u.By)
	return err
}

func (u *Upstream) target() (*url.URL, error) {
	target, err := url.Parse(u.URL)
	switch {
	case err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "":
		return nil, fmt.Errorf("upstream: %q is not a URL such as http://127.0.0.1:3000", withoutUser(u.URL))
	case target.User != nil || target.Fragment != "":
		return nil, errors.New("upstream: the URL has a user or a fragment, which would not be sent; leave it out")
	}
	return target, nil
}

// withoutUser returns text, or if it has an @ what follows it: before it there
// may be a password.
func withoutUser(text string) string {
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		return "..." + text[at:]
	}
	return text
}

// transport asks the upstream itself, never a proxy that HTTP_PROXY names, and
// leaves bodies compressed as they come.
func (u *Upstream) transport() *http.Transport {
	idle := cmp.Or(u.IdleTimeout, defaultIdleTimeout)
	header := cmp.Or(u.HeaderTimeout, defaultHeaderTimeout)
	connections := cmp.Or(u.IdleConnections, defaultIdleConnections)
	dialer := &net.Dialer{Timeout: cmp.Or(u.DialTimeout, defaultDialTimeout)}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &idleConn{Conn: c, limit: max(idle, header+header/4)}, nil
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

// passTo is the handler that passes requests on.
func (s *Server) passTo(target *url.URL, u *Upstream) (http.Handler, error) {
	f := newUpstreamFailures(target.Host, u.Report)
	if err := s.metrics.reg.Register(f); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite:        s.rewriteTo(target, f),
		Transport:      u.transport(),
		ModifyResponse: f.watch,
		ErrorHandler:   f.answer,
		ErrorLog:       log.New(io.Discard, "", 0), // f has counted and reported it
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := w.Header().Clone()
		clear(w.Header())
		forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ownHeader{}, own)))
	}), nil
}

// ownHeader is the key of what the limits put into the answer's header before
// the upstream was asked. ReverseProxy clears it when a 1xx answer comes first.
type ownHeader struct{}

// announce adds it to the header of the final answer.
func announce(to http.Header, r *http.Request) {
	own, _ := r.Context().Value(ownHeader{}).(http.Header)
	for name, values := range own {
		to[name] = append(slices.Clone(values), to[name]...)
	}
}

// rewriteTo keeps what a trusted proxy said of the way so far, and nobody
// else's word.
func (s *Server) rewriteTo(target *url.URL, f *upstreamFailures) func(*httputil.ProxyRequest) {
	return func(r *httputil.ProxyRequest) {
		r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came: the upstream decides what is a parameter
		r.SetURL(target)
		r.Out.Host = r.In.Host
		if isWebSocket(r.In) {
			f.upgrades.Add(1)
		} else { // any other protocol would be a tunnel past the limits
			r.Out.Header.Del("Upgrade")
			r.Out.Header.Del("Connection")
		}
		if httplimit.Trusted(s.live.Load().trusted, r.In.RemoteAddr) {
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

// isWebSocket reports whether a request asks for the one protocol that is
// passed on, and for no other beside it.
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
