package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	empty = "/grpc.testing.TestService/EmptyCall"
	unary = "/grpc.testing.TestService/UnaryCall"
)

// service answers every call, and counts the calls.
type service struct {
	testpb.UnimplementedTestServiceServer
	calls, messages atomic.Int64
}

func (s *service) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	s.calls.Add(1)
	return &testpb.Empty{}, nil
}

func (s *service) UnaryCall(_ context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.calls.Add(1)
	return &testpb.SimpleResponse{Payload: r.Payload}, nil
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	s.calls.Add(1)
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return errors.New("the handler's own words")
		}
		s.messages.Add(1)
		if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return nil //nolint:nilerr // the client must see the refusal even if the handler ignores it
		}
	}
}

func (s *service) StreamingInputCall(stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(s.messages.Load())})
		} else if err != nil {
			return err
		}
		s.messages.Add(1)
	}
}

// failing is a store that returns an error when told to.
type failing struct {
	*memstore.Store
	err atomic.Pointer[error]
}

func (f *failing) Apply(ctx context.Context, b *store.Batch) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.Store.Apply(ctx, b)
}

func newLimiter(t testing.TB, limits ...string) (*dipwell.Limiter, *failing) {
	t.Helper()
	m, err := memstore.New(memstore.Config{MaxKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	var parsed []dipwell.Limit
	for _, text := range limits {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, l)
	}
	s := &failing{Store: m}
	l, err := dipwell.New(s, parsed...)
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}

// serve starts a server on loopback and returns a client for it.
func serve(t testing.TB, c grpclimit.Config, l *dipwell.Limiter, opts ...grpc.DialOption) (testpb.TestServiceClient, *service) {
	t.Helper()
	options, err := grpclimit.New(l, c)
	if err != nil {
		t.Fatal(err)
	}
	return serveWith(t, options, opts...)
}

func serveWith(t testing.TB, options []grpc.ServerOption, opts ...grpc.DialOption) (testpb.TestServiceClient, *service) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, s := grpc.NewServer(options...), &service{}
	testpb.RegisterTestServiceServer(server, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Stop(); <-done })
	return testpb.NewTestServiceClient(conn), s
}

func user(t testing.TB, id string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "user", id)
}

// details returns the details of a refusal.
func details(t testing.TB, err error) (*errdetails.QuotaFailure, *errdetails.RetryInfo) {
	t.Helper()
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("got %v", err)
	}
	var quota *errdetails.QuotaFailure
	var retry *errdetails.RetryInfo
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.QuotaFailure:
			quota = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	return quota, retry
}

func TestUnary(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=2")
	client, s := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api", Key: grpclimit.Metadata("user")}}}, l)
	var header metadata.MD
	for i, want := range []string{`"api";r=1;t=60`, `"api";r=0;t=60`} {
		if _, err := client.EmptyCall(user(t, "7"), &testpb.Empty{}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		if got := header.Get("ratelimit"); len(got) != 1 || got[0] != want {
			t.Errorf("call %d: ratelimit %q, want %s", i, got, want)
		}
		if got := header.Get("ratelimit-policy"); len(got) != 1 || got[0] != `"api";q=2;w=120` {
			t.Errorf("call %d: ratelimit-policy %q", i, got)
		}
	}
	var trailer metadata.MD
	_, err := client.EmptyCall(user(t, "7"), &testpb.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer))
	quota, retry := details(t, err)
	if len(quota.GetViolations()) != 1 || quota.Violations[0].QuotaId != "api" || quota.Violations[0].Subject != "limit:api" || quota.Violations[0].QuotaValue != 2 {
		t.Errorf("quota %v", quota)
	}
	if d := retry.GetRetryDelay().AsDuration(); d <= 55*time.Second || d > time.Minute {
		t.Errorf("retry %v", d)
	}
	for name, md := range map[string]metadata.MD{"header": header, "trailer": trailer} {
		if got := md.Get("retry-after"); len(got) != 1 || got[0] != "60" {
			t.Errorf("%s: retry-after %q", name, got)
		}
	}
	if _, err := client.EmptyCall(user(t, "8"), &testpb.Empty{}); err != nil {
		t.Errorf("another user: %v", err)
	}
	if n := s.calls.Load(); n != 3 {
		t.Errorf("%d calls reached the handler, want 3", n)
	}
}

func TestUnaryNeverHasNoRetryInfo(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=2,shared=true")
	client, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api", Cost: func(c *grpclimit.Call) (int64, error) {
		r, ok := c.Message.(*testpb.SimpleRequest)
		if !ok || c.Method != unary {
			return 0, errors.New("not the request")
		}
		return int64(r.ResponseSize), nil
	}}}}, l)
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 2}); err != nil {
		t.Fatal(err)
	}
	var trailer metadata.MD
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: 3}, grpc.Trailer(&trailer))
	if quota, retry := details(t, err); quota == nil || retry != nil || trailer.Get("retry-after") != nil {
		t.Errorf("%v %v %v", quota, retry, trailer)
	}
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{ResponseSize: -1}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a negative cost: %v", err)
	}
}

func TestSeveralLimits(t *testing.T) {
	l, _ := newLimiter(t, "user=1/1m,burst=5", "all=1/1m,burst=1,shared=true", "method=1/1h,burst=1")
	client, _ := serve(t, grpclimit.Config{Headers: httplimit.XRateLimit, Limits: []grpclimit.Limit{
		{Name: "user", Key: grpclimit.Metadata("user")}, {Name: "all"}, {Name: "method", Key: grpclimit.Method()}}}, l)
	var header metadata.MD
	if _, err := client.EmptyCall(user(t, "7"), &testpb.Empty{}, grpc.Header(&header)); err != nil || header.Get("x-ratelimit-remaining")[0] != "0" {
		t.Fatal(err, header)
	}
	_, err := client.EmptyCall(user(t, "7"), &testpb.Empty{})
	quota, retry := details(t, err)
	var names []string
	for _, v := range quota.GetViolations() {
		names = append(names, v.QuotaId)
	}
	if got := strings.Join(names, " "); got != "all method" || retry.GetRetryDelay().AsDuration() <= 59*time.Minute {
		t.Errorf("%s, %v", got, retry)
	}
	if d, _ := l.Check(t.Context(), "user", "7", 0); d.Remaining != 4 {
		t.Errorf("the user was charged by a refused call: %d left", d.Remaining)
	}
	if d, _ := l.Check(t.Context(), "method", empty, 0); d.Remaining != 0 {
		t.Error("the method's bucket has another key")
	}
}

// TestBlocked checks that a refusal says that the key is blocked: its cost is not what was
// wrong.
func TestBlocked(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=2,shared=true")
	if _, err := l.Define(t.Context(), dipwell.Limit{Name: "api", Rate: 1, Period: time.Minute, Burst: 2, Shared: true,
		Plans: dipwell.NewPlans(dipwell.Plan{Name: "banned", Mode: dipwell.Blocked})}, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	client, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api", Plan: func(*grpclimit.Call) string { return "banned" }}}}, l)
	_, err := client.EmptyCall(t.Context(), &testpb.Empty{})
	quota, retry := details(t, err)
	if why := quota.GetViolations()[0].Description; why != "the key is blocked" || retry != nil {
		t.Errorf("%s, %v", why, retry)
	}
	if got := status.Convert(err).Message(); got != "rate limited by api: the key is blocked" {
		t.Error(got)
	}
}

func TestBadKeys(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=2", "all=1/1m,burst=2,shared=true")
	key := func(k string) grpclimit.KeyFunc {
		return func(*grpclimit.Call) (string, error) { return k, nil }
	}
	for name, c := range map[string]struct {
		limit string
		key   grpclimit.KeyFunc
		ctx   context.Context
	}{
		"missing": {"api", grpclimit.Metadata("user"), t.Context()}, "empty": {"api", grpclimit.Metadata("user"), user(t, "")},
		"twice": {"api", grpclimit.Metadata("user"), metadata.AppendToOutgoingContext(user(t, "7"), "user", "8")},
		"none":  {"api", key(""), t.Context()}, "NUL": {"api", key("\x00"), t.Context()}, "long": {"api", key(strings.Repeat("k", 513)), t.Context()},
		"no function": {"api", nil, user(t, "7")}, "of shared": {"all", grpclimit.Metadata("user"), user(t, "7")},
		"none of shared": {"all", key(""), t.Context()}, "NUL of shared": {"all", key("\x00"), t.Context()},
	} {
		t.Run(name, func(t *testing.T) {
			client, s := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: c.limit, Key: c.key}}}, l)
			_, err := client.EmptyCall(c.ctx, &testpb.Empty{})
			st := status.Convert(err)
			if st.Code() != codes.InvalidArgument || len(st.Details()) != 1 || s.calls.Load() != 0 {
				t.Fatalf("%v %v", err, st.Details())
			}
			if bad, _ := st.Details()[0].(*errdetails.BadRequest); len(bad.GetFieldViolations()) != 1 || !strings.HasPrefix(bad.FieldViolations[0].Field, "metadata user") && bad.FieldViolations[0].Field != "key" {
				t.Error(bad)
			}
		})
	}
	for limit, key := range map[string]string{"api": "7", "all": dipwell.Shared} {
		if d, err := l.Check(t.Context(), limit, key, 2); err != nil || !d.Allowed {
			t.Errorf("%s: a bad key took: %v", limit, err)
		}
	}
}

func TestClientIP(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=1")
	client, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api", Key: grpclimit.ClientIP()}}}, l)
	if _, err := client.EmptyCall(t.Context(), &testpb.Empty{}); err != nil {
		t.Fatal(err)
	}
	if d, _ := l.Check(t.Context(), "api", "127.0.0.1", 1); d.Allowed {
		t.Error("the peer's address is not the key")
	}
	if _, err := client.EmptyCall(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "192.0.2.1"), &testpb.Empty{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("x-forwarded-for of an untrusted peer was believed: %v", err)
	}
}

func TestStoreErrors(t *testing.T) {
	l, s := newLimiter(t, "closed=1/1m,shared=true", "open=1/1m,on_store_error=open,shared=true")
	down := errors.New("down")
	s.err.Store(&down)
	closed, n := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "closed"}}}, l)
	open, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "open"}}}, l)
	var header metadata.MD
	if _, err := closed.EmptyCall(t.Context(), &testpb.Empty{}, grpc.Header(&header)); status.Code(err) != codes.Unavailable || header.Get("ratelimit") != nil || n.calls.Load() != 0 {
		t.Error(err, header)
	}
	if _, err := open.EmptyCall(t.Context(), &testpb.Empty{}, grpc.Header(&header)); err != nil || header.Get("ratelimit") != nil || header.Get("ratelimit-policy") == nil {
		t.Error(err, header)
	}
}

func TestCustomErrors(t *testing.T) {
	l, s := newLimiter(t, "api=1/1m,shared=true")
	var seen []string
	client, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api"}},
		Skip:    func(method string) bool { return method == unary },
		Refused: func(_ context.Context, d *dipwell.Decision) error { return status.Error(codes.Aborted, d.Limit) },
		Failed:  func(_ context.Context, err error) error { return status.Error(codes.DataLoss, err.Error()) },
		Observe: func(d *dipwell.Decision, err error, _ time.Duration) {
			switch {
			case err != nil:
				seen = append(seen, "failed")
			case d.Allowed:
				seen = append(seen, "allowed")
			default:
				seen = append(seen, "refused")
			}
		}}, l)
	call := func() codes.Code { _, err := client.EmptyCall(t.Context(), &testpb.Empty{}); return status.Code(err) }
	a, b := call(), call()
	down := errors.New("down")
	s.err.Store(&down)
	if c := call(); a != codes.OK || b != codes.Aborted || c != codes.DataLoss {
		t.Error(a, b, c)
	}
	if got := strings.Join(seen, " "); got != "allowed refused failed" {
		t.Error(got)
	}
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("a skipped method: %v", err)
	}
}

func TestStream(t *testing.T) {
	l, _ := newLimiter(t, "open=1/1h,burst=1,shared=true", "in=1/1h,burst=3,shared=true", "out=1/1h,burst=2,shared=true")
	for _, c := range []struct {
		name         string
		config       grpclimit.Config
		want         int64 // messages that reach the handler
		answers      int
		refusedLimit string
	}{
		{"received", grpclimit.Config{Limits: []grpclimit.Limit{{Name: "open"}}, Received: []grpclimit.Limit{{Name: "in"}}}, 3, 3, "in"},
		{"open", grpclimit.Config{Limits: []grpclimit.Limit{{Name: "open"}}}, 0, 0, "open"},
		{"sent", grpclimit.Config{Sent: []grpclimit.Limit{{Name: "out"}}}, 3, 2, "out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, s := serve(t, c.config, l)
			stream, err := client.FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			answers := 0
			for err == nil {
				_ = stream.Send(&testpb.StreamingOutputCallRequest{}) // its error is io.EOF; Recv has the status
				if _, err = stream.Recv(); err == nil {
					answers++
				}
			}
			quota, retry := details(t, err)
			if quota.GetViolations()[0].QuotaId != c.refusedLimit || retry == nil || answers != c.answers || s.messages.Load() != c.want {
				t.Errorf("%v %v, %d answers, %d messages", quota, retry, answers, s.messages.Load())
			}
			if stream.Trailer().Get("ratelimit") == nil {
				t.Errorf("no trailer: %v", stream.Trailer())
			}
		})
	}
}

func TestStreamSlowsTheClient(t *testing.T) {
	l, _ := newLimiter(t, "in=50/1s,burst=1,shared=true", "slow=1/1h,burst=1,shared=true")
	client, _ := serve(t, grpclimit.Config{Received: []grpclimit.Limit{{Name: "in"}}, Slow: true}, l)
	stream, err := client.StreamingInputCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 6 {
		if err := stream.Send(&testpb.StreamingInputCallRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := stream.CloseAndRecv()
	if took := time.Since(start); err != nil || answer.AggregatedPayloadSize != 6 || took < 99*time.Millisecond {
		t.Errorf("%v %v after %v; 6 messages at 50 a second take 100 ms", answer, err, took)
	}
	late, _ := serve(t, grpclimit.Config{Received: []grpclimit.Limit{{Name: "slow"}}, Slow: true}, l)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err = late.StreamingInputCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_ = stream.Send(&testpb.StreamingInputCallRequest{})
	}
	if _, err = stream.CloseAndRecv(); status.Code(err) != codes.ResourceExhausted || ctx.Err() != nil {
		t.Errorf("a wait beyond the deadline must fail at once: %v, %v", err, ctx.Err())
	}
}

func TestConfig(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m")
	api := []grpclimit.Limit{{Name: "api"}}
	for i, c := range []grpclimit.Config{{}, {Limits: make([]grpclimit.Limit, 17)}, {Limits: []grpclimit.Limit{{Name: "ipa"}}},
		{Limits: api, Received: []grpclimit.Limit{{Name: "ipa"}}}, {Limits: api, Sent: []grpclimit.Limit{{Name: ""}}}} {
		if _, err := grpclimit.New(l, c); err == nil {
			t.Errorf("server configuration %d was accepted", i)
		}
	}
	for i, c := range []grpclimit.ClientConfig{{Limits: []grpclimit.Limit{{Name: "ipa"}}}, {MaxWait: -1}, {MaxAttempts: -1}, {MaxAttempts: 101}} {
		if _, err := grpclimit.NewClient(l, c); err == nil {
			t.Errorf("client configuration %d was accepted", i)
		}
	}
	if _, err := grpclimit.NewClient(nil, grpclimit.ClientConfig{Limits: api}); err == nil {
		t.Error("limits without a limiter were accepted")
	}
}
