package server

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/dipwell/dipwell/httplimit"
)

// Proxy passes requests on to one upstream while its limits allow.
type Proxy struct {
	server  *Server
	key     httplimit.KeyFunc
	forward http.Handler
	limited atomic.Pointer[http.Handler]
}

// Proxy returns a reverse proxy to an http or https URL. by says whose bucket
// a request takes from: ip, header:NAME, or shared.
func (s *Server) Proxy(upstream, by string) (*Proxy, error) {
	target, err := url.Parse(upstream)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
		return nil, fmt.Errorf("upstream: %q is not a URL such as http://127.0.0.1:3000", upstream)
	}
	key, err := s.keyBy(by)
	if err != nil {
		return nil, err
	}
	p := &Proxy{server: s, key: key}
	p.forward = &httputil.ReverseProxy{Rewrite: s.rewriteTo(target), ErrorHandler: badGateway}
	return p, nil
}

// Use holds requests to these limits, all or nothing, from the next request on,
// and announces them as the server is set to.
func (p *Proxy) Use(limits []string) error {
	if len(limits) == 0 {
		p.limited.Store(&p.forward)
		return nil
	}
	c := httplimit.Config{Headers: p.server.live.Load().headers, Observe: p.server.Observe}
	for _, name := range limits {
		c.Limits = append(c.Limits, httplimit.Limit{Name: name, Key: p.key})
	}
	wrap, err := httplimit.New(p.server.limiter, c)
	if err != nil {
		return err
	}
	h := wrap(p.forward)
	p.limited.Store(&h)
	return nil
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.server.Enter() {
		shed(w)
		return
	}
	defer p.server.Leave()
	(*p.limited.Load()).ServeHTTP(w, r)
}

func (s *Server) keyBy(by string) (httplimit.KeyFunc, error) {
	header, isHeader := strings.CutPrefix(by, "header:")
	switch {
	case by == "ip" || by == "":
		return func(r *http.Request) (string, error) { return s.live.Load().clientIP(r) }, nil
	case by == "shared":
		return nil, nil
	case isHeader && header != "":
		return httplimit.Header(header), nil
	}
	return nil, fmt.Errorf("by: %q is not ip, shared or header:NAME", by)
}

// rewriteTo keeps what a trusted proxy said of the way so far, and nobody else's word.
func (s *Server) rewriteTo(target *url.URL) func(*httputil.ProxyRequest) {
	return func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
		if httplimit.Trusted(s.live.Load().trusted, r.In.RemoteAddr) {
			r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
		}
		r.SetXForwarded()
	}
}

func badGateway(w http.ResponseWriter, _ *http.Request, _ error) {
	httplimit.Problem(w, http.StatusBadGateway, "", "the upstream does not answer")
}
