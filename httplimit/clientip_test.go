package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/dipwell/dipwell/httplimit"
)

func TestClientIP(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.0.2.1/32")}
	for _, tc := range []struct {
		name, remote string
		forwarded    []string
		want         string // "" means an error
	}{
		{"no proxy", "198.51.100.7:1234", nil, "198.51.100.7"},
		{"X-Forwarded-For of an untrusted peer is ignored", "198.51.100.7:1234", []string{"1.2.3.4"}, "198.51.100.7"},
		{"one proxy", "10.0.0.1:1234", []string{"198.51.100.7"}, "198.51.100.7"},
		{"the leftmost address is ignored", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.7"}, "198.51.100.7"},
		{"two proxies", "10.0.0.1:1", []string{"1.1.1.1, 198.51.100.7, 10.9.9.9"}, "198.51.100.7"},
		{"several lines", "10.0.0.1:1", []string{"1.1.1.1", "198.51.100.7 ", "10.9.9.9,192.0.2.1"}, "198.51.100.7"},
		{"every hop is a proxy", "10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"a proxy's own request", "10.0.0.1:1", nil, "10.0.0.1"},
		{"with a port", "10.0.0.1:1", []string{"198.51.100.7:5555"}, "198.51.100.7"},
		{"IPv6 by /64", "[2001:db8:1:2:3:4:5:6]:1", nil, "2001:db8:1:2::/64"},
		{"IPv6 forwarded, in brackets with a port", "[fd00::1]:1", []string{"[2001:db8:1:2:3:4:5:6]:99"}, "2001:db8:1:2::/64"},
		{"IPv6 forwarded, in brackets", "[fd00::1]:1", []string{"[2001:db8:1:2::6]"}, "2001:db8:1:2::/64"},
		{"IPv4 in IPv6 is IPv4", "[::ffff:198.51.100.7]:1", nil, "198.51.100.7"},
		{"a proxy as IPv4 in IPv6", "[::ffff:10.0.0.1]:1", []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{"NAT64 is IPv4", "[64:ff9b::198.51.100.7]:1", nil, "198.51.100.7"},
		{"NAT64 is no IPv4 proxy", "[64:ff9b::10.0.0.1]:1", []string{"198.51.100.7"}, "10.0.0.1"},
		{"a zone is dropped", "[fe80::1%eth0]:1", nil, "fe80::/64"},
		{"unparsable hop", "10.0.0.1:1", []string{"198.51.100.7, unknown"}, ""},
		{"empty hop", "10.0.0.1:1", []string{"198.51.100.7,"}, ""},
		{"unparsable left of the client is ignored", "10.0.0.1:1", []string{"nonsense, 198.51.100.7"}, "198.51.100.7"},
		{"an empty line is ignored", "10.0.0.1:1", []string{"198.51.100.7", ""}, "198.51.100.7"},
		{"no peer", "", nil, ""},
		{"a Unix socket", "@", nil, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = tc.remote, tc.forwarded
		got, err := httplimit.ClientIP(trusted...)(r)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v; want %q", tc.name, got, err, tc.want)
		}
	}
}

func FuzzClientIP(f *testing.F) {
	f.Add("10.0.0.1:1", "1.1.1.1, 2.2.2.2")
	f.Add("[::1]:1", "[2001:db8::1]:80,,")
	trusted := netip.MustParsePrefix("10.0.0.0/8")
	f.Fuzz(func(t *testing.T, remote, forwarded string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = remote, []string{forwarded}
		if key, err := httplimit.ClientIP(trusted)(r); err == nil && key == "" {
			t.Error("an empty key without an error")
		}
	})
}
