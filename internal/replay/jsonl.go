package replay

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// jsonLines reads a JSON object in each line. It stops scanning when it has found
// the members that it needs.
type jsonLines struct {
	times textTimes
	wants []want // the time, and then the fields
}

// aliases are the names of fields in the logs of common programs, in order of
// preference. A field that is not listed here has only its own name.
var aliases = map[string][]string{
	"time":    {"time", "timestamp", "@timestamp", "ts", "t", "datetime", "date", "time_iso8601", "time_local", "msec", "start_time", "StartUTC"},
	"ip":      {"ip", "remote_addr", "client_ip", "remote_ip", "clientip", "client", "addr", "host", "request.client_ip", "request.remote_ip", "ClientHost", "httpRequest.remoteIp"},
	"user":    {"user", "user_id", "username", "remote_user", "auth", "ClientUsername"},
	"path":    {"path", "uri", "url", "request_uri", "request.uri", "RequestPath", "httpRequest.requestUrl"},
	"method":  {"method", "request_method", "verb", "request.method", "RequestMethod", "httpRequest.requestMethod"},
	"status":  {"status", "status_code", "response", "DownstreamStatus", "httpRequest.status"},
	"agent":   {"agent", "user_agent", "http_user_agent", "userAgent", "httpRequest.userAgent"},
	"referer": {"referer", "referrer", "http_referer", "httpRequest.referer"},
	"host":    {"host", "http_host", "request.host", "RequestHost"},
	"bytes":   {"bytes", "size", "body_bytes_sent", "bytes_sent", "DownstreamContentSize", "httpRequest.responseSize"},
}

// want is a field to find, with the value of its preferred name found so far.
type want struct {
	names []string
	rank  int // index in names of the value's name; len(names) if there is no value yet
	value []byte
}

func wantField(name string) want {
	if names, ok := aliases[name]; ok {
		return want{names: names}
	}
	return want{names: []string{name}}
}

func (w *want) clear() { w.rank, w.value = len(w.names), nil }

// offer takes a value if its name is preferred to the one found so far. Of several
// members with the same name the first counts.
func (w *want) offer(name, value []byte) {
	for i := range w.rank {
		if w.names[i] == string(name) {
			w.rank, w.value = i, value
			return
		}
	}
}

func newJSONLines(o *Options, list []field) (parser, error) {
	j := &jsonLines{wants: []want{wantField(orDefault(o.TimeField, "time"))}}
	for _, f := range list {
		j.wants = append(j.wants, wantField(f.name))
	}
	return j, nil
}

func (j *jsonLines) parse(line []byte, t *int64, values []value) error {
	for i := range j.wants {
		j.wants[i].clear()
	}
	line = bytes.TrimLeft(line, " \t")
	if len(line) == 0 || line[0] != '{' {
		return malformed("it is not a JSON object")
	}
	broken := j.scan(line[1:], nil, 0)
	if j.wants[0].value == nil {
		return because(broken, errNoTime)
	}
	b, err := text(j.wants[0].value)
	if err == nil {
		*t, err = j.times.parse(b)
	}
	for i := range values {
		v, w := &values[i], &j.wants[i+1]
		if w.value == nil {
			v.text, v.err = nil, because(broken, "there is no "+malformed(w.names[0])+" in it")
		} else {
			v.text, v.err = text(w.value)
		}
	}
	return err
}

func because(broken bool, why malformed) error {
	if broken {
		return malformed("its JSON is broken")
	}
	return why
}

func (j *jsonLines) done() bool {
	for i := range j.wants {
		if j.wants[i].rank != 0 {
			return false
		}
	}
	return true
}

const maxDepth = 4 // of nested objects

// scan reads the members of an object, after its brace, until it has found all
// fields. It reports whether the object is malformed before that. Members of a
// nested object have names such as request.uri; prefix is "request.".
func (j *jsonLines) scan(b, prefix []byte, depth int) (broken bool) {
	var nameBuf [128]byte
	for !j.done() {
		b = space(b)
		if len(b) > 0 && b[0] == '}' {
			return false
		}
		n := stringEnd(b)
		if n == 0 {
			return true
		}
		name := append(append(nameBuf[:0], prefix...), b[1:n-1]...)
		if b = space(b[n:]); len(b) == 0 || b[0] != ':' {
			return true
		}
		b = space(b[1:])
		if n = valueEnd(b); n == 0 {
			return true
		}
		value := b[:n]
		if value[0] == '{' && depth < maxDepth && len(name) < len(nameBuf) {
			j.scan(value[1:], append(name, '.'), depth+1)
		} else {
			for i := range j.wants {
				j.wants[i].offer(name, value)
			}
		}
		if b = space(b[n:]); len(b) == 0 || b[0] != ',' {
			return len(b) == 0 || b[0] != '}'
		}
		b = b[1:]
	}
	return false
}

func space(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\r' || b[0] == '\n') {
		b = b[1:]
	}
	return b
}

// stringEnd returns the length of the JSON string at the beginning of b, or 0.
func stringEnd(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return 0
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// valueEnd returns the length of the JSON value at the beginning of b, or 0. Of an
// array or object it checks only that the brackets match in number.
func valueEnd(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"':
		return stringEnd(b)
	case '{', '[':
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				n := stringEnd(b[i:])
				if n == 0 {
					return 0
				}
				i += n - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return 0
	}
	n := bytes.IndexAny(b, ",}] \t\r\n")
	if n < 0 { // the line was cut, perhaps within the value
		return 0
	}
	return n
}

// text returns a JSON value as text: a string unquoted, a number or a boolean
// unchanged.
func text(value []byte) ([]byte, error) {
	switch c := value[0]; {
	case c == '"':
		if bytes.IndexByte(value, '\\') < 0 {
			return value[1 : len(value)-1], nil
		}
		if !utf8.Valid(value) { // Unmarshal would replace invalid bytes
			return value, nil
		}
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			return nil, malformed("its JSON is broken")
		}
		return []byte(s), nil
	case string(value) == "null":
		return nil, errNull
	case c == '{':
		return nil, malformed("a field is an object and not text or a number")
	case c == '[':
		return nil, malformed("a field is an array and not text or a number")
	case c == '-' || c >= '0' && c <= '9' || slices.Contains([]string{"true", "false"}, string(value)):
		return value, nil
	}
	return nil, malformed("its JSON is broken")
}
