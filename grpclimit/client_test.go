package grpclimit_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func newClient(t testing.TB, l *dipwell.Limiter, c grpclimit.ClientConfig) *grpclimit.Client {
	t.Helper()
	client, err := grpclimit.MakeClient(l, c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func refuse(code codes.Code, delay *durationpb.Duration) error {
	s, err := status.New(code, "no").WithDetails(&errdetails.RetryInfo{RetryDelay: delay})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

// Tests both sides of the package over a real connection.
func TestClientAndServer(t *testing.T) {
	l, _ := newLimiter(t, "api=20/1s,burst=1,shared=true", "hour=1/1h,shared=true")
	c := newClient(t, nil, grpclimit.ClientConfig{})
	client, s := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api"}}}, l, c.Options()...)
	start := time.Now()
	for range 4 {
		if _, err := client.EmptyCall(t.Context(), &testpb.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < 145*time.Millisecond || s.calls.Load() != 4 {
		t.Errorf("4 calls at 20 a second took %v, %d reached the handler", took, s.calls.Load())
	}
	hourly, s := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "hour"}}}, l, c.Options()...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted} {
		_, err := hourly.EmptyCall(ctx, &testpb.Empty{})
		if _, told := grpclimit.RetryInfo(err); status.Code(err) != want || told != (i > 0) || ctx.Err() != nil {
			t.Errorf("call %d, a wait beyond the deadline must fail at once: %v, %v", i, err, ctx.Err())
		}
	}
	if n := s.calls.Load(); n != 1 {
		t.Errorf("%d calls reached the handler", n)
	}
}

func TestClientLimits(t *testing.T) {
	l, _ := newLimiter(t, "out=20/1s,burst=1", "day=5/1d", "hour=1/1h")
	waits := newClient(t, l, grpclimit.ClientConfig{Limits: []grpclimit.Limit{{Name: "out", Key: grpclimit.Metadata("user")}, {Name: "day", Key: grpclimit.Method()}}})
	fast := newClient(t, l, grpclimit.ClientConfig{Limits: []grpclimit.Limit{{Name: "hour", Key: grpclimit.Metadata("user")}}, FailFast: true})
	waiting, s := serveWith(t, nil, waits.Options()...)
	start := time.Now()
	for range 3 {
		if _, err := waiting.EmptyCall(user(t, "7"), &testpb.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < 95*time.Millisecond || s.calls.Load() != 3 {
		t.Errorf("3 calls at 20 a second took %v", took)
	}
	failing, s := serveWith(t, nil, fast.Options()...)
	if _, err := failing.EmptyCall(user(t, "8"), &testpb.Empty{}); err != nil {
		t.Fatal(err)
	}
	_, err := failing.EmptyCall(user(t, "8"), &testpb.Empty{})
	refused, ok := errors.AsType[*dipwell.RefusedError](err)
	if _, retry := details(t, err); !ok || refused.Decision.Limit != "hour" || retry == nil || s.calls.Load() != 1 {
		t.Errorf("%v", err)
	}
	if _, err := failing.EmptyCall(t.Context(), &testpb.Empty{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no key: %v", err)
	}
}

func TestClientStreamRemembersRetryInfo(t *testing.T) {
	l, _ := newLimiter(t, "open=1/1h,burst=1,shared=true")
	c := newClient(t, nil, grpclimit.ClientConfig{FailFast: true})
	client, s := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "open"}}}, l, c.Options()...)
	for i := range 3 {
		stream, err := client.StreamingInputCall(t.Context())
		if err == nil {
			_, err = stream.CloseAndRecv()
		}
		if want := []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted}[i]; status.Code(err) != want {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	if d, err := l.Check(t.Context(), "open", dipwell.Shared, 0); err != nil || d.Remaining != 0 || s.messages.Load() != 0 {
		t.Error(d, err)
	}
}

// virtual runs f in virtual time. f calls the interceptor directly.
func virtual(t *testing.T, f func(t *testing.T, cc *grpc.ClientConn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cc := unused(t)
		defer cc.Close()
		f(t, cc)
	})
}

// unused returns a connection to nowhere.
func unused(t *testing.T) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///unused", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return cc
}

type server struct {
	calls   atomic.Int64
	answers []error // then OK
}

func (s *server) invoke(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
	if i := s.calls.Add(1) - 1; i < int64(len(s.answers)) {
		return s.answers[i]
	}
	return nil
}

func TestClientRetries(t *testing.T) {
	seconds := func(n int64) *durationpb.Duration { return &durationpb.Duration{Seconds: n} }
	for _, c := range []struct {
		name     string
		config   grpclimit.ClientConfig
		deadline time.Duration
		answers  []error
		want     codes.Code
		calls    int64
		min, max time.Duration
	}{
		{"none", grpclimit.ClientConfig{}, 0, nil, codes.OK, 1, 0, 0},
		{"told", grpclimit.ClientConfig{}, 0, []error{refuse(codes.ResourceExhausted, seconds(7))}, codes.OK, 2, 7 * time.Second, 8 * time.Second},
		{"unavailable", grpclimit.ClientConfig{}, 0, []error{refuse(codes.Unavailable, seconds(2))}, codes.OK, 2, 2 * time.Second, 3 * time.Second},
		{"other code", grpclimit.ClientConfig{}, 0, []error{refuse(codes.Aborted, seconds(2))}, codes.Aborted, 1, 0, 0},
		{"not told", grpclimit.ClientConfig{}, 0, []error{status.Error(codes.ResourceExhausted, "no")}, codes.ResourceExhausted, 1, 0, 0},
		{"deadline", grpclimit.ClientConfig{}, 6 * time.Second, []error{refuse(codes.ResourceExhausted, seconds(7))}, codes.ResourceExhausted, 1, 0, 0},
		{"max wait", grpclimit.ClientConfig{MaxWait: 6 * time.Second}, 0, []error{refuse(codes.ResourceExhausted, seconds(7))}, codes.ResourceExhausted, 1, 0, 0},
		{"fail fast", grpclimit.ClientConfig{FailFast: true}, 0, []error{refuse(codes.ResourceExhausted, seconds(1))}, codes.ResourceExhausted, 1, 0, 0},
		{"one attempt", grpclimit.ClientConfig{MaxAttempts: 1}, 0, []error{refuse(codes.ResourceExhausted, seconds(1))}, codes.ResourceExhausted, 1, 0, 0},
		{"attempts", grpclimit.ClientConfig{MaxAttempts: 3}, 0, []error{refuse(codes.ResourceExhausted, seconds(1)), refuse(codes.ResourceExhausted, seconds(1)),
			refuse(codes.ResourceExhausted, seconds(1))}, codes.ResourceExhausted, 3, 2 * time.Second, 3 * time.Second},
		{"waits add up", grpclimit.ClientConfig{MaxWait: 5 * time.Second}, 0, []error{refuse(codes.ResourceExhausted, seconds(3)), refuse(codes.ResourceExhausted, seconds(3))},
			codes.ResourceExhausted, 2, 3 * time.Second, 4 * time.Second},
		{"negative", grpclimit.ClientConfig{}, 0, []error{refuse(codes.ResourceExhausted, seconds(-5))}, codes.OK, 2, 0, time.Second},
		{"ten thousand years", grpclimit.ClientConfig{}, 0, []error{refuse(codes.ResourceExhausted, seconds(315_576_000_000))}, codes.ResourceExhausted, 1, 0, 0},
		{"beyond a duration", grpclimit.ClientConfig{}, 0, []error{refuse(codes.ResourceExhausted, &durationpb.Duration{Seconds: math.MaxInt64, Nanos: math.MaxInt32})}, codes.ResourceExhausted, 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, cc *grpc.ClientConn) {
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				s, start := &server{answers: c.answers}, time.Now()
				err := newClient(t, nil, c.config).Unary(ctx, empty, nil, nil, cc, s.invoke)
				if took := time.Since(start); status.Code(err) != c.want || s.calls.Load() != c.calls || took < c.min || took > c.max {
					t.Errorf("%v, %d calls in %v; want %v, %d in %v to %v", err, s.calls.Load(), took, c.want, c.calls, c.min, c.max)
				}
			})
		})
	}
}

func TestClientSharesRetryInfo(t *testing.T) {
	virtual(t, func(t *testing.T, cc *grpc.ClientConn) {
		c := newClient(t, nil, grpclimit.ClientConfig{MaxWait: time.Minute})
		s := &server{answers: []error{refuse(codes.ResourceExhausted, durationpb.New(90*time.Second))}}
		call := func(method string) error { return c.Unary(t.Context(), method, nil, nil, cc, s.invoke) }
		if err := call(empty); status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		err := call(empty)
		if wait, ok := grpclimit.RetryInfo(err); !ok || wait != 70*time.Second || s.calls.Load() != 1 {
			t.Errorf("the second call: %v, told %v", err, wait)
		}
		if err := call(unary); err != nil {
			t.Errorf("another method: %v", err)
		}
		time.Sleep(20 * time.Second)
		start := time.Now()
		if err := call(empty); err != nil || time.Since(start) < 50*time.Second {
			t.Errorf("%v after %v, want 50 s", err, time.Since(start))
		}
	})
}

// A client waits by reservations where there is debt, and these leave no floor. So do slow
// messages of a server.
func TestClientFloorOfALimitWithDebt(t *testing.T) {
	l, _ := newLimiter(t, "debt=5/1h", "none=5/1h,max_debt=0")
	for name, good := range map[string]bool{"debt": false, "none": true} {
		_, err := grpclimit.NewClient(l, grpclimit.ClientConfig{Limits: []grpclimit.Limit{{Name: name, Floor: 1}}})
		if (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
		if _, err = grpclimit.New(l, grpclimit.Config{Received: []grpclimit.Limit{{Name: name, Floor: 1}}, Slow: true}); (err == nil) != good {
			t.Errorf("slow messages of %s: %v", name, err)
		}
		if _, err = grpclimit.New(l, grpclimit.Config{Received: []grpclimit.Limit{{Name: name, Floor: 1}}}); err != nil {
			t.Errorf("messages of %s: %v", name, err)
		}
	}
}

func TestClientWaitEndsWithContext(t *testing.T) {
	virtual(t, func(t *testing.T, cc *grpc.ClientConn) {
		c := newClient(t, nil, grpclimit.ClientConfig{})
		s := &server{answers: []error{refuse(codes.ResourceExhausted, durationpb.New(30*time.Second))}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		start := time.Now()
		if err := c.Unary(ctx, empty, nil, nil, cc, s.invoke); status.Code(err) != codes.ResourceExhausted || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func BenchmarkServerUnary(b *testing.B) {
	l, _ := newLimiter(b, "api=1000000000/1s")
	s, err := grpclimit.MakeServer(l, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "api", Key: grpclimit.Method()}}})
	if err != nil {
		b.Fatal(err)
	}
	ctx := grpc.NewContextWithServerTransportStream(b.Context(), nowhere{})
	info := &grpc.UnaryServerInfo{FullMethod: empty}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Unary(ctx, nil, info, handler); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClientUnary(b *testing.B) {
	l, _ := newLimiter(b, "api=1000000000/1s")
	cc, err := grpc.NewClient("passthrough:///unused", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer cc.Close()
	c := newClient(b, l, grpclimit.ClientConfig{Limits: []grpclimit.Limit{{Name: "api", Key: grpclimit.Method()}}})
	var s server
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Unary(b.Context(), empty, nil, nil, cc, s.invoke); err != nil {
			b.Fatal(err)
		}
	}
}
