package grpclimit

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Call is what key and cost functions are told of a call, beside its context.
type Call struct {
	Method  string // "/package.Service/Method"
	Message any    // the request of a unary call, the message of a stream; nil when a stream begins, and before a client receives
}

// A KeyFunc tells whose bucket a call takes from. A key that cannot be told is
// a *dipwell.FieldError, never an empty key: that would merge everyone.
type KeyFunc func(context.Context, *Call) (string, error)

// A CostFunc tells what a call or a message costs, in tokens.
type CostFunc func(context.Context, *Call) (int64, error)

// Metadata is the value of a metadata key that must be there once: of the
// incoming metadata on a server, of the outgoing on a client.
func Metadata(name string) KeyFunc {
	return func(ctx context.Context, _ *Call) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		if values == nil {
			if md, ok := metadata.FromOutgoingContext(ctx); ok {
				values = md.Get(name)
			}
		}
		switch {
		case len(values) == 0 || values[0] == "":
			return "", bad("metadata "+name, "is missing or empty")
		case len(values) > 1:
			return "", bad("metadata "+name, "is given more than once")
		default:
			return values[0], nil
		}
	}
}

// Method is the call's full method, "/package.Service/Method": each method has
// a bucket of its own.
func Method() KeyFunc {
	return func(_ context.Context, c *Call) (string, error) { return c.Method, nil }
}

// ClientIP is the client's address: the peer's, unless the peer is one of the
// trusted proxies; then x-forwarded-for is read as httplimit.ClientIP reads it.
// IPv6 clients are told apart by their /64. A peer without an address (a unix
// socket) is an error.
func ClientIP(trusted ...netip.Prefix) KeyFunc {
	of := httplimit.ClientIP(trusted...)
	return func(ctx context.Context, _ *Call) (string, error) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", bad("client address", "is not known")
		}
		r := http.Request{RemoteAddr: p.Addr.String()}
		if len(trusted) > 0 {
			r.Header = http.Header{"X-Forwarded-For": metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")}
		}
		return of(&r)
	}
}

func bad(field, reason string) error { return &dipwell.FieldError{Field: field, Reason: reason} }
