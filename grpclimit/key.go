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

// Call describes a call or message to key and cost functions, which must not change or keep it.
type Call struct {
	// Context is the context of the call, with its deadline and metadata.
	Context context.Context //nolint:containedctx // as an http.Request has it
	// Method is "/package.Service/Method".
	Method string
	// Message is the request of a unary call, or the message of a stream. Message is nil
	// when a stream begins. Message has the type for which the service's code was
	// generated: proto.Size of it is a cost by size.
	Message any
}

// A KeyFunc returns the key of a call: whose bucket it takes from, as httplimit.KeyFunc does
// for a request. If a call has no key, the function returns a *dipwell.FieldError rather than
// an empty key. A key that clients can choose freely limits nobody.
type KeyFunc func(*Call) (string, error)

// Metadata returns a KeyFunc whose key is the value of a metadata key: of the
// incoming metadata on a server, of the outgoing metadata on a client. A value
// that is missing, empty or repeated is an error. In a server's handler that calls
// another server, the incoming metadata of its own call is used, if it has the key. Use
// a key that an earlier interceptor or a proxy has checked.
func Metadata(name string) KeyFunc {
	return func(c *Call) (string, error) {
		values := metadata.ValueFromIncomingContext(c.Context, name)
		if values == nil {
			if md, ok := metadata.FromOutgoingContext(c.Context); ok {
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

// Method returns a KeyFunc whose key is the full method, such as
// "/package.Service/Method", so that each method has its own bucket.
func Method() KeyFunc {
	return func(c *Call) (string, error) { return c.Method, nil }
}

// ClientIP returns a KeyFunc whose key is the client's address: an IPv4 address, or
// the /64 prefix of an IPv6 address. The address is the peer's, or, if the peer is
// one of the trusted proxies, the one that httplimit.ClientIP finds in the metadata
// x-forwarded-for. A peer without an address, as on a Unix socket, is an error.
func ClientIP(trusted ...netip.Prefix) KeyFunc {
	clientIP := httplimit.ClientIP(trusted...)
	return func(c *Call) (string, error) {
		p, ok := peer.FromContext(c.Context)
		if !ok || p.Addr == nil {
			return "", bad("client address", "is not known")
		}
		r := http.Request{RemoteAddr: p.Addr.String()}
		if len(trusted) > 0 {
			r.Header = http.Header{"X-Forwarded-For": metadata.ValueFromIncomingContext(c.Context, "x-forwarded-for")}
		}
		return clientIP(&r)
	}
}

func bad(field, reason string) error { return &dipwell.FieldError{Field: field, Reason: reason} }
