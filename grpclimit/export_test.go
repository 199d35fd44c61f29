package grpclimit

import (
	"context"

	"github.com/dipwell/dipwell"
	"google.golang.org/grpc"
)

// Server and Client are what is behind the options, for tests without a connection.
type (
	Server = server
	Client = client
)

func MakeServer(l *dipwell.Limiter, c Config) (*Server, error)       { return newServer(l, c) }
func MakeClient(l *dipwell.Limiter, c ClientConfig) (*Client, error) { return newClient(l, c) }

// Options are those that NewClient returns.
func (c *client) Options() []grpc.DialOption { return c.options() }

// Unary is the unary interceptor, for tests without a connection.
func (c *client) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker) error {
	return c.unary(ctx, method, req, reply, cc, invoke)
}

// Stream is the stream interceptor, for tests without a connection.
func (c *client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer) (grpc.ClientStream, error) {
	return c.stream(ctx, desc, cc, method, open)
}

// Unary is the unary interceptor, for benchmarks without a connection.
func (s *server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return s.unary(ctx, req, info, handler)
}
