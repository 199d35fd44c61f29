package tracing_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	v1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/tracing"
	"github.com/dipwell/dipwell/memstore"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// collected is a collector that keeps what it is sent.
type collected struct {
	mu    sync.Mutex
	spans []*v1.Span
	raw   strings.Builder
}

func (c *collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(b, &req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.WriteString(req.String())
	for _, rs := range req.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			c.spans = append(c.spans, ss.Spans...)
		}
	}
}

func (c *collected) named(name string) *v1.Span {
	for _, s := range c.spans {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func attribute(s *v1.Span, name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			if v := a.Value.GetStringValue(); v != "" {
				return v
			}
			return a.Value.String()
		}
	}
	return ""
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	parent  = "00-" + traceID + "-b7ad6b7169203331-01"
)

// failing is a store that is down while down says so.
type failing struct {
	store.Store
	down bool
}

func (f *failing) Abilities() store.Abilities { return store.AbilitiesOf(f.Store) }

func (f *failing) Apply(ctx context.Context, b *store.Batch) error {
	if f.down {
		return errors.New("dial tcp 10.1.2.3: refused for user:7")
	}
	return f.Store.Apply(ctx, b)
}

func start(t *testing.T, endpoint string, st store.Store) (*tracing.Tracer, *server.Server) {
	t.Helper()
	tr, err := tracing.Start(t.Context(), tracing.Config{Endpoint: endpoint, Version: "test", Redact: keyhash.RandomHasher().Redact})
	if err != nil {
		t.Fatal(err)
	}
	l, err := dipwell.New(tr.Store(st), store.Limit{Name: "login", Rate: 1, Period: time.Hour, Burst: 1, OnStoreError: store.FailOpen})
	if err != nil {
		t.Fatal(err)
	}
	return tr, server.New(l, server.Config{})
}

func memory(t *testing.T) store.Store {
	t.Helper()
	s, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSpans(t *testing.T) {
	c := &collected{}
	there := httptest.NewServer(c)
	defer there.Close()
	store := &failing{Store: memory(t)}
	tr, s := start(t, there.URL, store)
	api := tr.HTTP(s.API(server.Site{Loopback: true}))
	ask := func(method, target, body string) int {
		r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("traceparent", parent)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		return w.Code
	}
	for body, want := range map[string]int{`{"limit":"login","key":"user:7"}`: 200, `{"takes":[{"limit":"login","key":"user:8"},{"limit":"login","key":"user:9"}]}`: 200, `{`: 400} {
		if got := ask("POST", "/v1/take", body); got != want {
			t.Errorf("%s: %d", body, got)
		}
	}
	if got := ask("GET", "/v1/limits/login?key=user:7", ""); got != 200 && got != 400 {
		t.Error(got)
	}
	ask("BREW", "/user:7", "")
	ask("GET", "/readyz", "")
	store.down = true
	if got := ask("POST", "/v1/check", `{"limit":"login","key":"user:7"}`); got != 200 {
		t.Error("an open limit over a store that is down: ", got)
	}
	if err := tr.Stop(); err != nil {
		t.Fatal(err)
	}
	take, inner, failed := c.named("POST /v1/take"), c.named("store take"), c.named("store check")
	if take == nil || inner == nil || failed == nil || c.named("GET /v1/limits/{name}") == nil || c.named("_OTHER") == nil {
		t.Fatalf("spans are missing: %s", c.raw.String())
	}
	if got := attribute(take, "http.route"); got != "/v1/take" {
		t.Error(got)
	}
	if hexOf(take.TraceId) != traceID || hexOf(inner.TraceId) != traceID {
		t.Error("the caller's trace is not gone on with")
	}
	if failed.Status.GetCode() != v1.Status_STATUS_CODE_ERROR || !strings.HasPrefix(attribute(failed, "dipwell.key"), "hash:") ||
		attribute(failed, "dipwell.limit") != "login" {
		t.Errorf("%v", failed)
	}
	for _, secret := range []string{"user:", "10.1.2.3", "readyz"} {
		if strings.Contains(c.raw.String(), secret) {
			t.Errorf("%q is in the spans: %s", secret, c.raw.String())
		}
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, x := range b {
		s.WriteByte(digits[x>>4])
		s.WriteByte(digits[x&15])
	}
	return s.String()
}

// A span has the plan that decided and the floor, and says what is done with a hold.
func TestSpansOfPlansAndHolds(t *testing.T) {
	c := &collected{}
	srv := httptest.NewServer(c)
	defer srv.Close()
	tr, err := tracing.Start(t.Context(), tracing.Config{Endpoint: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	def, err := store.NewDefinition(store.Limit{Name: "api", Rate: 1, Period: time.Hour, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 5})})
	if err != nil {
		t.Fatal(err)
	}
	s := tr.Store(answering{})
	tr.HTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, g := range []store.Group{
			{Ops: []store.Op{{Def: def, Verb: store.VerbCheck, Key: "k"}}},
			{Ops: []store.Op{{Def: def.WithPlan("pro"), Key: "k", Cost: 1, Floor: 3}}},
			{Ops: []store.Op{{Def: def, Key: "k"}}, Hold: &store.HoldCall{}},
			{Hold: &store.HoldCall{Verb: store.SettleHold}},
			{Hold: &store.HoldCall{Verb: store.ExtendHold}},
		} {
			if err := s.Apply(r.Context(), &store.Batch{Groups: []store.Group{g}}); err != nil {
				t.Error(err)
			}
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/take", http.NoBody))
	if err := tr.Stop(); err != nil {
		t.Fatal(err)
	}
	take := c.named("store take")
	if take == nil || attribute(take, "dipwell.plan") != "pro" || !strings.Contains(attribute(take, "dipwell.floor"), "3") {
		t.Errorf("take: %v", take)
	}
	if check := c.named("store check"); check == nil || attribute(check, "dipwell.plan") != "" {
		t.Errorf("check: %v", check)
	}
	for _, name := range []string{"store hold", "store settle", "store extend"} {
		if c.named(name) == nil {
			t.Errorf("no span %q", name)
		}
	}
}

// answering is a store that does nothing.
type answering struct{}

func (answering) Apply(context.Context, *store.Batch) error { return nil }

func TestGRPCSpans(t *testing.T) {
	c := &collected{}
	there := httptest.NewServer(c)
	defer there.Close()
	tr, s := start(t, there.URL, memory(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- s.ServeGRPC(ctx, server.Listener{Listener: l}, s.GRPC(server.Site{Loopback: true}, nil, tr.GRPC()))
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	key := "user:7"
	if _, err = dipwellv1.NewLimiterClient(conn).Take(metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent),
		&dipwellv1.Call{Limit: "login", Key: &key}); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	cancel()
	if err = <-done; err != nil {
		t.Error(err)
	}
	if err = tr.Stop(); err != nil {
		t.Fatal(err)
	}
	span, inner := c.named("dipwell.v1.Limiter/Take"), c.named("store take")
	if span == nil || inner == nil || hexOf(inner.TraceId) != traceID || hexOf(inner.ParentSpanId) != hexOf(span.SpanId) {
		t.Errorf("%s", c.raw.String())
	}
	if strings.Contains(c.raw.String(), key) {
		t.Error("a key is in the spans")
	}
}

// A collector that hangs delays no call, and a stop not for good: it answers
// nothing before both are done.
func TestCollectorHangs(t *testing.T) {
	asked, release := make(chan struct{}, 1000), make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	defer collector.Close()
	defer close(release)
	tr, s := start(t, collector.URL, memory(t))
	api := tr.HTTP(s.API(server.Site{Loopback: true}))
	for range 5000 { // more than the queue holds
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://localhost/v1/take?limit=login", nil))
	}
	<-asked
	if err := tr.Stop(); err == nil {
		t.Error("spans that nobody took were sent")
	}
}

func TestWanted(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	if tracing.Wanted("") || !tracing.Wanted("http://127.0.0.1:4318") {
		t.Error("an endpoint is what asks for traces")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
	if !tracing.Wanted("") {
		t.Error("the standard variable does not count")
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if tracing.Wanted("http://127.0.0.1:4318") {
		t.Error("the standard switch does not count")
	}
	for _, bad := range []string{"127.0.0.1:4318", "ftp://x", "http://"} {
		if _, err := tracing.Start(t.Context(), tracing.Config{Endpoint: bad}); err == nil || !strings.Contains(err.Error(), "otlp_endpoint: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
