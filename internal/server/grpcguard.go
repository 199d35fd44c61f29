package server

import (
	"context"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Bounds of calls over gRPC that wait for their clients, or for a processor.
const (
	maxArriving = 2048            // calls whose message has not arrived: metadata, at most 64 KiB of the message, a goroutine
	maxPending  = 2 * maxArriving // the same, with those that were ended and have not returned
	maxUntaken  = 8192            // calls that have not begun, and answers that were not taken
	maxStreamed = 1024            // streaming calls, such as Watch, which may last as long as their connections
)

var (
	errLate     = status.New(codes.DeadlineExceeded, "the message of the call did not arrive in time")
	errStreamed = status.Error(codes.ResourceExhausted, "too many streaming calls")
)

// grpcGuard registers services whose calls are bounded from their first byte on, and
// answered to those who may make them.
type grpcGuard struct {
	*grpc.Server
	api      *api
	arriving *room
	pending  *atomic.Int64 // calls that have begun, and whose message has not arrived
	streamed atomic.Int64
}

// admit sheds a call before it has a goroutine, if too many calls wait.
func (s *Server) admit(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if s.grpcPending.Load() < maxPending && s.grpcUntaken.Load() < maxUntaken {
		return ctx, nil
	}
	s.metrics.shed.Add(1)
	if c := connOf(ctx); c != nil {
		c.of.closeWorst()
	}
	return nil, ErrShed
}

func (g *grpcGuard) RegisterService(d *grpc.ServiceDesc, impl any) {
	bounded := *d
	bounded.Methods, bounded.Streams = slices.Clone(d.Methods), slices.Clone(d.Streams)
	for i := range bounded.Methods {
		m := &bounded.Methods[i]
		m.Handler = g.method(needsOf(d.ServiceName, m.MethodName), m.Handler)
	}
	for i := range bounded.Streams {
		s := &bounded.Streams[i]
		s.Handler = g.stream(needsOf(d.ServiceName, s.StreamName), s.Handler)
	}
	g.Server.RegisterService(&bounded, impl)
}

func (g *grpcGuard) method(needs Role, next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, receive func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		if c := connOf(ctx); c != nil {
			c.call(1)
			defer c.call(-1)
		}
		ctx, err := g.api.admittedCall(ctx, needs)
		if err != nil {
			return nil, err
		}
		return next(srv, ctx, func(m any) error { return g.receive(ctx, receive, m) }, i)
	}
}

func (g *grpcGuard) stream(needs Role, next grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, s grpc.ServerStream) error {
		if g.streamed.Add(1) > maxStreamed {
			g.streamed.Add(-1)
			return errStreamed
		}
		defer g.streamed.Add(-1)
		if c := connOf(s.Context()); c != nil {
			c.call(1)
			defer c.call(-1)
		}
		if _, err := g.api.admittedCall(s.Context(), needs); err != nil {
			return err
		}
		return next(srv, &firstMessage{ServerStream: s, guard: g})
	}
}

// firstMessage is a stream whose first message must arrive in time.
type firstMessage struct {
	grpc.ServerStream
	guard   *grpcGuard
	arrived bool
}

func (s *firstMessage) RecvMsg(m any) error {
	if s.arrived {
		return s.ServerStream.RecvMsg(m)
	}
	s.arrived = true
	return s.guard.receive(s.Context(), s.ServerStream.RecvMsg, m)
}

// receive receives the message of a call, in time.
func (g *grpcGuard) receive(ctx context.Context, receive func(any) error, m any) error {
	g.pending.Add(1)
	defer g.pending.Add(-1)
	defer g.arriving.leave(g.arriving.enter(ctx))
	return receive(m)
}

// endLate ends the call of a context, which waits for its message: by its status if the
// stream of gRPC has the method for that, else with its connection.
func endLate(call any) {
	ctx := call.(context.Context)
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(*status.Status) error }); ok {
		_ = s.WriteStatus(errLate) // an error means that the client has gone
	} else if c := connOf(ctx); c != nil {
		_ = c.Close()
	}
}
