package server

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/dipwell/dipwell"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
	"github.com/dipwell/dipwell/store"
)

const (
	maxMessage    = maxBody  // in bytes: enough for 100 descriptors with long values
	maxMetadata   = 16 << 10 // in bytes; gRPC clients in Java and C++ allow 8 KiB by default
	maxStreams    = 1024     // calls in flight on one connection
	maxWatches    = 1024     // calls in flight in addition to MaxInFlight: of health and reflection, which may be streams
	maxAge        = time.Hour
	pingAfter     = time.Minute
	pingTimeout   = 20 * time.Second
	minClientPing = 10 * time.Second
)

// GRPC returns the gRPC service for a listener, without TLS: the verbs, the services that
// register adds, health and reflection. A connection is replaced after an hour, because gRPC
// keeps an answer that its client does not allow to be sent (flow control) until then.
func (s *Server) GRPC(at Site, register func(grpc.ServiceRegistrar), more ...grpc.ServerOption) *grpc.Server {
	a := &grpcAPI{api: &api{Server: s, site: at}, needs: map[string]Role{}}
	g := grpc.NewServer(append(more,
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxMetadata),
		grpc.StaticStreamWindowSize(maxMessage), // otherwise it grows to 16 MB for a call that nobody reads
		grpc.InTapHandle(s.begin),
		grpc.UnaryInterceptor(a.call),
		grpc.StreamInterceptor(a.stream),
		grpc.ConnectionTimeout(readTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: maxWait + answerTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minClientPing, PermitWithoutStream: true}),
	)...)
	dipwellv1.RegisterLimiterServer(g, &verbs{api: a.api})
	if register != nil {
		register(g)
	}
	healthpb.RegisterHealthServer(g, &health{api: &api{Server: s}, served: g.GetServiceInfo})
	reflection.Register(g)
	for name, service := range g.GetServiceInfo() {
		for _, m := range service.Methods {
			a.needs["/"+name+"/"+m.Name] = needsOf(name, m.Name)
		}
	}
	return g
}

// ServeGRPC serves on the socket of l, with its TLS and MaxConnections, until ctx ends. Then it
// waits at most ten seconds for the calls in flight, and returns nil.
func (s *Server) ServeGRPC(ctx context.Context, l Listener, g *grpc.Server) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.Stop()
		last := time.AfterFunc(drainTimeout, g.Stop)
		defer last.Stop()
		g.GracefulStop()
	})
	sockets := net.Listener(takingListener{l.bounded(maxSecure)})
	if l.TLS != nil {
		sockets = tls.NewListener(sockets, l.TLS)
	}
	err := g.Serve(sockets)
	if !stop() { // ctx has ended: wait for the drain
		<-stopped
		err = nil
	}
	return err
}

// takingListener is a listener whose connections are closed when a write takes longer than
// answerTimeout. gRPC would go on reading from a client that sends and does not read.
type takingListener struct{ net.Listener }

func (l takingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return takingConn{c}, nil
}

type takingConn struct{ net.Conn }

func (c takingConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(answerTimeout)) // the write then returns the same error
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// Observe counts a take that was decided elsewhere in this process, or its error.
func (s *Server) Observe(d *dipwell.Decision, err error, took time.Duration) {
	s.metrics.observe(context.Background(), store.VerbTake, d, err, took)
}

func (s *Server) Collect(c prometheus.Collector) { s.metrics.reg.MustRegister(c) }

func (s *Server) Stopping() bool { return s.stopped.Err() != nil }

var tooManyTakes = "has more than " + strconv.Itoa(store.MaxTakes) + " entries"

func takesPath(i int) string { return "takes[" + strconv.Itoa(i) + "]." }

type verbs struct {
	dipwellv1.UnimplementedLimiterServer
	*api
}

type (
	call   = dipwellv1.Call
	answer = dipwellv1.Decision
)

func (v *verbs) Take(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbTake, c)
}
func (v *verbs) Check(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbCheck, c)
}
func (v *verbs) Reserve(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbReserve, c)
}
func (v *verbs) Charge(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbCharge, c)
}
func (v *verbs) Refund(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbRefund, c)
}
func (v *verbs) Reset(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbReset, c)
}

func (v *verbs) TakeUpTo(ctx context.Context, c *call) (*answer, error) {
	return v.do(ctx, store.VerbTakeUpTo, c)
}

func (v *verbs) Cancel(ctx context.Context, c *dipwellv1.CancelRequest) (*dipwellv1.CancelResponse, error) {
	var id dipwell.Reservation
	err := id.UnmarshalText([]byte(c.GetReservation()))
	if err == nil {
		err = v.limiter.Cancel(ctx, id)
	}
	return &dipwellv1.CancelResponse{}, err
}

func (v *verbs) do(ctx context.Context, verb store.Verb, c *call) (*answer, error) {
	return decision(func(d *dipwell.Decision) error {
		q, err := callOf(ctx, membersOf(verb), &dipwellv1.Take{Limit: c.Limit, Key: c.Key, Cost: c.Cost, Plan: c.Plan, Floor: c.Floor}, c.Takes)
		if err != nil {
			return err
		}
		return v.timed(ctx, verb, d, &q)
	})
}

// callOf converts a call, with the defaults and checks of the JSON API.
func callOf(ctx context.Context, allowed members, one *dipwellv1.Take, takes []*dipwellv1.Take) (q request, err error) {
	q.allowed = allowed
	q.take, q.seen = takeOf(one)
	if takes != nil {
		q.seen |= hasTakes
	}
	if more := q.seen &^ allowed; more != 0 {
		return q, bad(more.String(), "is not possible in this call")
	}
	if err = q.complete(); err != nil {
		return q, err
	}
	if takes == nil {
		return q, q.mayBeOf(callerOf(ctx))
	}
	if len(takes) > store.MaxTakes {
		return q, bad("takes", tooManyTakes)
	}
	q.takes = make([]dipwell.Take, len(takes))
	for i, t := range takes {
		var seen members
		q.takes[i], seen = takeOf(t)
		if err = finish(&q.takes[i], seen, takesPath(i)); err != nil {
			return q, err
		}
	}
	return q, q.mayBeOf(callerOf(ctx))
}

func takeOf(p *dipwellv1.Take) (t dipwell.Take, seen members) {
	if p == nil {
		return t, 0
	}
	t = dipwell.Take{Limit: p.Limit, Key: p.GetKey(), Cost: p.GetCost(), Plan: p.Plan, Floor: p.Floor}
	for i, has := range [...]bool{t.Limit != "", p.Key != nil, p.Cost != nil, t.Plan != "", t.Floor != 0} {
		if has {
			seen |= 1 << i
		}
	}
	return t, seen
}

func decisionOf(d *dipwell.Decision) *dipwellv1.Decision {
	out := &dipwellv1.Decision{
		Allowed: d.Allowed, Limit: d.Limit, Cost: d.Cost, Granted: d.Granted, Capacity: d.Capacity, Remaining: d.Remaining,
		ResetAfterUs: d.ResetAfter.Microseconds(), DelayUs: d.Delay.Microseconds(), Never: d.Never, Shadow: d.Shadow, Source: d.Source.String(),
	}
	if d.Key != "" {
		out.Key = &d.Key
	}
	if !d.Never && (!d.Allowed || d.Shadow) {
		retry := d.RetryAfter.Microseconds()
		out.RetryAfterUs = &retry
	}
	out.Plan, out.Hold, out.Repeated, out.RetryIsBound, out.BlockedUntilUs = d.Plan, d.Hold, d.Repeated, d.RetryIsBound, d.Definition.BlockedUntil()
	if d.Plan == "" && d.Definition != nil && d.Definition.Override != nil {
		out.Plan = "override"
	}
	if !d.Expires.IsZero() {
		out.ExpiresUs = d.Expires.UnixMicro()
	}
	if d.Reservation != (dipwell.Reservation{}) {
		out.Reservation = d.Reservation.String()
	}
	for i := range d.Limits {
		out.Limits = append(out.Limits, decisionOf(&d.Limits[i]))
	}
	return out
}
