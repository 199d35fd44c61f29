package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/internal/server"
)

// checkRLS checks the names of the header fields that the proxy is told to add.
func (s *settings) checkRLS() error {
	for _, h := range [][2]string{{"rls_limit_header", s.RLSLimitHeader}, {"rls_remaining_header", s.RLSRemainingHeader}, {"rls_reset_header", s.RLSResetHeader}} {
		switch {
		case h[1] == "":
		case !s.RLSHeaders:
			return fmt.Errorf("%s: needs rls_headers: true", h[0])
		case !server.IsHeaderName(h[1]):
			return fmt.Errorf("%s: %q is not the name of a header field", h[0], h[1])
		}
	}
	return nil
}

// startRLS makes the RateLimitService, if it is configured, and follows its descriptors.
func (s *service) startRLS() error {
	set := s.started
	if set.GRPC == "" && set.RLSConfig == "" {
		return nil
	}
	s.rls = rls.New(s.limiter, rls.Config{Observe: s.server.Observe, Shadow: set.Shadow,
		Headers: rls.Headers{Add: set.RLSHeaders, Limit: set.RLSLimitHeader, Remaining: set.RLSRemainingHeader, Reset: set.RLSResetHeader}})
	s.server.Collect(s.rls)
	s.server.Handle("POST /json", server.Proxied, http.HandlerFunc(s.rls.JSON))
	s.server.Handle("GET /healthcheck", server.Anybody, http.HandlerFunc(s.server.Healthcheck))
	path := set.RLSConfig
	if path == "" {
		return nil
	}
	return s.follow(s.env.ctx, func() string { return rls.Content(path) }, s.readRLS, s.reloadRLS)
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
	for _, note := range rules.Notes() {
		s.warn("%s", note)
	}
	return s.rls.Use(s.env.ctx, rules)
}

// reloadRLS reads the descriptors again. After an error the old ones stay in force.
func (s *service) reloadRLS() {
	err := s.readRLS()
	s.descriptorsFailed.Store(err != nil)
	if err != nil {
		s.reloadError("the last good descriptors stay in force", err)
		return
	}
	s.info("descriptors read again from %s", s.started.RLSConfig)
}

func (s *service) serve(listeners []server.Listener) error {
	if s.started.GRPC == "" {
		return s.server.Serve(s.env.ctx, listeners...)
	}
	l, err := s.open("grpc", s.started.GRPC)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.env.ctx)
	defer cancel()
	var options []grpc.ServerOption
	if s.tracer != nil {
		options = append(options, s.tracer.GRPC())
	}
	g := s.server.GRPC(server.Site{Loopback: server.IsLoopback(l), NoAdmin: s.started.Admin != "", Open: slices.Contains(s.started.OpenListeners, "grpc")}, func(r grpc.ServiceRegistrar) {
		pb.RegisterRateLimitServiceServer(r, s.rls)
	}, options...)
	s.warnIfOpen("grpc", l)
	s.logListening("serving gRPC", l.Addr().String(), "")
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() {
		defer cancel()
		errs[0] = s.server.ServeGRPC(ctx, server.Listener{Listener: l, TLS: s.secure("h2")}, g)
	})
	errs[1] = s.server.Serve(ctx, listeners...)
	cancel()
	wg.Wait()
	return errors.Join(errs[:]...)
}
