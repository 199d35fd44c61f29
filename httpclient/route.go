package httpclient

import (
	"net/http"
	"strings"
)

// How the requests to a host with buckets are grouped into routes.
const (
	splitResource = 'g' // GitHub: by the first segment of the path
	splitMajor    = 'd' // Discord: by method and path, in which the first id counts and later ids do not
)

// route returns the route of a request. Requests of one route have the same
// bucket. major is the first id in the path, such as a channel's, since Discord
// has a bucket for each.
func route(split byte, r *http.Request) (name, major string) {
	path := r.URL.Path
	if split == splitResource {
		path = strings.TrimPrefix(strings.TrimPrefix(path, "/api/v3"), "/")
		name, _, _ = strings.Cut(path, "/")
		return name, ""
	}
	var b strings.Builder
	b.Grow(len(r.Method) + len(path))
	b.WriteString(r.Method)
	for rest := path; rest != ""; {
		var segment string
		segment, rest, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		b.WriteByte('/')
		if !identifier(segment) {
			b.WriteString(segment)
			continue
		}
		if major == "" {
			major = segment
			b.WriteString(segment)
		} else {
			b.WriteByte(':')
		}
	}
	return b.String(), major
}

// identifier reports whether a segment of a path is an id or a token: a number, or
// 32 bytes or more.
func identifier(s string) bool {
	if len(s) >= 32 {
		return true
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
