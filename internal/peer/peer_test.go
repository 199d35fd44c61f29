package peer_test

import (
	"net/netip"
	"testing"

	"github.com/dipwell/dipwell/internal/peer"
)

func TestSent(t *testing.T) {
	proxies := peer.Proxies{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("::ffff:198.51.100.0/120")}
	for addr, want := range map[string]bool{
		"192.0.2.7": true, "192.0.2.7:443": true, "::ffff:192.0.2.7": true, "[2001:db8::1]:80": true, "[2001:db8::1]": true, "2001:db8::1%eth0": true,
		"198.51.100.7": true, "::ffff:198.51.100.7": true, "198.51.101.7": false, "::198.51.100.7": false,
		"192.0.3.7": false, "": false, "@": false, "192.0.2": false, "[]": false,
	} {
		if got := proxies.Sent(addr); got != want {
			t.Errorf("%q: %v", addr, got)
		}
	}
}
