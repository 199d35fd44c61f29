package tracing

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
)

// quiet are paths that are polled. Requests of these paths get no spans.
var quiet = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true, "/healthcheck": true}

// HTTP makes a span for each request, and passes its context to h and, in the header, upstream.
func (t *Tracer) HTTP(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if quiet[r.URL.Path] {
			h.ServeHTTP(w, r)
			return
		}
		ctx := t.carrier.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", method(r.Method))))
		defer span.End()
		r = r.WithContext(ctx)
		t.carrier.Inject(ctx, propagation.HeaderCarrier(r.Header))
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(sw, r)
		span.SetName(strings.TrimSuffix(method(r.Method)+" "+route(r), " "))
		if route := route(r); route != "" {
			span.SetAttributes(attribute.String("http.route", route))
		}
		span.SetAttributes(attribute.Int("http.response.status_code", sw.status))
		if sw.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// route returns the path in the pattern of a request, since its own path may have keys.
func route(r *http.Request) string { return r.Pattern[strings.IndexByte(r.Pattern, ' ')+1:] }

// method returns the method if it is a standard one, since a client can send any text.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "_OTHER"
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// GRPC makes a span for each call.
func (t *Tracer) GRPC() grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.carrier)))
}
