package front

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseAddr parses an address with or without a port, in brackets or not. An IPv4 address that
// is written as IPv6 (::ffff:192.0.2.1) is the IPv4 address; a zone is left out.
func ParseAddr(s string) (netip.Addr, error) {
	if strings.IndexByte(s, ':') < 0 { // most addresses are IPv4 without a port
		return netip.ParseAddr(s)
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), nil
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err
}

// nat64 is the prefix of addresses that NAT64 translators make for IPv4 hosts (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// AddrKey returns the key of the bucket of an address that ParseAddr returned: an IPv4 address,
// or the /64 prefix of an IPv6 address, because one customer or machine usually has a whole
// /64. A host behind NAT64 has the bucket of its IPv4 address.
func AddrKey(a netip.Addr) string {
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}

// Proxies are the addresses of trusted proxies.
type Proxies []netip.Prefix

// Has reports whether an address is that of a trusted proxy. A prefix of IPv4 may be
// written as IPv6, ::ffff:192.0.2.0/120.
func (p Proxies) Has(a netip.Addr) bool {
	for _, prefix := range p {
		if prefix.Contains(a) || a.Is4() && prefix.Addr().Is4In6() && prefix.Contains(netip.AddrFrom16(a.As16())) {
			return true
		}
	}
	return false
}

// Sent reports whether a request with this RemoteAddr came from a trusted proxy.
func (p Proxies) Sent(addr string) bool {
	a, err := ParseAddr(addr)
	return err == nil && p.Has(a)
}

// Client returns the address of the client of a request that came from near, a trusted
// proxy, with these lines of X-Forwarded-For: the rightmost address that is not a trusted
// proxy, or the leftmost if all are.
func (p Proxies) Client(near netip.Addr, lines []string) (netip.Addr, error) {
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			at := strings.LastIndexByte(rest, ',')
			hop := strings.TrimSpace(rest[at+1:])
			if rest, more = rest[:max(at, 0)], at >= 0; hop == "" && !more {
				break // the line is empty
			}
			a, err := ParseAddr(hop)
			if err != nil {
				return a, fmt.Errorf("%q is not an address", hop[:min(len(hop), maxHop)])
			}
			if near = a; !p.Has(a) {
				return a, nil
			}
		}
	}
	return near, nil
}

// maxHop is how many bytes of an invalid address an error repeats.
const maxHop = 64
