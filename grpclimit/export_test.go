package grpclimit

import (
	"context"

	"google.golang.org/grpc"
)

// Unary is the unary interceptor, for tests without a connection.
func (c *Client) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker) error {
	return c.unary(ctx, method, req, reply, cc, invoke)
}

// Stream is the stream interceptor, for tests without a connection.
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer) (grpc.ClientStream, error) {
	return c.stream(ctx, desc, cc, method, open)
}

// Unary is the unary interceptor, for benchmarks without a connection.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return s.unary(ctx, req, info, handler)
}
