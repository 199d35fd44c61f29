package server

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
)

// otherServices are the services beside dipwell.v1.Limiter, and what their calls need.
var otherServices = map[string]Role{
	"envoy.service.ratelimit.v3.RateLimitService": Proxied,
	"grpc.health.v1.Health":                       Anybody,
	"grpc.reflection.v1.ServerReflection":         Anybody,
	"grpc.reflection.v1alpha.ServerReflection":    Anybody,
}

// needsOf returns what a call of gRPC needs. If no table has the call, the result is 0,
// and then nobody who has a token may make it.
func needsOf(service, method string) Role {
	if service != dipwellv1.Limiter_ServiceDesc.ServiceName {
		return otherServices[service]
	}
	for _, r := range routes() {
		if r.rpc == method {
			return r.needs
		}
	}
	return 0
}

// grpcAPI admits the calls of a gRPC service.
type grpcAPI struct {
	*api
	needs map[string]Role // role that each method needs
}

// begin begins a call, before it has a goroutine and a message. begin sheds the call if too
// many have begun and are not answered, and bounds its time.
func (s *Server) begin(ctx context.Context, of *tap.Info) (context.Context, error) {
	if !s.enter(&s.streams, int64(s.live.Load().MaxInFlight)+maxWatches) {
		return nil, errShed
	}
	most := answerTimeout
	switch {
	case of.FullMethodName == dipwellv1.Limiter_Wait_FullMethodName:
		most += maxWait
	case strings.HasPrefix(of.FullMethodName, "/grpc."): // it may be a stream, which ends with its connection
		most = 2 * maxAge
	}
	within, end := context.WithTimeout(ctx, most)
	context.AfterFunc(ctx, func() { end(); s.streams.Add(-1) })
	return within, nil
}

// call is the interceptor of calls with one message, whose errors it turns into statuses.
func (a *grpcAPI) call(ctx context.Context, message any, of *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	needs := a.needs[of.FullMethod]
	ctx, err := a.admittedCall(ctx, needs)
	switch {
	case err != nil:
		return nil, err
	case needs == Anybody: // answered during an overload too
	case !a.Enter():
		return nil, errShed
	default:
		defer a.Leave()
	}
	answer, err := next(ctx, message)
	if _, ok := status.FromError(err); !ok {
		err = a.grpcError(err)
	}
	return answer, err
}

func (a *grpcAPI) stream(srv any, s grpc.ServerStream, of *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if _, err := a.admittedCall(s.Context(), a.needs[of.FullMethod]); err != nil {
		return err
	}
	return next(srv, s)
}

// admittedCall returns the context of a call with its caller, or the status of its denial.
func (a *api) admittedCall(ctx context.Context, needs Role) (context.Context, error) {
	c, d := a.admit(needs, metadata.ValueFromIncomingContext(ctx, "authorization"))
	if d != nil {
		return ctx, a.denied(d, a.address(requestOf(ctx)))
	}
	if c != nil {
		ctx = withCaller(ctx, c)
	}
	return ctx, nil
}

// denied counts and logs a denial, and returns its status. from may be "".
func (s *Server) denied(d *denial, from string) error {
	s.metrics.deny(d, from)
	if d.unknown() {
		return status.Error(codes.Unauthenticated, d.detail)
	}
	return status.Error(codes.PermissionDenied, d.detail)
}
