package replay

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell"
)

// combined reads Apache's and nginx's combined and common formats:
//
//	192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 512 "referer" "agent"
//
// It reads only the fields that it needs.
type combined struct {
	times  clfTimes
	fields []int
}

// combinedFields are the names of fields for --by and --cost. The first name of
// each group is the one in the documentation.
var combinedFields = [][]string{
	{"ip", "host", "addr", "remote_addr", "client"},
	{"user", "remote_user"},
	{"method"},
	{"path"},          // without the query
	{"url", "uri"},    // with the query
	{"protocol"},      // HTTP/1.1
	{"request"},       // method, URL and protocol
	{"status"},        // 200
	{"bytes", "size"}, // 512
	{"referer", "referrer"},
	{"agent", "user_agent"},
}

const (
	fieldIP = iota
	fieldUser
	fieldMethod
	fieldPath
	fieldURL
	fieldProtocol
	fieldRequest
	fieldStatus
	fieldBytes
	fieldReferer
	fieldAgent
)

func newCombined(_ *Options, list []field) (parser, error) {
	c := &combined{}
	for _, f := range list {
		i, err := combinedField(f.option, f.name)
		if err != nil {
			return nil, err
		}
		c.fields = append(c.fields, i)
	}
	return c, nil
}

func combinedField(option, name string) (int, error) {
	var known []string
	for i, names := range combinedFields {
		if slices.Contains(names, name) {
			return i, nil
		}
		known = append(known, names[0])
	}
	return 0, &dipwell.FieldError{Field: option, Reason: fmt.Sprintf("%q is no field of a combined log; they are %s", name, strings.Join(known, ", "))}
}

func (c *combined) parse(line []byte, t *int64, values []value) error {
	us, open, end := c.findTime(line)
	if end == 0 {
		if open < 0 {
			return errNoTime
		}
		return errBadTime
	}
	*t = us
	for i, which := range c.fields {
		values[i].text, values[i].err = fieldOf(which, line[:open], line[end:])
	}
	return nil
}

// findTime finds the first bracket followed by a time, since names of users may
// have brackets too. It tries at most 8 brackets. end is 0 if there is no time.
func (c *combined) findTime(line []byte) (us int64, open, end int) {
	open = -1
	for at, tries := 0, 0; tries < 8; tries++ {
		i := bytes.IndexByte(line[at:], '[')
		if i < 0 {
			break
		}
		open = at + i
		t, n, ok := c.times.parse(line[open+1:])
		if at = open + 1 + n; ok && at < len(line) && line[at] == ']' {
			return t, open, at + 1
		}
		at = open + 1
	}
	return 0, open, 0
}

// fieldOf returns a field, given the parts of the line before and after the time.
func fieldOf(which int, before, after []byte) ([]byte, error) {
	switch which {
	case fieldIP:
		at := bytes.IndexByte(before, ' ')
		if at <= 0 {
			return nil, malformed("there is no address before its time")
		}
		return before[:at], nil
	case fieldUser:
		_, rest, _ := bytes.Cut(before, []byte{' '})
		_, user, _ := bytes.Cut(rest, []byte{' '})
		if user = bytes.TrimSuffix(user, []byte{' '}); len(user) == 0 {
			return nil, malformed("there is no user before its time")
		}
		return user, nil
	}
	request, rest, ok := quoted(after)
	if !ok {
		return nil, malformed("its request has no closing quote")
	}
	if which <= fieldRequest {
		return requestField(which, request)
	}
	status, rest := word(rest)
	size, rest := word(rest)
	switch which {
	case fieldStatus:
		if len(status) != 3 || !digits(status) {
			return nil, malformed("its status is not three digits")
		}
		return status, nil
	case fieldBytes:
		if !digits(size) && string(size) != "-" {
			return nil, malformed("its bytes are not a number")
		}
		return size, nil
	}
	referer, rest, ok := quoted(rest)
	if which == fieldReferer || !ok {
		return orMalformed(referer, ok, "its referer is missing or has no closing quote")
	}
	agent, _, ok := quoted(rest)
	return orMalformed(agent, ok, "its agent is missing or has no closing quote")
}

func orMalformed(b []byte, ok bool, reason string) ([]byte, error) {
	if !ok {
		return nil, malformed(reason)
	}
	return b, nil
}

func requestField(which int, request []byte) ([]byte, error) {
	if which == fieldRequest {
		return request, nil
	}
	method, rest, ok := bytes.Cut(request, []byte{' '})
	if which == fieldMethod {
		return orMalformed(method, ok && len(method) > 0, "its request has no method")
	}
	url, protocol := rest, []byte(nil)
	if at := bytes.LastIndexByte(rest, ' '); at >= 0 && bytes.HasPrefix(rest[at+1:], []byte("HTTP/")) {
		url, protocol = rest[:at], rest[at+1:]
	}
	switch which {
	case fieldProtocol:
		return orMalformed(protocol, protocol != nil, "its request has no protocol")
	case fieldPath:
		url, _, _ = bytes.Cut(url, []byte{'?'})
	}
	return orMalformed(url, ok && len(url) > 0, "its request has no path")
}

// quoted returns the quoted text at the beginning of b, with its escapes, and what
// follows it. A backslash escapes a quote.
func quoted(b []byte) (text, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " ")
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	for at := 1; ; {
		i := bytes.IndexByte(b[at:], '"')
		if i < 0 {
			return nil, nil, false
		}
		end := at + i
		slashes := end
		for slashes > at && b[slashes-1] == '\\' {
			slashes--
		}
		if at = end + 1; (end-slashes)%2 == 0 {
			return b[1:end], b[at:], true
		}
	}
}

func word(b []byte) (w, rest []byte) {
	w, rest, _ = bytes.Cut(bytes.TrimLeft(b, " "), []byte{' '})
	return w, rest
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}
