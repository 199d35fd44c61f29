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
	if len(lines) == 1 && p.quick(lines[0]) {
		p.policies()
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

// quick reads items of the form `"name";r=1;t=2` without an allocation. It returns
// false for any other form, which list then reads.
func (p *parser) quick(s string) bool {
	n := p.a.n
	for {
		name, params, ok := quickItem(&s)
		if !ok || params['r'-'a'] < 0 {
			p.a.n = n
			return false
		}
		if q := p.quota(name); q != nil {
			q.Remaining = params['r'-'a']
			if t := params['t'-'a']; t >= 0 {
				q.Reset = p.seconds(float64(t))
			}
		}
		if s == "" {
			return true
		}
		if len(s) < 2 || s[0] != ',' {
			p.a.n = n
			return false
		}
		s = strings.TrimLeft(s[1:], " \t")
		if s == "" {
			p.a.n = n
			return false
		}
	}
}

// quickItem reads the first item of s and removes it from s. The item is a string
// without escapes, with parameters of one letter whose values are whole numbers of
// at most 15 digits.
func quickItem(s *string) (name string, params [26]int64, ok bool) {
	for i := range params {
		params[i] = unknown
	}
	rest := *s
	if rest == "" || rest[0] != '"' {
		return "", params, false
	}
	end := 1
	for ; ; end++ {
		if end == len(rest) || rest[end] == '\\' || rest[end] < ' ' || rest[end] > '~' {
			return "", params, false
		}
		if rest[end] == '"' {
			break
		}
	}
	name, rest = rest[1:end], rest[end+1:]
	for len(rest) > 3 && rest[0] == ';' && rest[1] >= 'a' && rest[1] <= 'z' && rest[2] == '=' {
		letter := rest[1] - 'a'
		i, n := 3, int64(0)
		for ; i < len(rest) && rest[i] >= '0' && rest[i] <= '9'; i++ {
			if i == 3+15 {
				return "", params, false
			}
			n = n*10 + int64(rest[i]-'0')
		}
		if i == 3 {
			return "", params, false
		}
		params[letter], rest = n, rest[i:]
	}
	if rest != "" && rest[0] != ',' {
		return "", params, false
	}
	*s = rest
	return name, params, true
}

// policies adds the limits and windows in RateLimit-Policy to the quotas.
func (p *parser) policies() {
	lines := p.h["Ratelimit-Policy"]
	if len(lines) == 1 && len(lines[0]) <= maxField {
		s := lines[0]
		for {
			name, params, ok := quickItem(&s)
			if !ok {
				break
			}
			p.policy(name, params['q'-'a'], params['w'-'a'])
			if s == "" {
				return
			}
			s = strings.TrimLeft(s[1:], " \t")
		}
	}
	if tooLong(lines) {
		return
	}
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		for i := range p.a.quotas[:p.a.n] { // ignore what was read of a malformed field
			p.a.quotas[i].Limit, p.a.quotas[i].Window = unknown, unknown
		}
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
