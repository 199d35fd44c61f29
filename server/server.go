package server

import (
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
)

// Config says how the API answers. The zero Config is a working one.
type Config struct {
	Headers        httplimit.Headers // default IETF
	TrustedProxies []netip.Prefix    // whose X-Forwarded-For is believed; default: nobody's
	AdminToken     string            // what admin calls must carry; default: they need a loopback listener
}

// A Server answers calls on a limiter.
type Server struct {
	limiter  *dipwell.Limiter
	live     atomic.Pointer[live]
	metrics  *metrics
	stopping atomic.Bool

	conditions []func(context.Context) error // of /readyz
}

// live is what may change while the server runs.
type live struct {
	headers  httplimit.Headers
	trusted  []netip.Prefix
	clientIP httplimit.KeyFunc
	token    *[sha256.Size]byte // nil: none
}

// New returns a server over a limiter.
func New(limiter *dipwell.Limiter, c Config) *Server {
	s := &Server{limiter: limiter, metrics: newMetrics()}
	s.Set(c)
	return s
}

// Set changes the configuration, from the next request on.
func (s *Server) Set(c Config) {
	l := &live{headers: c.Headers, trusted: c.TrustedProxies, clientIP: httplimit.ClientIP(c.TrustedProxies...)}
	if c.AdminToken != "" {
		sum := sha256.Sum256([]byte(c.AdminToken))
		l.token = &sum
	}
	s.live.Store(l)
}

// Stop makes /readyz answer 503, so that balancers look elsewhere while the
// last requests drain.
func (s *Server) Stop() { s.stopping.Store(true) }

// Site is what the API must know of the listener it answers on.
type Site struct {
	Loopback bool // only this machine reaches it
	NoAdmin  bool // admin calls have a listener of their own
}

// API is the handler of the whole API on one listener.
func (s *Server) API(at Site) http.Handler {
	a := &api{Server: s, site: at, rest: http.NewServeMux()}
	a.hot = map[string]*verbCall{}
	for _, v := range []dipwell.Verb{dipwell.VerbTake, dipwell.VerbCheck, dipwell.VerbTakeUpTo, dipwell.VerbReserve,
		dipwell.VerbCharge, dipwell.VerbRefund, dipwell.VerbReset} {
		a.hot["/v1/"+v.String()] = &verbCall{verb: v, admin: v >= dipwell.VerbRefund}
	}
	a.rest.HandleFunc("POST /v1/cancel", a.cancel)
	a.rest.HandleFunc("/v1/auth", a.auth)
	a.rest.HandleFunc("GET /v1/limits", a.listLimits)
	a.rest.HandleFunc("GET /v1/limits/{name}", a.getLimit)
	a.rest.HandleFunc("PUT /v1/limits/{name}", a.admin(a.putLimit))
	a.rest.HandleFunc("DELETE /v1/limits/{name}", a.admin(a.deleteLimit))
	a.rest.HandleFunc("GET /v1/limits/{name}/keys", a.admin(a.keys))
	a.rest.HandleFunc("GET /healthz", a.healthz)
	a.rest.HandleFunc("GET /readyz", a.readyz)
	a.rest.Handle("GET /metrics", s.metrics.handler())
	return a
}

// api is the API on one listener.
type api struct {
	*Server
	site Site
	hot  map[string]*verbCall // the verbs, found without the mux's tree
	rest *http.ServeMux
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if reason := a.foreign(r); reason != "" {
		httplimit.Problem(w, http.StatusForbidden, "", reason)
		return
	}
	if c := a.hot[r.URL.Path]; c != nil {
		a.call(w, r, c)
		return
	}
	if _, pattern := a.rest.Handler(r); pattern == "" {
		a.noRoute(w, r)
		return
	}
	a.rest.ServeHTTP(w, r)
}

// noRoute answers as the mux would, with a problem for a body.
func (a *api) noRoute(w http.ResponseWriter, r *http.Request) {
	probe := &statusOnly{h: http.Header{}}
	a.rest.ServeHTTP(probe, r)
	if allow := probe.h.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		httplimit.Problem(w, http.StatusMethodNotAllowed, "", r.Method+" is not among "+allow)
		return
	}
	httplimit.Problem(w, http.StatusNotFound, "", "there is nothing at this path")
}

// statusOnly is a response nobody reads.
type statusOnly struct{ h http.Header }

func (s *statusOnly) Header() http.Header         { return s.h }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(int)             {}
