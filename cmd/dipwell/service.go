package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/rls"
	"github.com/dipwell/dipwell/server"
	"github.com/dipwell/dipwell/tracing"
)

// service is what serve runs, and what a new configuration changes.
type service struct {
	env     *env
	cmd     *ServeCmd
	limiter *dipwell.Limiter
	server  *server.Server
	proxy   *server.Proxy // nil without --upstream
	rls     *rls.Service  // nil without --grpc and --rls-config
	tls     *server.TLS   // nil: plain text
	tracer  *tracing.Tracer
	started *settings // some of them count only at the start
	*complaints

	changing      sync.Mutex // held while anything of the settings is read and put in force, so that the last to read wins
	tokenFile     string     // that is followed
	unfollowToken context.CancelFunc

	reloadFailed atomic.Bool
	declared     *declared
}

// reload reads the configuration again. A bad one changes nothing.
func (s *service) reload() {
	s.changing.Lock()
	defer s.changing.Unlock()
	set, err := s.cmd.settings()
	unchanged := ""
	if err == nil {
		if s.declared.has(set) {
			unchanged = ", unchanged"
		}
		err = s.use(set)
	}
	s.reloadFailed.Store(err != nil)
	if err != nil {
		s.declared.unsettled()
		s.kept("the last good configuration stays in force", err)
		return
	}
	s.say("configuration read again: %s%s", howMany(len(set.flagLimits)+len(set.Limits), "limit"), unchanged)
	if set.Store != s.started.Store || set.DenyMaxAge != s.started.DenyMaxAge || set.Listen != s.started.Listen || set.Admin != s.started.Admin ||
		set.Upstream != s.started.Upstream || set.By != s.started.By || set.MaxKeys != s.started.MaxKeys || set.operation() != s.started.operation() {
		s.say("store, listen, admin, admin_only, upstream, upstream_…, by, max_keys, deny_max_age, tls_cert, tls_key, client_ca, key_secret_file, otlp_endpoint, log_refusals, log_format, shadow, metric_labels, grpc and rls_… change only with a restart")
	}
}

// operation is what of running the service counts only at the start.
func (s *settings) operation() string {
	n := defaultLogRefusals
	if s.LogRefusals != nil {
		n = *s.LogRefusals
	}
	return fmt.Sprint(s.RLSNearLimit, s.RLSLimitHeader, s.RLSRemainingHeader, s.RLSResetHeader, s.Shadow, s.MetricLabels) +
		fmt.Sprintf(" %q %v %d %q %q %q %v %v %v %q %q %q %q %q %d %q", s.AdminOnly, s.UpstreamTimes, s.UpstreamIdle, s.GRPC, s.RLSConfig, s.RLSHeaders, s.RLSChargeAll, s.RLSAllowOverride, s.RLSMergeDomains, s.TLSCert, s.TLSKey, s.ClientCA, s.keySecret, s.OTLPEndpoint, n, s.LogFormat)
}

// use puts settings in force: all limits compile, because they were read, so
// what can still fail is the store. One that is away learns of new limits later.
func (s *service) use(set *settings) error {
	if s.proxy != nil && len(set.names()) > dipwell.MaxTakes {
		return fmt.Errorf("upstream: %d limits; a request can be held to at most %d", len(set.names()), dipwell.MaxTakes)
	}
	if err := s.declared.declare(set); err != nil {
		return err
	}
	c := set.server()
	c.Shadow = s.started.Shadow // as the store, which has it from the start on
	s.server.Set(c)
	if err := s.followToken(set.tokenFile); err != nil {
		return err
	}
	if s.proxy == nil {
		return nil
	}
	if len(set.names()) == 0 {
		s.warn("warning: no limit is given: every request is passed on to %s", redact(set.Upstream))
	}
	return s.proxy.Use(set.names())
}
