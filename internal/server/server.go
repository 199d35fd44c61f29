package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/ui"
	"github.com/dipwell/dipwell/store"
)

// Config configures a Server. The zero value is valid.
type Config struct {
	Headers        httplimit.Headers // default IETF
	TrustedProxies []netip.Prefix    // proxies whose X-Forwarded-For is read; default: none
	AdminToken     string            // token of admin calls; default: none, and then admin calls need a loopback listener
	Callers        []Caller          // who may call, with distinct tokens; default: anybody, but not admin calls
	MaxInFlight    int               // calls in flight, above which calls get 503; default defaultInFlight
	Store          string            // value of the label store in metrics; default memory; read by New only
	Labels         map[string]string // labels of every metric, checked by CheckLabels; read by New only
	Shadow         bool              // allow requests without a key at forward-auth and the proxy
	Who            string            // name for the audit of calls that have no address; for callers in this process
	StoreErrors    bool              // send the text of a store's error, which may contain its address; for callers in this process; read by New only
	// HashKey returns the store's key in place of a caller's, if keys are hashed; default nil.
	// Lists of keys show the store's. Only New reads HashKey.
	HashKey func(limit, key string) string
}

// A Server serves a limiter.
type Server struct {
	limiter  *dipwell.Limiter
	can      store.Abilities // abilities of the limiter's store
	live     atomic.Pointer[live]
	metrics  *metrics
	stopped  context.Context // ends when Stop is called
	stop     context.CancelFunc
	tunnels  context.Context // ends when the WebSockets of a Proxy must end
	cut      context.CancelFunc
	inFlight inFlight
	streams  atomic.Int64 // calls of gRPC in flight; see begin
	waiters  atomic.Int64 // calls of /v1/wait, and requests of a Proxy, that wait
	readies  atomic.Int64 // calls of /v1/ready that are being decided
	tops     topAnswers
	tells    bool                           // Config.StoreErrors
	hashKey  func(limit, key string) string // Config.HashKey
	extra    []route                        // see Handle
	gauges   map[string]func() float64      // by name
}

// live is the configuration, which can change while the server runs, and what follows from it.
type live struct {
	Config
	clientIP httplimit.KeyFunc
	byToken  map[[sha256.Size]byte]*Caller // callers by the digest of their token, also that of the admin token
	named    bool                          // there are callers besides that of the admin token, so every call needs a token
}

// New returns a server over a limiter.
func New(limiter *dipwell.Limiter, c Config) *Server {
	s := &Server{limiter: limiter, can: store.AbilitiesOf(limiter.Store()), tells: c.StoreErrors, hashKey: c.HashKey, gauges: map[string]func() float64{}}
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.tunnels, s.cut = context.WithCancel(context.Background())
	s.metrics = newMetrics(c.Store, c.Labels, s.can.Metrics)
	s.Gauge("dipwell_in_flight", "Calls in flight.", func() float64 { return float64(s.inFlight.n.Load()) })
	s.metrics.reg.MustRegister(adaptiveMetrics{limiter})
	s.Gauge("dipwell_waiting", "Calls of /v1/wait in flight, and proxied requests that wait for a leaky bucket.", func() float64 { return float64(s.waiters.Load()) })
	s.Set(c)
	return s
}

// Set changes the configuration. It takes effect with the next request.
func (s *Server) Set(c Config) {
	c.MaxInFlight = cmp.Or(c.MaxInFlight, defaultInFlight)
	l := &live{Config: c, clientIP: httplimit.ClientIP(c.TrustedProxies...)}
	l.named, l.byToken = len(c.Callers) > 0, map[[sha256.Size]byte]*Caller{}
	for _, c := range c.Callers {
		l.byToken[c.Token] = &c
	}
	if c.AdminToken != "" {
		admin := Caller{Name: AdminCaller, Role: Admin, Token: sha256.Sum256([]byte(c.AdminToken))}
		l.byToken[admin.Token] = &admin
	}
	s.live.Store(l)
}

// Stop makes /readyz answer 503, so that load balancers stop sending requests
// while the last ones are answered. Calls of /v1/wait end at once and take nothing.
func (s *Server) Stop() { s.stop() }

// Handle adds a handler of calls that need a role to APIs that are made afterwards.
// The pattern is that of http.ServeMux.
func (s *Server) Handle(pattern string, needs Role, h http.Handler) {
	s.extra = append(s.extra, route{path: pattern, needs: needs, handle: func(_ *api, w http.ResponseWriter, r *http.Request, _ *query) error {
		h.ServeHTTP(w, r)
		return nil
	}})
}

// Site describes the listener of an API.
type Site struct {
	Loopback  bool   // only this machine can connect
	NoAdmin   bool   // admin calls are on another listener
	AdminAt   string // address of the admin listener, if NoAdmin, for a browser that asks for the page here
	Open      bool   // calls that cannot carry a token are answered even if there are callers
	NoMetrics bool   // /metrics is on another listener
	NoLimits  bool   // GET /v1/limits and below is on another listener
}

// API returns the handler of the whole API for a listener.
func (s *Server) API(at Site) http.Handler {
	a := &api{Server: s, site: at, rest: http.NewServeMux(), hot: map[string]http.HandlerFunc{}, always: map[string]bool{}, document: sync.OnceValue(openAPI)}
	// A compressor would need a megabyte. Metrics of the store whose name another one has are left out.
	a.scrape = promhttp.HandlerFor(s.metrics.gather, promhttp.HandlerOpts{DisableCompression: true, ErrorHandling: promhttp.ContinueOnError})
	for _, r := range append(routes(), s.extra...) {
		a.add(r)
	}
	a.rest.HandleFunc("GET "+pagePath, a.page)
	a.pages = ui.Handler()
	return a
}

// api is the API of one listener.
type api struct {
	*Server
	site Site
	hot  map[string]http.HandlerFunc // the verbs by path
	rest *http.ServeMux

	always   map[string]bool // paths that are answered during an overload too
	scrape   http.Handler    // of /metrics
	pages    http.Handler    // below pagePath
	document func() []byte   // /openapi.json, made when it is first asked for
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if reason := a.crossSite(r); reason != "" {
		httplimit.Problem(w, http.StatusForbidden, "", reason)
		return
	}
	verb := a.hot[r.URL.Path]
	if verb != nil || !a.always[r.URL.Path] && !strings.HasPrefix(r.URL.Path, pagePath) {
		if !a.Enter() {
			shed(w)
			return
		}
		defer a.Leave()
	}
	if verb != nil && r.Method == http.MethodPost {
		r.Pattern = r.URL.Path // set as the mux sets it, for traces
		verb(w, r)
		return
	}
	if r.URL.Path == "/" && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") { // a browser
		http.Redirect(w, r, pagePath, http.StatusSeeOther)
		return
	}
	p := r.URL.EscapedPath() // the mux would redirect from one that is not clean, with an answer in HTML
	if _, pattern := a.rest.Handler(r); pattern == "" || strings.TrimSuffix(p, "/") != strings.TrimSuffix(path.Clean(p), "/") {
		a.noRoute(w, r)
		return
	}
	a.rest.ServeHTTP(w, r)
}

// noRoute answers 404 or 405 as the mux would, but with a problem document.
func (a *api) noRoute(w http.ResponseWriter, r *http.Request) {
	probe := &discard{h: http.Header{}}
	a.rest.ServeHTTP(probe, r)
	if allow := probe.h.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		if i := strings.LastIndex(allow, ", "); i >= 0 {
			allow = allow[:i] + " or " + allow[i+2:]
		}
		httplimit.Problem(w, http.StatusMethodNotAllowed, "", r.Method+" is not allowed here; use "+allow)
		return
	}
	httplimit.Problem(w, http.StatusNotFound, "", "there is nothing at this path")
}

// discard is an http.ResponseWriter that keeps only the header.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
