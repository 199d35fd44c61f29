package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/config"
	"github.com/dipwell/dipwell/server"
)

// UpstreamFlags are serve's settings of a reverse proxy.
type UpstreamFlags struct {
	Upstream                string `placeholder:"URL" env:"DIPWELL_UPSTREAM" help:"Be a rate-limiting reverse proxy of this URL: every request on --listen takes 1 from each limit of the flags and the file, all or nothing. The API is then on --admin."`
	By                      string `placeholder:"WHAT" env:"DIPWELL_BY" help:"Whose bucket a proxied request takes from: ip (default), shared, or header:NAME."`
	UpstreamDialTimeout     string `placeholder:"TIME" env:"DIPWELL_UPSTREAM_DIAL_TIMEOUT" help:"To connect to the upstream (default 5s)."`
	UpstreamTLSTimeout      string `name:"upstream-tls-timeout" placeholder:"TIME" env:"DIPWELL_UPSTREAM_TLS_TIMEOUT" help:"For the TLS handshake with it (default 5s)."`
	UpstreamHeaderTimeout   string `placeholder:"TIME" env:"DIPWELL_UPSTREAM_HEADER_TIMEOUT" help:"For the header of its answer (default 60s)."`
	UpstreamIdleTimeout     string `placeholder:"TIME" env:"DIPWELL_UPSTREAM_IDLE_TIMEOUT" help:"How long a connection to it may carry nothing, in an answer or a WebSocket too (default 90s)."`
	UpstreamIdleConnections int    `placeholder:"N" env:"DIPWELL_UPSTREAM_IDLE_CONNECTIONS" help:"Idle connections to it that are kept (default 256)."`
}

// over puts what was given before what the file says.
func (u *UpstreamFlags) over(f *config.File) error {
	f.Upstream = cmp.Or(u.Upstream, f.Upstream)
	f.By = cmp.Or(u.By, f.By)
	f.UpstreamIdle = cmp.Or(u.UpstreamIdleConnections, f.UpstreamIdle)
	if f.UpstreamIdle < 0 {
		return fmt.Errorf("upstream_idle_connections: %d is negative", f.UpstreamIdle)
	}
	for _, t := range []struct {
		name, given string
		to          *time.Duration
	}{
		{"upstream_dial_timeout", u.UpstreamDialTimeout, &f.UpstreamTimes.Dial},
		{"upstream_tls_timeout", u.UpstreamTLSTimeout, &f.UpstreamTimes.TLS},
		{"upstream_header_timeout", u.UpstreamHeaderTimeout, &f.UpstreamTimes.Header},
		{"upstream_idle_timeout", u.UpstreamIdleTimeout, &f.UpstreamTimes.Idle},
	} {
		if t.given == "" {
			continue
		}
		var err error
		if *t.to, err = config.ParseTimeout(t.given); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

// upstream is what the service passes requests on to.
func (s *settings) upstream(report func(error)) server.Upstream {
	t := &s.UpstreamTimes
	return server.Upstream{URL: s.Upstream, By: s.By, DialTimeout: t.Dial, TLSTimeout: t.TLS, HeaderTimeout: t.Header, IdleTimeout: t.Idle,
		IdleConnections: s.UpstreamIdle, Report: report}
}
