package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/dipwell/dipwell/config"
	"github.com/dipwell/dipwell/rls"
	"github.com/dipwell/dipwell/server"
)

// GRPCFlags are serve's settings of gRPC.
type GRPCFlags struct {
	GRPC             string `name:"grpc" placeholder:"ADDR" env:"DIPWELL_GRPC" help:"Address of a gRPC listener: Envoy's RateLimitService, and the verbs of the HTTP API."`
	RLSConfig        string `name:"rls-config" placeholder:"PATH" env:"DIPWELL_RLS_CONFIG" help:"Descriptors of the RateLimitService, a file or a directory, as envoyproxy/ratelimit reads them; a change takes effect at once, and on SIGHUP."`
	RLSChargeAll     *bool  `name:"rls-charge-all" env:"DIPWELL_RLS_CHARGE_ALL" help:"Charge every descriptor of a request even when another is over its limit, as envoyproxy/ratelimit does; by default all or nothing."`
	RLSAllowOverride *bool  `name:"rls-allow-override" env:"DIPWELL_RLS_ALLOW_OVERRIDE" help:"Requests may bring limits of their own; otherwise only where the configuration says allow_override."`
	RLSMergeDomains  *bool  `name:"rls-merge-domains" env:"DIPWELL_RLS_MERGE_DOMAINS" help:"Several files may be about one domain."`
	RLSHeaders       string `name:"rls-headers" placeholder:"KIND" env:"DIPWELL_RLS_HEADERS" help:"Header fields that the proxy is told to add: off (default), ratelimit, ietf."`
	RLSNearLimit     string `name:"rls-near-limit-ratio" placeholder:"N" env:"DIPWELL_RLS_NEAR_LIMIT_RATIO" help:"Share of a limit above which hits count as near it (default 0.8)."`
	RLSLimitHeader   string `name:"rls-limit-header" placeholder:"NAME" env:"DIPWELL_RLS_LIMIT_HEADER" help:"Name of the field with the limit, of --rls-headers ratelimit (default RateLimit-Limit)."`
	RLSRemaining     string `name:"rls-remaining-header" placeholder:"NAME" env:"DIPWELL_RLS_REMAINING_HEADER" help:"Name of the field with what remains (default RateLimit-Remaining)."`
	RLSReset         string `name:"rls-reset-header" placeholder:"NAME" env:"DIPWELL_RLS_RESET_HEADER" help:"Name of the field with the seconds until the reset (default RateLimit-Reset)."`
}

// over puts what was given before what the file says.
func (c *GRPCFlags) over(f *config.File) error {
	f.GRPC = cmp.Or(c.GRPC, f.GRPC)
	f.RLSConfig = cmp.Or(c.RLSConfig, f.RLSConfig)
	f.RLSHeaders = cmp.Or(c.RLSHeaders, f.RLSHeaders, rls.NoHeaders.String())
	for to, given := range map[*bool]*bool{&f.RLSChargeAll: c.RLSChargeAll, &f.RLSAllowOverride: c.RLSAllowOverride, &f.RLSMergeDomains: c.RLSMergeDomains} {
		if given != nil {
			*to = *given
		}
	}
	if err := config.CheckRLSHeaders(f.RLSHeaders); err != nil {
		return fmt.Errorf("rls_headers: %w", err)
	}
	if c.RLSNearLimit != "" {
		var err error
		if f.RLSNearLimit, err = config.ParseRatio(c.RLSNearLimit); err != nil {
			return fmt.Errorf("rls_near_limit_ratio: %w", err)
		}
	}
	return c.names(f)
}

// names are those of the header fields that the proxy is told to add.
func (c *GRPCFlags) names(f *config.File) error {
	for _, h := range []struct {
		setting, given string
		to             *string
	}{
		{"rls_limit_header", c.RLSLimitHeader, &f.RLSLimitHeader}, {"rls_remaining_header", c.RLSRemaining, &f.RLSRemainingHeader}, {"rls_reset_header", c.RLSReset, &f.RLSResetHeader},
	} {
		*h.to = cmp.Or(h.given, *h.to)
		switch {
		case *h.to == "":
		case f.RLSHeaders != rls.RateLimit3.String():
			return fmt.Errorf("%s: needs rls_headers: ratelimit", h.setting)
		case !server.IsHeaderName(*h.to):
			return fmt.Errorf("%s: %q is not the name of a header field", h.setting, *h.to)
		}
	}
	return nil
}

// rateLimits is the RateLimitService of a service, nil where nothing asks for it.
func (s *service) rateLimits() (*rls.Service, error) {
	set := s.started
	if set.GRPC == "" && set.RLSConfig == "" {
		return nil, nil
	}
	headers, err := rls.ParseHeaders(set.RLSHeaders)
	if err != nil {
		return nil, fmt.Errorf("rls_headers: %w", err)
	}
	r := rls.New(s.limiter, rls.Config{Headers: headers, Observe: s.server.Observe, Shadow: set.Shadow,
		Names: rls.HeaderNames{Limit: set.RLSLimitHeader, Remaining: set.RLSRemainingHeader, Reset: set.RLSResetHeader}})
	s.server.Collect(r)
	s.server.Handle("POST /json", http.HandlerFunc(r.JSON))
	s.server.Handle("GET /healthcheck", http.HandlerFunc(s.server.Healthcheck))
	return r, nil
}

// startRLS reads the descriptors and follows their changes.
func (s *service) startRLS() (err error) {
	if s.rls, err = s.rateLimits(); err != nil || s.started.RLSConfig == "" {
		return err
	}
	if err = s.readRLS(); err != nil {
		return err
	}
	return s.follow(rls.Watch, s.rereadRLS, s.started.RLSConfig)
}

func loadRLS(f *config.File) (*rls.Rules, error) {
	return rls.Load(rls.Defaults{ChargeAll: f.RLSChargeAll, AllowOverride: f.RLSAllowOverride, MergeDomains: f.RLSMergeDomains, NearLimit: f.RLSNearLimit}, f.RLSConfig)
}

func (s *service) readRLS() error {
	rules, err := loadRLS(&s.started.File)
	if err != nil {
		s.rls.Rejected()
		return err
	}
	return s.rls.Use(s.env.ctx, rules)
}

// rereadRLS reads the descriptors again. A bad configuration changes nothing.
func (s *service) rereadRLS() {
	if err := s.readRLS(); err != nil {
		s.kept("the last good descriptors stay in force", err)
		return
	}
	s.say("descriptors read again from %s", s.started.RLSConfig)
}

// boundedRLS is the RateLimitService within the service's bound of calls under way.
type boundedRLS struct {
	*rls.Service
	server *server.Server
}

func (b *boundedRLS) ShouldRateLimit(ctx context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	if !b.server.Enter() {
		return nil, server.ErrShed
	}
	defer b.server.Leave()
	return b.Service.ShouldRateLimit(ctx, r)
}

// grpcOptions are those that not every service needs.
func (s *service) grpcOptions() (out []grpc.ServerOption) {
	if c := s.secure("h2"); c != nil {
		out = append(out, grpc.Creds(credentials.NewTLS(c)))
	}
	if s.tracer != nil {
		out = append(out, s.tracer.GRPC())
	}
	return out
}

// serve answers on all listeners until the program is asked to stop or one of
// them fails, which ends the others.
func (s *service) serve(listeners []server.Listener) error {
	if s.started.GRPC == "" {
		return s.server.Serve(s.env.ctx, listeners...)
	}
	l, err := new(net.ListenConfig).Listen(s.env.ctx, "tcp", s.started.GRPC)
	if err != nil {
		return fmt.Errorf("grpc: %w", err)
	}
	g := s.server.GRPC(server.Site{Loopback: server.IsLoopback(l), NoAdmin: s.started.Admin != ""},
		func(r grpc.ServiceRegistrar) { pb.RegisterRateLimitServiceServer(r, &boundedRLS{s.rls, s.server}) }, s.grpcOptions()...)
	s.listens("serving gRPC", l.Addr().String())
	ctx, cancel := context.WithCancel(s.env.ctx)
	defer cancel()
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() {
		defer cancel()
		errs[0] = s.server.ServeGRPC(ctx, l, g)
	})
	errs[1] = s.server.Serve(ctx, listeners...)
	cancel()
	wg.Wait()
	return errors.Join(errs[:]...)
}
