package server

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
)

// otherServices are the services beside dipwell.v1.Limiter, and what their calls need.
var otherServices = map[string]Role{
	"envoy.service.ratelimit.v3.RateLimitService": Proxied,
	"grpc.health.v1.Health":                       Anybody,
	"grpc.reflection.v1.ServerReflection":         Anybody,
	"grpc.reflection.v1alpha.ServerReflection":    Anybody,
}

// needsOf returns what a call of gRPC needs. It is 0 if no table has it, and then nobody
// who has a token may make the call.
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

// admittedCall returns the context of a call over gRPC with its caller, or the status of
// its denial.
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
