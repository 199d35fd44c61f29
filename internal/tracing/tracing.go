// Package tracing sends OpenTelemetry spans of calls and of the store's work for them.
// Tracing costs nothing until it is started.
//
// Spans carry limits, verbs and results. Spans have only the beginning of a hash of
// each key, and neither queries nor addresses of requests.
package tracing

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"go.opentelemetry.io/otel/attribute"
)

type Config struct {
	Endpoint string                         // base URL of an OTLP/HTTP collector; default the OTEL_EXPORTER_OTLP_… variables
	Version  string                         // version of this program
	Redact   func(limit, key string) string // returns the text that a span has in place of a key; nil for none
	OnError  func(error)                    // if set, called when spans cannot be sent
}

// flushTimeout is how long Stop waits for the last spans.
const flushTimeout = 3 * time.Second

type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	carrier  propagation.TextMapPropagator
	redact   func(limit, key string) string
}

// Wanted reports whether an endpoint is configured, in c or in the standard variables.
func Wanted(endpoint string) bool {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false
	}
	return endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Start makes a tracer that exports in the background, from a bounded queue. If
// the collector is down, spans are dropped and calls are not delayed. The other standard
// variables (OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_…) count as well.
func Start(ctx context.Context, c Config) (*Tracer, error) {
	var options []otlptracehttp.Option
	if c.Endpoint != "" {
		u, err := Collector(c.Endpoint)
		if err != nil {
			return nil, err
		}
		options = append(options, otlptracehttp.WithEndpointURL(u))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("otlp_endpoint: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "dipwell"), attribute.String("service.version", c.Version)),
		resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("otel: %w", err)
	}
	if c.OnError != nil {
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { c.OnError(fmt.Errorf("traces: %w", err)) }))
	}
	t := &Tracer{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), redact: c.Redact,
		carrier: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})}
	t.tracer = t.provider.Tracer("github.com/dipwell/dipwell", trace.WithInstrumentationVersion(c.Version))
	return t, nil
}

// Collector returns the URL to which spans are posted, given the base URL of the standard.
func Collector(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		if at := strings.LastIndexByte(endpoint, '@'); at >= 0 { // a password may stand before the @
			endpoint = "..." + endpoint[at:]
		}
		return "", fmt.Errorf("otlp_endpoint: %q is not a URL such as http://127.0.0.1:4318", endpoint)
	}
	return u.JoinPath("v1/traces").String(), nil
}

// Stop sends the remaining spans, for three seconds at most.
func (t *Tracer) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return t.provider.Shutdown(ctx)
}
