package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
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
// in the list all clients then share the proxy's bucket; a list that is too wide lets a
// client choose its own key. A host with a /64 has one bucket for all of its addresses.
func ClientIP(trusted ...netip.Prefix) KeyFunc {
	p := proxies(trusted)
	return func(r *http.Request) (string, error) {
		a, err := p.client(r)
		if err != nil {
			return "", err
		}
		return addrKey(a), nil
	}
}

// Trusted reports whether peer, an address with or without a port such as
// http.Request.RemoteAddr, is in one of the prefixes. It is false if peer is not an
// address. An IPv4 address that is written as IPv6 (::ffff:192.0.2.1) is the IPv4
// address.
func Trusted(list []netip.Prefix, peer string) bool {
	a, err := parseAddr(peer)
	return err == nil && proxies(list).trust(a)
}

type proxies []netip.Prefix

func (p proxies) trust(a netip.Addr) bool {
	for _, prefix := range p {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}

func (p proxies) client(r *http.Request) (netip.Addr, error) {
	peer, err := parseAddr(r.RemoteAddr)
	if err != nil {
		return peer, bad("client address", fmt.Sprintf("%q is not an address", r.RemoteAddr))
	}
	if !p.trust(peer) {
		return peer, nil
	}
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var hop string
			if rest, hop, more = cutLast(rest); strings.TrimSpace(hop) == "" && rest == "" && !more {
				break // an empty line
			}
			if peer, err = parseAddr(strings.TrimSpace(hop)); err != nil {
				return peer, bad("X-Forwarded-For", fmt.Sprintf("%q is not an address", hop[:min(len(hop), maxHop)]))
			}
			if !p.trust(peer) {
				return peer, nil
			}
		}
	}
	return peer, nil // all are trusted proxies: the farthest is the client
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

// parseAddr parses an address with or without a port, in brackets or not.
func parseAddr(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), nil
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err
}

// addrKey returns an IPv4 address, or the /64 prefix of an IPv6 address, because
// one customer or machine usually has a whole /64.
func addrKey(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}
