package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/front"
)

// Proxy is a reverse proxy that forwards requests to an upstream if limits allow them.
type Proxy struct {
	server  *Server
	key     httplimit.KeyFunc
	plan    string // name of the header field with the plan, or ""
	floor   int64
	byIP    bool
	client  time.Duration // see Upstream.ClientTimeout
	forward http.Handler
	limited atomic.Pointer[http.Handler]
}

// Proxy returns a reverse proxy. Only one is possible, because its counters are in /metrics.
func (s *Server) Proxy(u Upstream) (*Proxy, error) {
	target, err := u.target()
	if err != nil {
		return nil, err
	}
	key, err := s.keyBy(u.By)
	if err != nil {
		return nil, err
	}
	forward, err := s.forwardTo(target, &u)
	if err != nil {
		return nil, err
	}
	return &Proxy{server: s, key: key, plan: u.PlanHeader, floor: u.Floor, byIP: u.By == "ip" || u.By == "", client: cmp.Or(u.ClientTimeout, answerTimeout), forward: forward}, nil
}

// Use sets the limits that each request takes from, all or nothing, from the next request
// on. Their header fields announce the decision.
func (p *Proxy) Use(limits []string) error {
	if len(limits) == 0 {
		p.limited.Store(&p.forward)
		return nil
	}
	c := httplimit.Config{Headers: p.server.live.Load().Headers, Observe: p.server.Observe, Failed: p.failed}
	for _, name := range limits {
		def := p.server.limiter.Limit(name)
		if def == nil {
			return fmt.Errorf("upstream: %w %q: it is not in the store, and every request takes from it", dipwell.ErrUnknownLimit, name)
		}
		if def.Paths && !def.Shared {
			return fmt.Errorf("limit %s: its keys are paths, because it has a parent or is one, but the proxy's keys are not", name)
		}
		limit := httplimit.Limit{Name: name, Key: p.key, Floor: p.floor}
		if def.Shared {
			limit.Key = nil
		} else if p.key == nil {
			return fmt.Errorf("by: shared: limit %s has a bucket for each key; with shared: true it has one for everybody", name)
		}
		if p.plan != "" {
			limit.Plan = func(r *http.Request) string { return p.planOf(r, name) }
		}
		c.Limits = append(c.Limits, limit)
	}
	wrap, err := httplimit.New(p.server.limiter, c)
	if err != nil {
		return err
	}
	h := wrap(p.forward)
	p.limited.Store(&h)
	return nil
}

// planOf returns the plan that a request names. It is "" if callers may not name plans,
// or if the limit has no such plan.
func (p *Proxy) planOf(r *http.Request, limit string) string {
	plan := r.Header.Get(p.plan)
	if def := p.server.limiter.Limit(limit); plan != "" && def != nil {
		if d := def.WithPlan(plan); d != nil && !d.OverrideOnly && !d.Children {
			return plan
		}
	}
	return ""
}

// wait waits for the delay of a leaky bucket, but not in shadow mode.
func (p *Proxy) wait(ctx context.Context, wait func(ctx context.Context) error) error {
	if p.server.live.Load().Shadow {
		return nil
	}
	return p.server.waiting(ctx, wait)
}

// failed answers a request that could not be decided, or that could not wait. failed
// counts requests without a key; other errors are already counted by Observe.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errShed) {
		shed(w)
		return
	}
	if errors.As(err, new(*dipwell.FieldError)) && !errors.Is(err, dipwell.ErrUnknownLimit) {
		p.server.metrics.keyless("", p.byIP, err)
		if p.server.live.Load().Shadow {
			p.forward.ServeHTTP(w, r)
			return
		}
	}
	httplimit.Fail(w, err)
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)        // an error of its methods means that w has no deadlines
	_ = control.SetWriteDeadline(time.Time{})       // removes the deadline of the request before
	if r.ProtoMajor == 1 && r.Body != http.NoBody { // net/http reads the body before it answers
		_ = control.SetReadDeadline(time.Now().Add(p.client))
	}
	if r.Method == http.MethodConnect { // a tunnel would bypass the limits
		httplimit.Problem(w, http.StatusMethodNotAllowed, "", "CONNECT is not passed on")
		return
	}
	if mustBeRaw(r.URL) && strings.HasPrefix(r.URL.RawPath, "//") { // url.URL would take such a path for a host
		httplimit.Problem(w, http.StatusBadRequest, "", "the path begins with // and has bytes that must be escaped with %")
		return
	}
	if !p.server.Enter() {
		shed(w)
		return
	}
	defer p.server.Leave()
	ctx := front.Proxied(r.Context(), p.wait)
	if isWebSocket(r) {
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		defer end()
		defer context.AfterFunc(p.server.tunnels, end)()
	}
	(*p.limited.Load()).ServeHTTP(w, r.WithContext(ctx))
}

func (s *Server) keyBy(by string) (httplimit.KeyFunc, error) {
	header, isHeader := strings.CutPrefix(by, "header:")
	switch {
	case by == "ip" || by == "":
		return func(r *http.Request) (string, error) { return s.live.Load().clientIP(r) }, nil
	case by == "shared":
		return nil, nil
	case isHeader:
		if reason := badHeaderName(header); reason != "" {
			return nil, fmt.Errorf("by: %q: %s", by, reason)
		}
		return httplimit.Header(header), nil
	}
	return nil, fmt.Errorf("by: %q is not ip, shared or header:NAME", by)
}
