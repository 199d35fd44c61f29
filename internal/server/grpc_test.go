package server_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

// serveGRPC starts a server and connects to it. stop stops it and returns its
// error.
func (w *fixture) serveGRPC(at server.Site) (conn *grpc.ClientConn, stop func() error) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.server.ServeGRPC(ctx, server.Listener{Listener: l}, w.server.GRPC(at, nil)) }()
	conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	stopped := false
	var ended error
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			ended = <-done
		}
		return ended
	}
	w.t.Cleanup(func() {
		_ = conn.Close()
		if err := stop(); err != nil {
			w.t.Error(err)
		}
	})
	return conn, stop
}

func call(limit, key string, cost int64) *dipwellv1.Call {
	return &dipwellv1.Call{Limit: limit, Key: &key, Cost: &cost}
}

func TestGRPCVerbs(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	conn, _ := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	ctx := t.Context()
	want := func(got *dipwellv1.Decision, err error, want *dipwellv1.Decision) {
		t.Helper()
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%v %v\nwant %v", got, err, want)
		}
	}
	u7, retry := "u7", int64(12e6)
	d, err := c.Take(ctx, call("login", "u7", 20))
	want(d, err, &dipwellv1.Decision{Allowed: true, Limit: "login", Key: &u7, Cost: 20, Granted: 20, Capacity: 20, ResetAfterUs: 240e6, Source: "store"})
	d, err = c.Take(ctx, &dipwellv1.Call{Limit: "login", Key: &u7}) // cost 1
	want(d, err, &dipwellv1.Decision{Limit: "login", Key: &u7, Cost: 1, Capacity: 20, ResetAfterUs: 240e6, RetryAfterUs: &retry, Source: "store"})
	d, err = c.Check(ctx, call("login", "u7", 21))
	want(d, err, &dipwellv1.Decision{Limit: "login", Key: &u7, Cost: 21, Capacity: 20, ResetAfterUs: 240e6, Never: true, Source: "store"})
	d, err = c.Refund(ctx, call("login", "u7", 5))
	want(d, err, &dipwellv1.Decision{Allowed: true, Limit: "login", Key: &u7, Cost: 5, Capacity: 20, Remaining: 5, ResetAfterUs: 180e6, Source: "store"})
	d, err = c.TakeUpTo(ctx, call("login", "u7", 9))
	want(d, err, &dipwellv1.Decision{Allowed: true, Limit: "login", Key: &u7, Cost: 9, Granted: 5, Capacity: 20, ResetAfterUs: 240e6, Source: "store"})
	d, err = c.Reset(ctx, call("login", "u7", 0))
	want(d, err, &dipwellv1.Decision{Allowed: true, Limit: "login", Key: &u7, Capacity: 20, Remaining: 20, Source: "store"})
	d, err = c.Charge(ctx, &dipwellv1.Call{Limit: "all"}) // the shared bucket
	want(d, err, &dipwellv1.Decision{Allowed: true, Limit: "all", Cost: 1, Granted: 1, Capacity: 20, Remaining: 19, ResetAfterUs: 12e6, Source: "store"})

	d, err = c.Reserve(ctx, call("jobs", "k", 3))
	if err != nil || d.DelayUs != 2e6 || d.Reservation == "" {
		t.Fatal(d, err)
	}
	if _, err = c.Cancel(ctx, &dipwellv1.CancelRequest{Reservation: d.Reservation}); err != nil {
		t.Error(err)
	}
	if _, err = c.Cancel(ctx, &dipwellv1.CancelRequest{Reservation: d.Reservation}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}

	takes := &dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "login", Key: &u7}, {Limit: "jobs", Key: &u7}}}
	if d, err = c.Take(ctx, takes); err != nil || !d.Allowed || len(d.Limits) != 2 || d.Limits[0].Limit != "login" || d.Limit != "jobs" {
		t.Error(d, err)
	}
	if d, err = c.Take(ctx, takes); err != nil || d.Allowed || d.Limits[0].Remaining != 19 {
		t.Error("not all or nothing", d, err)
	}
	w.want(w.do("GET", "/metrics", ""), 200, `dipwell_decisions_total{limit="login",result="refused"}`)
}

func TestGRPCMistakes(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	conn, _ := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	one, empty, nul := int64(1), "", "\x00"
	for _, tc := range []struct {
		call *dipwellv1.Call
		code codes.Code
		want string
	}{
		{&dipwellv1.Call{}, codes.InvalidArgument, "limit: is missing"},
		{call("login", "", 1), codes.InvalidArgument, "key: is empty"},
		{&dipwellv1.Call{Limit: "login", Key: &nul}, codes.InvalidArgument, "key: has a NUL byte"},
		{&dipwellv1.Call{Limit: "login"}, codes.InvalidArgument, "key: is missing; limit login has a bucket for each key"},
		{call("all", "k", 1), codes.InvalidArgument, "key: limit all is shared: its calls have no key"},
		{&dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "all"}, {Limit: "login"}}}, codes.InvalidArgument, "takes[1].key: is missing; limit login"},
		{call("login", strings.Repeat("k", 513), 1), codes.InvalidArgument, "key: has 513 bytes"},
		{call("login", "k", -1), codes.InvalidArgument, "cost: "},
		{call("login", "k", 1<<53), codes.InvalidArgument, "cost: "},
		{call("lgin", "k", 1), codes.NotFound, `unknown limit "lgin"`},
		{call(strings.Repeat("l", 60<<10), "k", 1), codes.NotFound, `lll...`},
		{&dipwellv1.Call{Cost: &one, Takes: []*dipwellv1.Take{{Limit: "login"}}}, codes.InvalidArgument, "takes: must be alone"},
		{&dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "login"}, {}}}, codes.InvalidArgument, "takes[1].limit: is missing"},
		{&dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "login", Key: &nul}, {Limit: "lgin"}}}, codes.InvalidArgument, "takes[0].key: has a NUL byte"},
		{&dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "all"}, {Limit: "lgin"}}}, codes.NotFound, `takes[1].limit: unknown limit "lgin"`},
		{&dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "login", Key: &empty}}}, codes.InvalidArgument, "takes[0].key: is empty"},
		{&dipwellv1.Call{Takes: make([]*dipwellv1.Take, 17)}, codes.InvalidArgument, "takes: has more than 16"},
		{call(strings.Repeat("l", 70<<10), "k", 1), codes.ResourceExhausted, "larger than max"},
	} {
		for i := range tc.call.Takes {
			if tc.call.Takes[i] == nil {
				tc.call.Takes[i] = &dipwellv1.Take{Limit: "login"}
			}
		}
		_, err := c.Take(t.Context(), tc.call)
		if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.want) {
			t.Errorf("%.80v: %v", tc.call, err)
		}
	}
	if _, err := c.TakeUpTo(t.Context(), &dipwellv1.Call{Takes: []*dipwellv1.Take{{Limit: "login"}}}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if _, err := c.Cancel(t.Context(), &dipwellv1.CancelRequest{Reservation: "x"}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	w.down.Store(true)
	if _, err := c.Take(t.Context(), call("login", "k", 1)); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "10.1.2.3") {
		t.Error(err)
	}
	if d, err := c.Take(t.Context(), call("open", "k", 1)); err != nil || !d.Allowed || d.Source != "fallback-open" {
		t.Error(d, err)
	}
}

func TestGRPCAdmin(t *testing.T) {
	const token = "sesame"
	bearer := func(s string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", s)
	}
	for name, tc := range map[string]struct {
		token string
		at    server.Site
		ctx   context.Context
		want  codes.Code
	}{
		"loopback":         {"", local, t.Context(), codes.OK},
		"not loopback":     {"", server.Site{}, t.Context(), codes.PermissionDenied},
		"token":            {token, server.Site{}, bearer("Bearer " + token), codes.OK},
		"any case":         {token, server.Site{}, bearer("bearer  " + token), codes.OK},
		"no token":         {token, local, t.Context(), codes.Unauthenticated},
		"another token":    {token, local, bearer("Bearer open"), codes.Unauthenticated},
		"another scheme":   {token, local, bearer(token), codes.Unauthenticated},
		"its own listener": {token, server.Site{Loopback: true, NoAdmin: true}, bearer("Bearer " + token), codes.PermissionDenied},
	} {
		w := newFixture(t, server.Config{AdminToken: tc.token}, local)
		conn, _ := w.serveGRPC(tc.at)
		c := dipwellv1.NewLimiterClient(conn)
		if _, err := c.Refund(tc.ctx, call("login", "k", 1)); status.Code(err) != tc.want {
			t.Errorf("%s: refund: %v", name, err)
		}
		if _, err := c.Reset(tc.ctx, call("login", "k", 1)); status.Code(err) != tc.want {
			t.Errorf("%s: reset: %v", name, err)
		}
		if _, err := c.Take(t.Context(), call("login", "k", 1)); err != nil {
			t.Errorf("%s: take: %v", name, err)
		}
	}
}

func TestGRPCHealth(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	conn, stop := w.serveGRPC(local)
	c := healthpb.NewHealthClient(conn)
	want := func(service string, st healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if r, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}); err != nil || r.Status != st {
			t.Errorf("%q: %v %v", service, r, err)
		}
	}
	const ready = "dipwell.v1.Limiter"
	for _, s := range []string{"", "ratelimit", ready} {
		want(s, healthpb.HealthCheckResponse_SERVING)
	}
	if _, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	watch, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: ready})
	if err != nil {
		t.Fatal(err)
	}
	next := func(st healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if r, err := watch.Recv(); err != nil || r.Status != st {
			t.Errorf("%v %v, want %v", r, err, st)
		}
	}
	next(healthpb.HealthCheckResponse_SERVING)
	w.down.Store(true) // the process runs but cannot decide
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	want("", healthpb.HealthCheckResponse_SERVING)
	want(ready, healthpb.HealthCheckResponse_NOT_SERVING)
	w.down.Store(false)
	next(healthpb.HealthCheckResponse_SERVING)

	if err := stop(); err != nil { // a watch that delayed the drain would end with another status
		t.Error(err)
	}
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// A server that stops during a watch's check of the store sends NOT_SERVING before
// the watch ends.
func TestGRPCHealthWatchDuringStop(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	w.why = func(context.Context) error { w.server.Stop(); return nil }
	conn, _ := w.serveGRPC(local)
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "dipwell.v1.Limiter"})
	if err != nil {
		t.Fatal(err)
	}
	var last healthpb.HealthCheckResponse_ServingStatus
	for {
		r, err := watch.Recv()
		if err != nil {
			break
		}
		last = r.Status
	}
	if last != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the last status is %v", last)
	}
}

func TestGRPCReflection(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	conn, _ := w.serveGRPC(local)
	s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err = s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Recv()
	if err != nil || !strings.Contains(r.String(), "dipwell.v1.Limiter") {
		t.Error(r, err)
	}
	_ = s.CloseSend()
}

// A stopping server answers calls in flight and accepts no new ones.
func TestGRPCDrains(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	slow := &waiting{Store: w.flaky, entered: make(chan struct{}), leave: make(chan struct{})}
	limiter, err := dipwell.New(slow, dipwell.Limit{Name: "login", Rate: 5, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.server = server.New(limiter, server.Config{})
	conn, stop := w.serveGRPC(local)
	c := dipwellv1.NewLimiterClient(conn)
	answered := make(chan error, 1)
	go func() {
		_, err := c.Take(context.Background(), call("login", "k", 1))
		answered <- err
	}()
	<-slow.entered
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	for !w.server.Stopping() {
		runtime.Gosched()
	}
	select {
	case err := <-ended:
		t.Fatal("the server ended before its call", err)
	default:
	}
	rec := &recorder{header: http.Header{}}
	if w.server.Healthcheck(rec, nil); rec.status != 500 {
		t.Error(rec.status)
	}
	close(slow.leave)
	if err := errors.Join(<-answered, <-ended); err != nil {
		t.Error(err)
	}
}

type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *recorder) WriteHeader(status int)      { r.status = status }

// waiting is a store whose calls wait until the test releases them.
type waiting struct {
	store.Store
	entered, leave chan struct{}
}

func (w *waiting) Apply(ctx context.Context, b *store.Batch) error {
	w.entered <- struct{}{}
	<-w.leave
	return w.Store.Apply(ctx, b)
}
