package httpclient

import (
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

const maxField = 4096 // the longest field that is parsed, ten times as long as real ones

// ietf reads RateLimit and RateLimit-Policy: lists of items with parameters
// (draft-ietf-httpapi-ratelimit-headers from 08 to 11), or the dictionary of
// limit, remaining and reset (draft 07).
func (p *parser) ietf() {
	lines := p.h["Ratelimit"]
	if len(lines) == 0 || tooLong(lines) {
		return
	}
	if len(lines) == 1 && !strings.Contains(lines[0], ";") && strings.Contains(lines[0], "=") {
		p.dictionary(lines)
		return
	}
	p.list(lines)
	p.policies()
}

func tooLong(lines []string) bool {
	size := 0
	for _, line := range lines {
		size += len(line)
	}
	return size > maxField
}

// items yields the items of a list, and their names. items ignores a malformed field.
func items(lines []string, f func(name string, params *httpsfv.Params)) {
	list, _ := httpsfv.UnmarshalList(lines) // the list is empty after an error
	for _, m := range list {
		item, _ := m.(httpsfv.Item)
		switch name := item.Value.(type) {
		case string:
			f(name, item.Params)
		case httpsfv.Token:
			f(string(name), item.Params)
		}
	}
}

func (p *parser) list(lines []string) {
	items(lines, func(name string, params *httpsfv.Params) {
		r := integer(params.Get("r"))
		if r < 0 {
			return // the parameter r is required
		}
		if q := p.quota(name); q != nil {
			q.Remaining = r
			if t := integer(params.Get("t")); t >= 0 {
				q.Reset = p.seconds(float64(t))
			}
		}
	})
}

// policies adds the limits and windows in RateLimit-Policy to the quotas.
func (p *parser) policies() {
	lines := p.h["Ratelimit-Policy"]
	if tooLong(lines) {
		return
	}
	items(lines, func(name string, params *httpsfv.Params) {
		limit, window := integer(params.Get("q")), integer(params.Get("w"))
		for _, q := range p.quotas {
			if q.Name == name && limit >= 0 {
				q.Limit = limit
			}
			if q.Name == name && window >= 0 {
				q.Window = p.seconds(float64(window))
			}
		}
	})
}

// dictionary reads the form of draft 07, `limit=100, remaining=50, reset=5`.
func (p *parser) dictionary(lines []string) {
	d, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return
	}
	member := func(name string) int64 {
		m, ok := d.Get(name)
		item, _ := m.(httpsfv.Item)
		return integer(item.Value, ok)
	}
	remaining, reset := member("remaining"), member("reset")
	if remaining < 0 {
		return
	}
	q := p.quota("")
	q.Limit, q.Remaining = member("limit"), remaining
	if reset >= 0 {
		q.Reset = p.reset(strconv.FormatInt(reset, 10))
	}
}

// integer returns the value that a Get found if it is a number of at least 0, or unknown.
func integer(v any, found bool) int64 {
	if n, ok := v.(int64); found && ok && n >= 0 {
		return n
	}
	return unknown
}
