package replay

import (
	"bytes"
	"slices"
	"strings"
)

// aliases are the names of fields in the logs of common programs, in order of preference.
// A field that is not listed here has only its own name.
var aliases = map[string][]string{
	"time": {"time", "timestamp", "@timestamp", "ts", "t", "datetime", "date", "time_iso8601", "time_local", "msec", "start_time", "StartUTC"},
	"ip": {"ip", "remote_addr", "client_ip", "remote_ip", "clientip", "client", "addr", "c-ip", "client.ip", "source.ip", "source.address", "client.address", "request.client_ip",
		"request.remote_ip", "ClientHost", "ClientIP", "httpRequest.remoteIp"},
	"user":    {"user", "user_id", "username", "remote_user", "auth", "cs-username", "user.name", "ClientUsername"},
	"path":    {"path", "uri", "url", "request_uri", "request.uri", "cs-uri-stem", "url.original", "RequestPath", "httpRequest.requestUrl"},
	"method":  {"method", "request_method", "verb", "cs-method", "request.method", "http.request.method", "RequestMethod", "httpRequest.requestMethod"},
	"status":  {"status", "status_code", "response", "sc-status", "http.response.status_code", "DownstreamStatus", "httpRequest.status"},
	"agent":   {"agent", "user_agent", "http_user_agent", "userAgent", "cs(User-Agent)", "user_agent.original", "httpRequest.userAgent"},
	"referer": {"referer", "referrer", "http_referer", "cs(Referer)", "httpRequest.referer"},
	"host":    {"host", "http_host", "cs-host", "request.host", "RequestHost"},
	"bytes":   {"bytes", "size", "body_bytes_sent", "bytes_sent", "sc-bytes", "DownstreamContentSize", "httpRequest.responseSize"},
}

// namesOf returns the names that a field may have in a log.
func namesOf(field string) []string {
	if names, ok := aliases[field]; ok {
		return names
	}
	return []string{field}
}

// requestParts are the fields that can be parts of the field request, such as GET /a?b
// HTTP/1.1.
var requestParts = []string{"method", "path", "url", "protocol"}

// A column says where a line has a field.
type column struct {
	at   int
	part string // name of the part of the request in the column, or ""
}

// findColumn finds a field by its names in a header.
func findColumn(field string, header []string) (column, bool) {
	for _, name := range namesOf(field) {
		if i := slices.IndexFunc(header, func(h string) bool { return strings.EqualFold(h, name) }); i >= 0 {
			return column{at: i}, true
		}
	}
	if i := slices.Index(header, "request"); i >= 0 && slices.Contains(requestParts, field) {
		return column{i, field}, true
	}
	return column{}, false
}

// of returns the value of a column of a line, or nil.
func (c column) of(cols [][]byte) []byte {
	if c.at >= len(cols) || c.part == "" {
		return at(cols, c.at)
	}
	method, url, ok := bytes.Cut(cols[c.at], []byte{' '})
	var protocol []byte
	if i := bytes.LastIndex(url, []byte(" HTTP/")); i >= 0 {
		url, protocol = url[:i], url[i+1:]
	}
	switch {
	case !ok:
		return nil
	case c.part == "method":
		return method
	case c.part == "protocol":
		return protocol
	case c.part == "url":
		return url
	case c.part != "path":
		return nil
	}
	if _, after, whole := bytes.Cut(url, []byte("://")); whole {
		url = after[max(0, bytes.IndexByte(after, '/')):]
	}
	url, _, _ = bytes.Cut(url, []byte{'?'})
	return url
}

func at(cols [][]byte, i int) []byte {
	if i >= len(cols) {
		return nil
	}
	return cols[i]
}

// set sets a value, or the error that the field is missing.
func (v *value) set(text []byte, field string) {
	v.text, v.err = text, nil
	if text == nil {
		v.err = "there is no " + malformed(field) + " in it"
	}
}
