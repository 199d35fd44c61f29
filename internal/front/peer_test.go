package front_test

import (
	"net/netip"
	"testing"

	"github.com/dipwell/dipwell/internal/front"
)

func TestSent(t *testing.T) {
	proxies := front.Proxies{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("::ffff:198.51.100.0/120")}
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

func TestKey(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64",
		// NAT64
		"64:ff9b::192.0.2.7": "192.0.2.7", "[64:ff9b::c000:208]:443": "192.0.2.8", "64:ff9b::": "0.0.0.0",
		"64:ff9b:0:1::c000:208": "64:ff9b:0:1::/64", // not in the prefix
		"64:ff9b:2::192.0.2.7":  "64:ff9b:2::/64",
	} {
		a, err := front.ParseAddr(addr)
		if got := front.AddrKey(a); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", addr, got, err, want)
		}
	}
}
