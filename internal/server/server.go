package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// Config says how the API answers. The zero Config is a working one.
type Config struct {
	Headers        httplimit.Headers // default IETF
	TrustedProxies []netip.Prefix    // whose X-Forwarded-For is believed; default: nobody's
	AdminToken     string            // what admin calls must carry; default: they need a loopback listener
	MaxInFlight    int               // calls under way at one time; more are turned away; default DefaultInFlight
	Store          string            // what metrics call the store; default memory; only New reads it
	Labels         map[string]string // that every metric carries, as CheckLabels allows them; only New reads it
	Shadow         bool              // requests of forward-auth and of the proxy pass even if they do not tell whose they are
}

// A Server answers calls on a limiter.
type Server struct {
	limiter  *dipwell.Limiter
	live     atomic.Pointer[live]
	metrics  *metrics
	stopping atomic.Bool
	under    inFlight

	conditions []func(context.Context) error // of /readyz
	extra      map[string]http.Handler       // by their patterns
}

// live is what may change while the server runs.
type live struct {
	headers  httplimit.Headers
	trusted  []netip.Prefix
	clientIP httplimit.KeyFunc
	token    *[sha256.Size]byte // nil: none

	maxInFlight int64
	shadow      bool
}

// New returns a server over a limiter.
func New(limiter *dipwell.Limiter, c Config) *Server {
	s := &Server{limiter: limiter, metrics: newMetrics(c.Store, c.Labels)}
	s.Gauge("dipwell_in_flight", "Calls under way.", func() float64 { return float64(s.under.n.Load()) })
	s.Set(c)
	return s
}

// Set changes the configuration, from the next request on.
func (s *Server) Set(c Config) {
	l := &live{headers: c.Headers, trusted: c.TrustedProxies, clientIP: httplimit.ClientIP(c.TrustedProxies...),
		shadow: c.Shadow, token: digest(c.AdminToken), maxInFlight: int64(cmp.Or(c.MaxInFlight, DefaultInFlight))}
	s.live.Store(l)
}

// SetAdminToken changes the admin token alone, from the next call on. It must
// not overlap Set.
func (s *Server) SetAdminToken(token string) {
	l := *s.live.Load()
	l.token = digest(token)
	s.live.Store(&l)
}

// digest is nil for no token.
func digest(token string) *[sha256.Size]byte {
	if token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	return &sum
}

// Stop makes /readyz answer 503, so that balancers look elsewhere while the
// last requests drain.
func (s *Server) Stop() { s.stopping.Store(true) }

// Handle adds a path to every API that is made from now on. The pattern is net/http's.
func (s *Server) Handle(pattern string, h http.Handler) {
	if s.extra == nil {
		s.extra = map[string]http.Handler{}
	}
	s.extra[pattern] = h
}

// Site is what the API must know of the listener it answers on.
type Site struct {
	Loopback  bool // only this machine reaches it
	NoAdmin   bool // admin calls have a listener of their own
	NoMetrics bool // and so has /metrics
	NoLimits  bool // and reading definitions, GET /v1/limits and below
}

// API is the handler of the whole API on one listener.
func (s *Server) API(at Site) http.Handler {
	a := &api{Server: s, site: at, rest: http.NewServeMux()}
	a.hot = map[string]*verbCall{}
	for _, v := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve,
		store.VerbCharge, store.VerbRefund, store.VerbReset} {
		a.hot["/v1/"+v.String()] = &verbCall{verb: v, admin: v >= store.VerbRefund}
	}
	a.rest.HandleFunc("POST /v1/cancel", a.cancel)
	a.rest.HandleFunc("/v1/auth", a.auth)
	a.rest.HandleFunc("GET /v1/limits", elsewhere(at.NoLimits, a.listLimits))
	a.rest.HandleFunc("GET /v1/limits/{name}", elsewhere(at.NoLimits, a.bare(a.getLimit)))
	a.rest.HandleFunc("PUT /v1/limits/{name}", a.admin(a.putLimit))
	a.rest.HandleFunc("DELETE /v1/limits/{name}", a.admin(a.bare(a.deleteLimit)))
	a.rest.HandleFunc("GET /v1/limits/{name}/keys", a.admin(a.keys))
	a.rest.HandleFunc("GET /v1/top", a.admin(a.top))
	a.rest.HandleFunc("GET /healthz", a.bare(a.healthz))
	a.rest.HandleFunc("GET /readyz", a.bare(a.readyz))
	a.rest.HandleFunc("GET /metrics", elsewhere(at.NoMetrics, a.bare(s.metrics.handler().ServeHTTP)))
	for pattern, h := range s.extra {
		a.rest.HandleFunc(pattern, a.bare(h.ServeHTTP))
	}
	return a
}

// elsewhere is a handler, or a refusal where another listener has it.
func elsewhere(is bool, next http.HandlerFunc) http.HandlerFunc {
	if !is {
		return next
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		httplimit.Problem(w, http.StatusForbidden, "", "this is answered on the admin listener")
	}
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
	c := a.hot[r.URL.Path]
	if c != nil || !alwaysAnswered[r.URL.Path] {
		if !a.Enter() {
			shed(w)
			return
		}
		defer a.Leave()
	}
	if c != nil {
		a.call(w, r, c)
		return
	}
	if _, pattern := a.rest.Handler(r); pattern == "" {
		a.noRoute(w, r)
		return
	}
	a.rest.ServeHTTP(w, r)
}

// alwaysAnswered are what an overload is seen by.
var alwaysAnswered = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

// noRoute answers as the mux would, with a problem for a body.
func (a *api) noRoute(w http.ResponseWriter, r *http.Request) {
	probe := &statusOnly{h: http.Header{}}
	a.rest.ServeHTTP(probe, r)
	if allow := probe.h.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		httplimit.Problem(w, http.StatusMethodNotAllowed, "", notAllowed(r.Method, allow))
		return
	}
	httplimit.Problem(w, http.StatusNotFound, "", "there is nothing at this path")
}

// notAllowed says which methods a path has.
func notAllowed(method, allow string) string {
	if i := strings.LastIndex(allow, ", "); i >= 0 {
		allow = allow[:i] + " or " + allow[i+2:]
	}
	return method + " is not allowed here; use " + allow
}

// statusOnly is a response nobody reads.
type statusOnly struct{ h http.Header }

func (s *statusOnly) Header() http.Header         { return s.h }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(int)             {}
