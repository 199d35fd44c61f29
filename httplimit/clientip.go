package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/dipwell/dipwell/internal/front"
)

// ClientIP returns a KeyFunc whose key is the client's address: an IPv4 address,
// or the /64 prefix of an IPv6 address. A client behind NAT64 (64:ff9b::/96)
// has the key of its IPv4 address.
//
// The address is that of the connection's peer. If the peer is one of the trusted
// proxies, it is the rightmost address in X-Forwarded-For that is not a trusted
// proxy; addresses to the left of it are ignored, since the client may have
// written them. If all addresses are trusted proxies, the key is the leftmost one.
// An address in it that cannot be parsed is an error.
//
// Without trusted proxies X-Forwarded-For is not read at all. Behind a proxy that is not
// in the list all clients then share the proxy's bucket; if the list is too wide, a
// client can choose its own key. All addresses of a host with a /64 share one bucket.
//
// A limit with a Parent needs dipwell.Key around the key, because 2001:db8::/64 has a '/'.
func ClientIP(trusted ...netip.Prefix) KeyFunc {
	p := front.Proxies(trusted)
	return func(r *http.Request) (string, error) {
		a, err := client(p, r)
		if err != nil {
			return "", err
		}
		return front.AddrKey(a), nil
	}
}

func client(p front.Proxies, r *http.Request) (netip.Addr, error) {
	addr, err := front.ParseAddr(r.RemoteAddr)
	if err != nil {
		return addr, bad("client address", fmt.Sprintf("%q is not an address", r.RemoteAddr))
	}
	if !p.Has(addr) {
		return addr, nil
	}
	if addr, err = p.Client(addr, r.Header["X-Forwarded-For"]); err != nil {
		return addr, bad("X-Forwarded-For", err.Error())
	}
	return addr, nil
}
