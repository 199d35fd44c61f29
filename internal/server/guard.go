package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/dipwell/dipwell/httplimit"
)

// foreign says why a request must not be answered at all, or nothing: a web
// page of another site may make a browser send it, and a name that somebody
// else controls may lead to this machine's own address.
func (a *api) foreign(r *http.Request) string {
	if a.site.Loopback && !localHost(r.Host) {
		return "Host names another machine, and this listener is for this one"
	}
	origin, site := r.Header["Origin"], r.Header["Sec-Fetch-Site"]
	if origin == nil && site == nil {
		return ""
	}
	if r.URL.Path == "/v1/auth" && proxied(r) { // the headers are those of the request behind the proxy
		return ""
	}
	for _, s := range site {
		if s != "same-origin" && s != "none" {
			return "Sec-Fetch-Site says that another site asks"
		}
	}
	for _, o := range origin {
		if u, err := url.Parse(o); err != nil || u.Host == "" || u.Host != r.Host {
			return "Origin names another site"
		}
	}
	return ""
}

// proxied reports whether a proxy passes on somebody's request: browsers let
// no page write these fields across sites.
func proxied(r *http.Request) bool {
	for _, name := range [...]string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Uri", "X-Forwarded-Proto",
		"X-Original-Uri", "X-Original-Url", "X-Real-Ip"} {
		if r.Header[name] != nil {
			return true
		}
	}
	return false
}

// localHost reports whether a Host field names this machine from inside. HTTP/1.0
// clients send none.
func localHost(host string) bool {
	if strings.HasPrefix(host, "127.0.0.1:") || strings.HasPrefix(host, "localhost:") {
		return strings.IndexByte(host[10:], ':') < 0 // nearly all of them
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// admin guards a handler by the admin rule.
func (a *api) admin(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.mayAdmin(w, r) {
			next(w, r)
		}
	}
}

// mayAdmin answers the request itself where the rule says no.
func (a *api) mayAdmin(w http.ResponseWriter, r *http.Request) bool {
	switch token := a.live.Load().token; {
	case a.site.NoAdmin:
		httplimit.Problem(w, http.StatusForbidden, "", "admin calls have a listener of their own")
	case token != nil && !bearer(r.Header["Authorization"], token):
		w.Header().Set("WWW-Authenticate", "Bearer")
		httplimit.Problem(w, http.StatusUnauthorized, "Authorization", "admin calls need Authorization: Bearer and the admin token")
	case token == nil && !a.site.Loopback:
		httplimit.Problem(w, http.StatusForbidden, "", "without an admin token, admin calls are answered on a loopback listener only")
	default:
		return true
	}
	return false
}

// bearer reports whether Authorization, which must be given once, is Bearer in
// any case and the token.
func bearer(authorization []string, token *[sha256.Size]byte) bool {
	if len(authorization) != 1 {
		return false
	}
	scheme, given, ok := strings.Cut(authorization[0], " ")
	sum := sha256.Sum256([]byte(strings.TrimLeft(given, " "))) // equal lengths, so that the comparison tells nothing
	return subtle.ConstantTimeCompare(sum[:], token[:]) == 1 && ok && strings.EqualFold(scheme, "Bearer")
}
