package httpclient

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Quota is what a response says of one limit. What it does not say is Unknown.
type Quota struct {
	Name      string        // of the policy, the unit ("requests", "tokens") or the period; "" where it has none
	Limit     int64         // what the service grants in a window, or at once
	Remaining int64         // what is left of it
	Reset     time.Duration // until the window ends, or the bucket is full; Unknown below 0
	Window    time.Duration // the length of the window; Unknown below 0
	Refills   bool          // comes back bit by bit until Reset, rather than all at once
}

// Unknown is the value of what a response does not say.
const Unknown = -1

// maxQuotas bounds what is read of one response; the rest is ignored.
const maxQuotas = 8

// An Advice is what a response says of limits.
type Advice struct {
	RetryAfter time.Duration // how long to wait; Unknown below 0
	Bucket     string        // what the quotas are about, where a service has several: Discord's bucket, GitHub's resource
	Global     bool          // a refusal is about everything, not the bucket alone
	github     bool
	discord    bool

	n      int
	quotas [maxQuotas]Quota
}

// Quotas are the limits that the response tells of, at most 8.
func (a *Advice) Quotas() []Quota { return a.quotas[:a.n] }

// Wait is how long to wait before the next request, as far as the response
// tells: Retry-After, and without it the reset of the quotas that are used up.
func (a *Advice) Wait() (wait time.Duration, told bool) {
	if a.RetryAfter >= 0 {
		return a.RetryAfter, true
	}
	for i := range a.n {
		if q := &a.quotas[i]; q.Remaining == 0 && q.Reset >= 0 {
			wait, told = max(wait, q.next()), true
		}
	}
	return wait, told
}

// next is the time until one more is there, of a quota that is used up.
func (q *Quota) next() time.Duration {
	if q.Refills && q.Limit > 0 {
		return (q.Reset + time.Duration(q.Limit) - 1) / time.Duration(q.Limit)
	}
	return q.Reset
}

// Parse reads the header fields of a response that arrived at now. It believes
// no time above most, nothing negative, and no field that is malformed. Dates
// are compared with the service's own clock, where the response has a Date.
func Parse(a *Advice, h http.Header, now time.Time, most time.Duration) {
	a.RetryAfter, a.Bucket, a.Global, a.github, a.discord, a.n = Unknown, "", false, false, false, 0
	p := parser{a: a, h: h, now: now, most: most}
	p.retryAfter()
	p.ietf()
	p.plain()
	p.units()
	p.anthropic()
}

type parser struct {
	a       *Advice
	h       http.Header
	now     time.Time
	most    time.Duration
	service bool // now is the service's
}

func (p *parser) get(canonical string) string {
	if v := p.h[canonical]; len(v) > 0 {
		return strings.Trim(v[0], " \t")
	}
	return ""
}

// quota adds one, or returns nil when there are too many.
func (p *parser) quota(name string) *Quota {
	if p.a.n == maxQuotas {
		return nil
	}
	q := &p.a.quotas[p.a.n]
	p.a.n++
	*q = Quota{Name: name, Limit: Unknown, Remaining: Unknown, Reset: Unknown, Window: Unknown}
	return q
}

func (p *parser) retryAfter() {
	if v := p.get("Retry-After-Ms"); v != "" { // finer, where OpenAI and Azure send it
		if ms, ok := number(v); ok {
			p.a.RetryAfter = p.seconds(ms / 1000)
			return
		}
	}
	v := p.get("Retry-After")
	if v == "" {
		return
	}
	if s, ok := number(v); ok {
		p.a.RetryAfter = p.seconds(s)
	} else if t, err := http.ParseTime(v); err == nil {
		p.a.RetryAfter = p.until(t)
	}
}

// plain reads the fields RateLimit-*, X-RateLimit-* and X-Rate-Limit-*.
func (p *parser) plain() {
	limit, remaining, reset := p.get("X-Ratelimit-Limit"), p.get("X-Ratelimit-Remaining"), p.get("X-Ratelimit-Reset")
	if limit == "" && remaining == "" && reset == "" {
		limit, remaining, reset = p.get("Ratelimit-Limit"), p.get("Ratelimit-Remaining"), p.get("Ratelimit-Reset")
	}
	if limit == "" && remaining == "" && reset == "" {
		limit, remaining, reset = p.get("X-Rate-Limit-Limit"), p.get("X-Rate-Limit-Remaining"), p.get("X-Rate-Limit-Reset")
	}
	p.a.Bucket, p.a.discord = p.get("X-Ratelimit-Bucket"), true
	if p.a.Bucket == "" {
		p.a.discord = false
		p.a.Bucket = p.get("X-Ratelimit-Resource")
		p.a.github = p.a.Bucket != "" || p.get("X-Github-Request-Id") != ""
	}
	p.a.Global = p.get("X-Ratelimit-Global") == "true" || p.get("X-Ratelimit-Scope") == "global"
	after := p.get("X-Ratelimit-Reset-After")
	if remaining == "" && reset == "" && after == "" {
		return
	}
	if p.a.n > 0 { // the same, said before in structured fields
		return
	}
	q := p.quota("")
	// "100, 100;w=60": the older drafts put policies behind the limit.
	limit, policies, _ := strings.Cut(limit, ",")
	limit, _, _ = strings.Cut(limit, ";")
	q.Limit, q.Remaining = count(strings.Trim(limit, " \t")), count(remaining)
	if _, w, ok := strings.Cut(policies, "w="); ok {
		w, _, _ = strings.Cut(w, ",")
		w, _, _ = strings.Cut(w, ";")
		if s, ok := number(strings.Trim(w, " \t")); ok {
			q.Window = p.seconds(s)
		}
	}
	if s, ok := number(after); ok {
		q.Reset = p.seconds(s)
	} else {
		q.Reset = p.reset(reset)
	}
}

// Numbers above these are instants, not waits: nobody resets after 15 years.
const (
	epochSeconds = 5e8
	epochMillis  = 1e12
)

// reset reads a wait in seconds, an instant in seconds or milliseconds since the
// epoch, or a date.
func (p *parser) reset(v string) time.Duration {
	if v == "" {
		return Unknown
	}
	s, ok := number(v)
	switch {
	case ok && s < epochSeconds:
		return p.seconds(s)
	case ok && s >= 1e15:
		return p.most // no instant that a time.Time tells apart
	case ok && s >= epochMillis:
		return p.until(time.UnixMilli(int64(s)))
	case ok:
		return p.until(time.UnixMicro(int64(s * 1e6)))
	}
	if t, err := http.ParseTime(v); err == nil {
		return p.until(t)
	}
	if t, err := time.Parse(time.RFC3339, v); err == nil {
		return p.until(t)
	}
	return Unknown
}

// units reads OpenAI's fields, which end in the unit and tell times as durations.
func (p *parser) units() {
	reset := func(v string) time.Duration {
		if s, ok := duration(v); ok {
			return p.seconds(s)
		}
		return Unknown
	}
	p.refilled("requests", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests", reset)
	p.refilled("tokens", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens", reset)
}

// refilled adds a quota that comes back bit by bit, where it is told what is
// left of it.
func (p *parser) refilled(name, limit, remaining, at string, reset func(string) time.Duration) {
	left := p.get(remaining)
	if left == "" {
		return
	}
	if q := p.quota(name); q != nil {
		q.Limit, q.Remaining, q.Reset, q.Refills = count(p.get(limit)), count(left), reset(p.get(at)), true
	}
}

// anthropic reads Anthropic's fields, whose times are RFC 3339.
func (p *parser) anthropic() {
	reset := func(v string) time.Duration {
		if t, err := time.Parse(time.RFC3339, v); err == nil {
			return p.until(t)
		}
		return Unknown
	}
	p.refilled("requests", "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset", reset)
	p.refilled("tokens", "Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset", reset)
	p.refilled("input-tokens", "Anthropic-Ratelimit-Input-Tokens-Limit", "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset", reset)
	p.refilled("output-tokens", "Anthropic-Ratelimit-Output-Tokens-Limit", "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset", reset)
}

// until is the time from the service's now, or ours where it tells none, to t.
// A Date is cut to the second, so a wait by it is never too short.
func (p *parser) until(t time.Time) time.Duration {
	if !p.service {
		p.service = true
		if date, err := http.ParseTime(p.get("Date")); err == nil {
			p.now = date
			if age, ok := number(p.get("Age")); ok { // of a cache's answer
				p.now = date.Add(p.seconds(age))
			}
		}
	}
	return max(0, min(t.Sub(p.now), p.most)) // Sub saturates
}

// seconds rounds up to the microsecond; s is not negative.
func (p *parser) seconds(s float64) time.Duration {
	if s >= p.most.Seconds() {
		return p.most
	}
	return time.Duration(math.Ceil(s*1e6-1e-3)) * time.Microsecond
}

// number reads a plain decimal number without a sign or an exponent. What is
// too large to be exact is large enough.
func number(s string) (float64, bool) {
	if s == "" || len(s) > 400 {
		return 0, false
	}
	digits, dots := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c == '.' && dots == 0:
			dots++
		default:
			return 0, false
		}
	}
	if digits == 0 {
		return 0, false
	}
	f, _ := strconv.ParseFloat(s, 64) // the form is checked; out of range is +Inf
	return f, true
}

// count reads a whole number; a fraction is cut.
func count(s string) int64 {
	f, ok := number(s)
	if !ok {
		return Unknown
	}
	return int64(min(f, 1<<53-1))
}

// duration reads "6m0s", "1d2h", "12ms", "0.5s", or plain seconds, in seconds.
func duration(s string) (total float64, ok bool) {
	if len(s) > 400 {
		return 0, false
	}
	if f, ok := number(s); ok {
		return f, true
	}
	for s != "" {
		i := 0
		for i < len(s) && (s[i] == '.' || s[i] >= '0' && s[i] <= '9') {
			i++
		}
		f, ok := number(s[:i])
		if !ok {
			return 0, false
		}
		s = s[i:]
		for i = 0; i < len(s) && s[i] != '.' && (s[i] < '0' || s[i] > '9'); {
			i++
		}
		switch s[:i] {
		case "d":
			f *= 86400
		case "h":
			f *= 3600
		case "m":
			f *= 60
		case "s":
		case "ms":
			f /= 1e3
		case "us", "µs":
			f /= 1e6
		case "ns":
			f /= 1e9
		default:
			return 0, false
		}
		total, s = total+f, s[i:]
	}
	return total, total >= 0
}
