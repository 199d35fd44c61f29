package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/grpclimit"
)

// The plan and the limit are chosen by the call.
func TestChooses(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=1,plans=pro:burst=3", "search=1/1m,burst=2")
	of := func(name string) func(*grpclimit.Call) string {
		return func(c *grpclimit.Call) string {
			if v := metadata.ValueFromIncomingContext(c.Context, name); len(v) == 1 {
				return v[0]
			}
			return ""
		}
	}
	c, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{
		{Name: "api", Key: grpclimit.Metadata("user"), Plan: of("plan")},
		{Key: grpclimit.Metadata("user"), Choose: of("limit"), Floor: 1},
	}}, l)
	for i, tc := range []struct {
		user, plan, limit string
		want              codes.Code
	}{
		{"7", "", "", codes.OK},
		{"7", "", "", codes.ResourceExhausted},
		{"8", "pro", "", codes.OK},
		{"8", "pro", "search", codes.OK},
		{"8", "pro", "search", codes.ResourceExhausted}, // one of search must stay free
		{"8", "pro", "", codes.OK},
		{"9", "prro", "", codes.Internal},
		{"9", "", "nobody", codes.Internal},
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "user", tc.user, "plan", tc.plan, "limit", tc.limit)
		if _, err := c.EmptyCall(ctx, &testpb.Empty{}); status.Code(err) != tc.want {
			t.Errorf("call %d: %v, want %v", i, err, tc.want)
		}
	}
}

func heldSlots(t *testing.T, l *dipwell.Limiter) int {
	t.Helper()
	holds, err := l.Holds(t.Context(), "slots", dipwell.Shared)
	if err != nil {
		t.Fatal(err)
	}
	return len(holds)
}

// A stream holds a concurrency limit until it ends, also when its client cancels it.
func TestConcurrency(t *testing.T) {
	l, _ := newLimiter(t, "slots=1,algorithm=concurrency,shared=true", "day=9/1d,shared=true")
	c, _ := serve(t, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "day"}, {Name: "slots"}}}, l)
	open := func(ctx context.Context) testpb.TestService_FullDuplexCallClient {
		stream, err := c.FullDuplexCall(ctx)
		if err == nil {
			err = stream.Send(&testpb.StreamingOutputCallRequest{})
		}
		if err == nil {
			_, err = stream.Recv() // the handler runs
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream := open(t.Context())
	_, err := c.EmptyCall(t.Context(), &testpb.Empty{})
	if _, retry := details(t, err); heldSlots(t, l) != 1 || retry.GetRetryDelay().AsDuration() > time.Minute {
		t.Error("a second call", retry)
	}
	if err = stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err = stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if n := heldSlots(t, l); n != 0 {
		t.Error("still held:", n)
	}
	for range 3 {
		if _, err = c.EmptyCall(t.Context(), &testpb.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	open(ctx)
	cancel()
	late, tick := time.After(time.Minute), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for heldSlots(t, l) != 0 {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("a cancelled stream is not released")
		}
	}
	if d, err := l.Check(t.Context(), "day", dipwell.Shared, 0); err != nil || d.Remaining != 4 {
		t.Errorf("%d left of the day, want 4: %v", d.Remaining, err)
	}
}

// A handler that panics releases what its call held. Another interceptor recovers.
func TestConcurrencyPanics(t *testing.T) {
	l, _ := newLimiter(t, "slots=1,algorithm=concurrency,shared=true")
	options, err := grpclimit.New(l, grpclimit.Config{Limits: []grpclimit.Limit{{Name: "slots"}}})
	if err != nil {
		t.Fatal(err)
	}
	again := func(err *error) {
		if recover() != nil {
			*err = status.Error(codes.Aborted, "it panicked")
		}
	}
	fail := func() {
		if n := heldSlots(t, l); n != 1 {
			t.Errorf("%d slots are held by a call that runs", n)
		}
		panic("oh")
	}
	options = append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
			defer again(&err)
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer again(&err)
			return next(srv, stream)
		}),
	}, options...)
	options = append(options,
		grpc.ChainUnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			fail()
			return nil, nil
		}),
		grpc.ChainStreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error { fail(); return nil }))
	c, _ := serveWith(t, options)
	if _, err = c.EmptyCall(t.Context(), &testpb.Empty{}); status.Code(err) != codes.Aborted || heldSlots(t, l) != 0 {
		t.Errorf("%v; %d slots are still held", err, heldSlots(t, l))
	}
	stream, err := c.FullDuplexCall(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Aborted || heldSlots(t, l) != 0 {
		t.Errorf("a stream: %v; %d slots are still held", err, heldSlots(t, l))
	}
}

// Concurrency limits are for calls that a server receives. The error names the one field
// where they may be.
func TestConcurrencyElsewhere(t *testing.T) {
	l, _ := newLimiter(t, "slots=1,algorithm=concurrency,shared=true")
	limits := []grpclimit.Limit{{Name: "slots"}}
	if _, err := grpclimit.New(l, grpclimit.Config{Sent: limits}); err == nil || !strings.Contains(err.Error(), "Config.Limits of New") {
		t.Errorf("a concurrency limit of messages: %v", err)
	}
	if _, err := grpclimit.NewClient(l, grpclimit.ClientConfig{Limits: limits}); err == nil || !strings.Contains(err.Error(), "Config.Limits of New") {
		t.Errorf("a concurrency limit of a client: %v", err)
	}
}
