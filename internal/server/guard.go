package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// crossSite returns why a request must not be answered, or "": a web page of
// another site may have made a browser send it (CSRF), or its Host may be a name
// that resolves to a loopback address (DNS rebinding).
func (a *api) crossSite(r *http.Request) string {
	if a.site.Loopback && !localHost(r.Host) {
		return "Host names another machine, and this listener is for this one"
	}
	origin, site := r.Header["Origin"], r.Header["Sec-Fetch-Site"]
	if origin == nil && site == nil {
		return ""
	}
	if r.URL.Path == "/v1/auth" && proxied(r) { // a proxy copies these header fields from its client's request
		return ""
	}
	if (r.URL.Path == "/" || strings.HasPrefix(r.URL.Path, pagePath)) && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Method == http.MethodGet {
		return "" // a link to the page from another site is harmless: the page contains no data and cannot be framed
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

// proxied reports whether a proxy forwards a client's request. A web page cannot
// set the fields of proxies in a request to another site.
func proxied(r *http.Request) bool {
	for _, name := range [...]string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Uri", "X-Forwarded-Proto",
		"X-Original-Uri", "X-Original-Url", "X-Real-Ip"} {
		if r.Header[name] != nil {
			return true
		}
	}
	return false
}

// localHost reports whether a Host field is empty, as with HTTP/1.0, or a loopback address.
func localHost(host string) bool {
	if strings.HasPrefix(host, "127.0.0.1:") || strings.HasPrefix(host, "localhost:") {
		return strings.IndexByte(host[10:], ':') < 0 // the common case, decided without parsing
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

const pagePath = "/ui/"

// page answers GET /ui/ without a token: the page has nothing about this service, and asks for
// the token that its calls need.
func (a *api) page(w http.ResponseWriter, r *http.Request) {
	if _, d := a.admit(Read, nil); d != nil && !d.unknown() { // no other token would help
		if a.site.NoAdmin {
			d.detail = "the page is on another listener, that of admin calls"
			if a.site.AdminAt != "" {
				d.detail += ": " + a.site.AdminAt
			}
		}
		a.deny(w, d, a.address(r))
		return
	}
	a.pages.ServeHTTP(w, r)
}
