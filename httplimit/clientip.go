package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/dipwell/dipwell/internal/peer"
)

// ClientIP returns a KeyFunc whose key is the client's address: an IPv4 address,
// or the /64 prefix of an IPv6 address.
//
// The address is that of the connection's peer. If the peer is one of the trusted
// proxies, it is the rightmost address in X-Forwarded-For that is not a trusted
// proxy; addresses to the left of it are ignored, since the client may have
// written them. If all addresses are trusted proxies, it is the leftmost. An address
// that cannot be parsed is an error.
//
// Without trusted proxies X-Forwarded-For is not read at all. Behind a proxy that is not
// in the list all clients then share the proxy's bucket; if the list is too wide, a
// client can choose its own key. All addresses of a host with a /64 share one bucket.
func ClientIP(trusted ...netip.Prefix) KeyFunc {
	p := peer.Proxies(trusted)
	return func(r *http.Request) (string, error) {
		a, err := client(p, r)
		if err != nil {
			return "", err
		}
		return addrKey(a), nil
	}
}

// client returns the address of the client that sent a request.
func client(p peer.Proxies, r *http.Request) (netip.Addr, error) {
	addr, err := peer.Parse(r.RemoteAddr)
	if err != nil {
		return addr, bad("client address", fmt.Sprintf("%q is not an address", r.RemoteAddr))
	}
	if !p.Has(addr) {
		return addr, nil
	}
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var hop string
			if rest, hop, more = cutLast(rest); strings.TrimSpace(hop) == "" && rest == "" && !more {
				break // an empty line
			}
			if addr, err = peer.Parse(strings.TrimSpace(hop)); err != nil {
				return addr, bad("X-Forwarded-For", fmt.Sprintf("%q is not an address", hop[:min(len(hop), maxHop)]))
			}
			if !p.Has(addr) {
				return addr, nil
			}
		}
	}
	return addr, nil // all are trusted proxies: the farthest is the client
}

// maxHop is how many bytes of an invalid address an error repeats.
const maxHop = 64

// cutLast splits list around its last comma.
func cutLast(list string) (before, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if i < 0 {
		return "", list, false
	}
	return list[:i], list[i+1:], true
}

// addrKey returns an IPv4 address, or the /64 prefix of an IPv6 address, because
// one customer or machine usually has a whole /64.
func addrKey(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}
