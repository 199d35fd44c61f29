package httpclient

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// quota is one limit in a response. Fields that the response does not have are unknown.
type quota struct {
	Name      string        // name of the policy or of the unit ("requests", "tokens"), or ""
	Limit     int64         // what the service grants in a window, or at once
	Remaining int64         // what is left of Limit now
	Reset     time.Duration // time until the window ends or the bucket is full
	Window    time.Duration // length of the window
	Refills   bool          // the limit refills steadily until Reset rather than all at once
}

func newQuota(name string) *quota {
	return &quota{Name: name, Limit: unknown, Remaining: unknown, Reset: unknown, Window: unknown}
}

const (
	unknown   = -1
	maxBucket = 256 // bytes of a bucket's name that are kept
	maxQuotas = 8   // quotas of a response that are read
)

type advice struct {
	RetryAfter time.Duration // or unknown
	Bucket     string        // which of the service's limits the quotas belong to: GitHub's resource
	github     bool
	quotas     []*quota // at most maxQuotas
}

// wait returns how long to wait before the next request: Retry-After, or else the latest
// reset of the quotas that are used up. known is false if the response has neither.
func (a *advice) wait() (wait time.Duration, known bool) {
	if a.RetryAfter >= 0 {
		return a.RetryAfter, true
	}
	for _, q := range a.quotas {
		if q.Remaining == 0 && q.Reset >= 0 {
			wait, known = max(wait, q.next()), true
		}
	}
	return wait, known
}

// next returns the time until a quota that is used up has one token more.
func (q *quota) next() time.Duration {
	if q.Refills && q.Limit > 0 {
		return (q.Reset + time.Duration(q.Limit) - 1) / time.Duration(q.Limit)
	}
	return q.Reset
}

// parse reads the header fields of a response that arrived at now. parse cuts
// times to most, and ignores negative values and malformed fields. Instants are
// compared with the response's Date, if it has one.
//
// A reset must not be cut to MaxBlock before the share for one token is computed.
func parse(h http.Header, now time.Time, most time.Duration) *advice {
	p := parser{advice: &advice{RetryAfter: unknown}, h: h, now: now, most: most}
	p.retryAfter()
	p.ietf()
	p.plain()
	p.units()
	return p.advice
}

type parser struct {
	*advice
	h     http.Header
	now   time.Time
	most  time.Duration
	dated bool // now is the time in the response's Date field
}

func (p *parser) get(canonical string) string {
	if v := p.h[canonical]; len(v) > 0 {
		return strings.Trim(v[0], " \t")
	}
	return ""
}

// quota returns nil if there are maxQuotas.
func (p *parser) quota(name string) *quota {
	if len(p.quotas) == maxQuotas {
		return nil
	}
	q := newQuota(name)
	p.quotas = append(p.quotas, q)
	return q
}

func (p *parser) retryAfter() {
	for _, name := range [...]string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} { // OpenAI and Azure send these more precise fields
		if ms, ok := number(p.get(name)); ok {
			p.RetryAfter = p.seconds(ms / 1000)
			return
		}
	}
	for _, line := range p.h["Retry-After"] { // a response that passed several proxies may have two
		parts := []string{line}
		if p.reset(strings.Trim(line, " \t")) < 0 { // not a date, which would have a comma
			parts = strings.SplitN(line, ",", maxQuotas)
		}
		for _, part := range parts {
			p.RetryAfter = max(p.RetryAfter, p.reset(strings.Trim(part, " \t")))
		}
	}
}

// plain reads the fields RateLimit-*, X-RateLimit-* and X-Rate-Limit-*.
func (p *parser) plain() {
	var limit, remaining, reset string
	for _, prefix := range [...]string{"X-Ratelimit-", "Ratelimit-", "X-Rate-Limit-"} {
		if limit == "" && remaining == "" && reset == "" {
			limit, remaining, reset = p.get(prefix+"Limit"), p.get(prefix+"Remaining"), p.get(prefix+"Reset")
		}
	}
	bucket := p.get("X-Ratelimit-Resource")
	p.Bucket = bucket[:min(len(bucket), maxBucket)]
	p.github = p.Bucket != "" || p.get("X-Github-Request-Id") != ""
	after := p.get("X-Ratelimit-Reset-After")
	if remaining == "" && reset == "" && after == "" || len(p.quotas) > 0 { // the structured fields have already named the quota
		return
	}
	q := p.quota("")
	// Older drafts list policies after the limit: "100, 100;w=60".
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

// Larger numbers are instants since the epoch, not waits: no limit resets after 15 years.
const (
	epochSeconds = 5e8
	epochMillis  = 1e12
)

// reset parses a wait in seconds, an instant in seconds or milliseconds since the epoch, or a
// date. reset returns unknown for all other texts.
func (p *parser) reset(v string) time.Duration {
	if v == "" {
		return unknown
	}
	s, ok := number(v)
	switch {
	case ok && s < epochSeconds:
		return p.seconds(s)
	case ok && s >= 1e15:
		return p.most // too far for time.UnixMilli
	case ok && s >= epochMillis:
		return p.until(time.UnixMilli(int64(s)))
	case ok:
		return p.until(time.UnixMicro(int64(s * 1e6)))
	}
	t, err := http.ParseTime(v)
	if err != nil {
		t, err = time.Parse(time.RFC3339, v)
	}
	if err != nil {
		return unknown
	}
	return p.until(t)
}

// steady are the quotas of OpenAI, whose resets are durations, and of Anthropic, in RFC 3339.
// Both kinds of quotas refill steadily.
var steady = [...]struct{ name, limit, remaining, reset string }{
	{"requests", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{"tokens", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
	{"requests", "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	{"tokens", "Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
	{"input-tokens", "Anthropic-Ratelimit-Input-Tokens-Limit", "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
	{"output-tokens", "Anthropic-Ratelimit-Output-Tokens-Limit", "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
}

func (p *parser) units() {
	for _, f := range steady {
		left := p.get(f.remaining)
		if left == "" {
			continue
		}
		q := p.quota(f.name)
		if q == nil {
			return
		}
		q.Limit, q.Remaining, q.Reset, q.Refills = count(p.get(f.limit)), count(left), p.reset(p.get(f.reset)), true
		if s, ok := duration(p.get(f.reset)); ok && s < epochSeconds {
			q.Reset = p.seconds(s)
		}
	}
}

func (p *parser) until(t time.Time) time.Duration {
	return max(0, min(t.Sub(p.clock()), p.most))
}

// clock returns the response's Date, or the local time without one. A Date is rounded down to the
// second, so waits until an instant are not too short.
func (p *parser) clock() time.Time {
	if !p.dated {
		p.dated = true
		if date, err := http.ParseTime(p.get("Date")); err == nil {
			p.now = date
			if age, ok := number(p.get("Age")); ok { // the response comes from a cache, which says how old it is
				p.now = date.Add(p.seconds(age))
			}
		}
	}
	return p.now
}

// seconds rounds s up to the microsecond; s is not negative.
func (p *parser) seconds(s float64) time.Duration {
	if s >= p.most.Seconds() {
		return p.most
	}
	return time.Duration(math.Ceil(s*1e6-1e-3)) * time.Microsecond
}

// number parses a decimal number without a sign or an exponent.
func number(s string) (float64, bool) {
	if s == "" || len(s) > 400 || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange) // on a range error f is +Inf
}

// count parses a whole number. count drops a fraction.
func count(s string) int64 {
	f, ok := number(s)
	if !ok {
		return unknown
	}
	return int64(min(f, 1<<53-1))
}

// duration returns the seconds of "6m0s", "1d2h", "12ms", "0.5s" or a number of seconds.
func duration(s string) (float64, bool) {
	if f, ok := number(s); ok {
		return f, true
	}
	total := 0.0
	if days, rest, found := strings.Cut(s, "d"); found {
		f, ok := number(days)
		if !ok || rest == "" {
			return f * 86400, ok
		}
		total, s = f*86400, rest
	}
	d, err := time.ParseDuration(s)
	return total + d.Seconds(), err == nil && len(s) <= 400 && s[0] != '+' && s[0] != '-'
}
