package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/tracing"
)

func (s *settings) checkOperation() error {
	switch {
	case (s.TLSCert == "") != (s.TLSKey == ""):
		return fmt.Errorf("tls_cert, tls_key: one is given without the other")
	case s.ClientCA != "" && s.TLSCert == "":
		return fmt.Errorf("client_ca: needs tls_cert and tls_key")
	}
	if err := server.CheckLabels(s.MetricLabels); err != nil {
		return fmt.Errorf("metric_labels: %w", err)
	}
	if s.OTLPEndpoint == "" {
		return nil
	}
	_, err := tracing.Collector(s.OTLPEndpoint)
	return err
}

// hasher returns the function that hashes keys for logs and traces: with the store's secret if
// it has one, so that the hashes are the same, and otherwise with a secret of this process.
func (s *settings) hasher() (*keyhash.Hasher, error) {
	if s.keySecret == nil {
		return keyhash.RandomHasher(), nil
	}
	return keyhash.NewHasher(s.keySecret)
}

// trace returns nil if no endpoint is configured.
func (s *settings) trace(ctx context.Context, hasher *keyhash.Hasher, log *logger) (*tracing.Tracer, error) {
	if !tracing.Wanted(s.OTLPEndpoint) {
		return nil, nil
	}
	return tracing.Start(ctx, tracing.Config{Endpoint: s.OTLPEndpoint, Version: version(), Redact: hasher.Redact, OnError: log.error})
}

func (s *service) openTLS(set *settings) (err error) {
	if set.TLSCert == "" {
		return nil
	}
	s.tls = server.NewTLS(set.TLSCert, set.TLSKey, set.ClientCA)
	files := s.tls.Files()
	if err = s.follow(s.env.ctx, func() string { return config.Content(files...) }, s.tls.Reload, s.reloadTLS); err != nil {
		return err
	}
	s.server.Gauge("dipwell_tls_not_after_timestamp_seconds", "When the certificate in use ends.", func() float64 { return float64(s.tls.NotAfter().Unix()) })
	return nil
}

func (s *service) reloadTLS() {
	if err := s.tls.Reload(); err != nil {
		s.reloadError("the last good certificate stays in force", err)
		return
	}
	s.info("certificate read again: good until %s", s.tls.NotAfter().UTC().Format("2006-01-02 15:04:05Z"))
}

// secure returns nil for plain text.
func (s *service) secure(protocols ...string) *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Config(protocols...)
}
