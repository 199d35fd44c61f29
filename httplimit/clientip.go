package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// ClientIP is the client's address: the peer's, unless the peer is one of the
// trusted proxies. Then X-Forwarded-For is read from the right, over all its
// lines, up to the first address that is not a trusted proxy; what stands left
// of it is whatever the client wrote. IPv6 clients are told apart by their /64.
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

// ParseProxies reads addresses and CIDR prefixes of trusted proxies.
func ParseProxies(list []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, err := netip.ParseAddr(s)
			if err != nil {
				return nil, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", s)
			}
			p = netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Trusted reports whether a peer's address, with or without its port, is one of the proxies.
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
	return peer, nil // every hop is ours: the farthest asks for itself
}

// maxHop is how much of what is no address an error repeats.
const maxHop = 64

// cutLast splits a list at its last comma.
func cutLast(list string) (before, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if i < 0 {
		return "", list, false
	}
	return list[:i], list[i+1:], true
}

// parseAddr reads an address with or without a port, as peers and proxies write it.
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

// addrKey is an IPv4 address, or the /64 of an IPv6 one: a household or a
// machine has that many addresses to itself.
func addrKey(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}
