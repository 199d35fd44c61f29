package httpclient

import (
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

// maxField is the longest structured field that is parsed, ten times what real
// ones have.
const maxField = 4096

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

// list reads RateLimit with the full grammar. It ignores a malformed field.
func (p *parser) list(lines []string) {
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return
	}
	for _, m := range list {
		item, ok := m.(httpsfv.Item)
		if !ok {
			continue
		}
		name, ok := text(item.Value)
		if !ok {
			continue
		}
		r, ok := integer(item.Params, "r")
		if !ok || r < 0 {
			continue // r is required
		}
		q := p.quota(name)
		if q == nil {
			break
		}
		q.Remaining = r
		if t, ok := integer(item.Params, "t"); ok && t >= 0 {
			q.Reset = p.seconds(float64(t))
		}
	}
}

// policies adds the limits and windows in RateLimit-Policy to the quotas.
func (p *parser) policies() {
	lines := p.h["Ratelimit-Policy"]
	if tooLong(lines) {
		return
	}
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return
	}
	for _, m := range list {
		if item, ok := m.(httpsfv.Item); ok {
			if name, ok := text(item.Value); ok {
				q, okQ := integer(item.Params, "q")
				w, okW := integer(item.Params, "w")
				if !okQ {
					q = unknown
				}
				if !okW {
					w = unknown
				}
				p.policy(name, q, w)
			}
		}
	}
}

func (p *parser) policy(name string, limit, window int64) {
	for i := range p.a.quotas[:p.a.n] {
		if q := &p.a.quotas[i]; q.Name == name {
			if limit >= 0 {
				q.Limit = limit
			}
			if window >= 0 {
				q.Window = p.seconds(float64(window))
			}
		}
	}
}

// dictionary reads the form of draft 07, `limit=100, remaining=50, reset=5`.
func (p *parser) dictionary(lines []string) {
	d, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return
	}
	member := func(name string) int64 {
		if m, ok := d.Get(name); ok {
			if item, ok := m.(httpsfv.Item); ok {
				if n, ok := item.Value.(int64); ok && n >= 0 {
					return n
				}
			}
		}
		return unknown
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

func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case httpsfv.Token:
		return string(v), true
	}
	return "", false
}

func integer(params *httpsfv.Params, name string) (int64, bool) {
	v, ok := params.Get(name)
	if !ok {
		return 0, false
	}
	n, ok := v.(int64)
	return n, ok
}
