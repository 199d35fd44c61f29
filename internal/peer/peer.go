// Package peer reads the addresses of peers, and says which are trusted proxies.
package peer

import "net/netip"

// Parse parses an address with or without a port, in brackets or not. An IPv4 address that
// is written as IPv6 (::ffff:192.0.2.1) is the IPv4 address; a zone is left out.
func Parse(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), nil
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap().WithZone(""), err
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

// Sent reports whether a request with this http.Request.RemoteAddr came from a trusted
// proxy. It is false if addr is not an address.
func (p Proxies) Sent(addr string) bool {
	a, err := Parse(addr)
	return err == nil && p.Has(a)
}
