package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/config"
	"github.com/dipwell/dipwell/keyhash"
	"github.com/dipwell/dipwell/server"
	"github.com/dipwell/dipwell/shadow"
	"github.com/dipwell/dipwell/tracing"
)

// OperationFlags are serve's settings of running it.
type OperationFlags struct {
	MaxInFlight   int               `placeholder:"N" env:"DIPWELL_MAX_IN_FLIGHT" help:"Calls under way at one time (default 16384); more are answered 503."`
	TLSCert       string            `name:"tls-cert" placeholder:"FILE" env:"DIPWELL_TLS_CERT" help:"Certificate chain (PEM) of all listeners but a loopback --admin; a change takes effect at once, and on SIGHUP."`
	TLSKey        string            `name:"tls-key" placeholder:"FILE" env:"DIPWELL_TLS_KEY" help:"Its key (PEM)."`
	ClientCA      string            `name:"client-ca" placeholder:"FILE" env:"DIPWELL_CLIENT_CA" help:"Authorities (PEM): only clients with a certificate of theirs may connect."`
	KeySecretFile string            `placeholder:"FILE" env:"DIPWELL_KEY_SECRET_FILE" help:"Store keys as HMAC-SHA-256 under the secret in this file; or set DIPWELL_KEY_SECRET."`
	OTLPEndpoint  string            `name:"otlp-endpoint" placeholder:"URL" env:"DIPWELL_OTLP_ENDPOINT" help:"Send OpenTelemetry traces to this collector (OTLP over HTTP), as OTEL_EXPORTER_OTLP_ENDPOINT does."`
	LogRefusals   *int              `placeholder:"N" env:"DIPWELL_LOG_REFUSALS" help:"Log at most N refusals a second, keys as the beginning of a hash (default 1; 0: none)."`
	LogFormat     string            `placeholder:"KIND" env:"DIPWELL_LOG_FORMAT" help:"Of the log on standard error: text (default), json."`
	Shadow        *bool             `env:"DIPWELL_SHADOW" help:"Refuse nothing: answers, metrics and the log say what would have been refused."`
	MetricLabel   map[string]string `placeholder:"NAME=VALUE" mapsep:"," env:"DIPWELL_METRIC_LABEL" help:"A label that every metric carries, as env=prod. Repeat it, or separate by commas."`
}

// defaultLogRefusals is enough to see that, and whom, a limit refuses.
const (
	defaultLogRefusals = 1
	maxLogRefusals     = 1000
)

// over puts what was given before what the file says.
func (o *OperationFlags) over(f *config.File) {
	f.MaxInFlight = cmp.Or(o.MaxInFlight, f.MaxInFlight)
	f.TLSCert = cmp.Or(o.TLSCert, f.TLSCert)
	f.TLSKey = cmp.Or(o.TLSKey, f.TLSKey)
	f.ClientCA = cmp.Or(o.ClientCA, f.ClientCA)
	f.OTLPEndpoint = cmp.Or(o.OTLPEndpoint, f.OTLPEndpoint)
	f.LogFormat = cmp.Or(o.LogFormat, f.LogFormat)
	if o.LogRefusals != nil {
		f.LogRefusals = o.LogRefusals
	}
	if o.Shadow != nil {
		f.Shadow = *o.Shadow
	}
	if len(o.MetricLabel) > 0 {
		f.MetricLabels = o.MetricLabel
	}
}

func (s *settings) checkOperation() error {
	switch {
	case s.MaxInFlight < 0:
		return fmt.Errorf("max_in_flight: %d is negative", s.MaxInFlight)
	case (s.TLSCert == "") != (s.TLSKey == ""):
		return fmt.Errorf("tls_cert, tls_key: one is given without the other")
	case s.ClientCA != "" && s.TLSCert == "":
		return fmt.Errorf("client_ca: needs tls_cert and tls_key")
	case s.LogRefusals != nil && (*s.LogRefusals < 0 || *s.LogRefusals > maxLogRefusals):
		return fmt.Errorf("log_refusals: %d is not between 0 and %d", *s.LogRefusals, maxLogRefusals)
	}
	if err := server.CheckLabels(s.MetricLabels); err != nil {
		return fmt.Errorf("metric_labels: %w", err)
	}
	if s.OTLPEndpoint != "" {
		if err := tracing.CheckEndpoint(s.OTLPEndpoint); err != nil {
			return err
		}
	}
	if s.LogFormat == "" {
		return nil
	}
	if err := config.CheckLogFormat(s.LogFormat); err != nil {
		return fmt.Errorf("log_format: %w", err)
	}
	return nil
}

// observe puts around the store what is asked for, and nothing otherwise. The
// tracer is nil where nobody collects.
func (s *settings) observe(ctx context.Context, store dipwell.Store, say *complaints) (dipwell.Store, *keyhash.Hasher, *tracing.Tracer, error) {
	hasher := keyhash.RandomHasher()
	if s.keySecret != nil {
		var err error
		if hasher, err = keyhash.NewHasher(s.keySecret); err != nil {
			return nil, nil, nil, err
		}
		store = keyhash.New(store, hasher)
	}
	if s.Shadow {
		say.say("shadow mode: nothing is refused")
		store = shadow.New(store)
	}
	if !tracing.Wanted(s.OTLPEndpoint) {
		return store, hasher, nil, nil
	}
	t, err := tracing.Start(ctx, tracing.Config{Endpoint: s.OTLPEndpoint, Version: version(), Redact: hasher.Redact, OnError: say.error})
	if err != nil {
		return nil, nil, nil, err
	}
	return t.Store(store), hasher, t, nil
}

// logRefusals starts the log of some of them.
func (s *service) logRefusals(set *settings, hasher *keyhash.Hasher) {
	n := defaultLogRefusals
	if set.LogRefusals != nil {
		n = *set.LogRefusals
	}
	s.server.LogRefusals(s.env.ctx, s.logger(), n, hasher.Redact)
}

// openTLS reads the certificate, if there is one, and follows its files.
func (s *service) openTLS(set *settings) (err error) {
	if set.TLSCert == "" {
		return nil
	}
	if s.tls, err = server.LoadTLS(set.TLSCert, set.TLSKey, set.ClientCA); err != nil {
		return err
	}
	s.server.Gauge("dipwell_tls_not_after_timestamp_seconds", "When the certificate in use ends.", func() float64 { return float64(s.tls.NotAfter().Unix()) })
	return s.follow(config.Watch, s.reloadTLS, s.tls.Files()...)
}

func (s *service) reloadTLS() {
	if err := s.tls.Reload(); err != nil {
		s.kept("the last good certificate stays in force", err)
		return
	}
	s.say("certificate read again: good until %s", s.tls.NotAfter().UTC().Format("2006-01-02 15:04:05Z"))
}

// secure is a listener's TLS, nil for plain text.
func (s *service) secure(protocols ...string) *tls.Config {
	if s.tls == nil {
		return nil
	}
	return s.tls.Config(protocols...)
}
