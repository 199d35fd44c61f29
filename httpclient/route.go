package httpclient

import (
	"net/http"
	"strings"
)

// How a host with buckets makes routes of requests.
const (
	splitResource = 'g' // GitHub: the first segment of the path tells the resource well enough
	splitMajor    = 'd' // Discord: method and path, in which the first id counts and later ones do not
)

// route tells requests apart as far as buckets do. major is the id that a
// bucket is kept for: the channel, guild or webhook.
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

// identifier reports whether a segment is one thing's id: a number, or anything
// as long as a token.
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
