package httplimit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Headers is a version of the header fields that announce a limit. Retry-After
// belongs to every version.
type Headers uint8

const (
	IETF       Headers = iota // RateLimit and RateLimit-Policy, draft-ietf-httpapi-ratelimit-headers-11
	XRateLimit                // X-RateLimit-Limit, -Remaining and -Reset (seconds until full), of the limit that decided
	NoHeaders                 // none
)

var headerNames = [...]string{"ietf", "x-ratelimit", "off"}

func (v Headers) String() string { return headerNames[v] }

// ParseHeaders reads ietf, x-ratelimit or off.
func ParseHeaders(s string) (Headers, error) {
	for i, name := range headerNames {
		if s == name {
			return Headers(i), nil
		}
	}
	return 0, fmt.Errorf("%q is not one of ietf, x-ratelimit, off", s)
}

// Set announces a decision in h.
func (v Headers) Set(h http.Header, d *dipwell.Decision) {
	retry := int64(0)
	if !d.Allowed {
		if retry = RetryAfter(d); retry > 0 {
			h["Retry-After"] = []string{strconv.FormatInt(retry, 10)}
		}
	}
	if d.Definition() == nil {
		return
	}
	switch v {
	case IETF:
		setIETF(h, d, retry)
	case XRateLimit:
		setX(h, d, retry)
	}
}

func setIETF(h http.Header, d *dipwell.Decision, retry int64) {
	if d.Limits == nil {
		p := policyOf(d.Definition())
		h["Ratelimit-Policy"] = p.header
		if known(d) {
			var buf [64]byte
			h["Ratelimit"] = []string{string(p.append(buf[:0], d, retry))}
		}
		return
	}
	var policies, limits []byte
	for i := range d.Limits {
		e := &d.Limits[i]
		p := policyOf(e.Definition())
		if !named(d.Limits[:i], e.Limit) {
			policies = append(comma(policies), p.header[0]...)
		}
		if known(e) {
			limits = p.append(comma(limits), e, retry)
		}
	}
	h["Ratelimit-Policy"] = []string{string(policies)}
	if limits != nil {
		h["Ratelimit"] = []string{string(limits)}
	}
}

func setX(h http.Header, d *dipwell.Decision, retry int64) {
	h["X-Ratelimit-Limit"] = []string{strconv.FormatInt(d.Capacity, 10)}
	if !known(d) {
		return
	}
	h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(d.Remaining, 10)}
	h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(max(seconds(d.ResetAfter), retry), 10)}
}

// known reports whether a decision tells the state of a bucket: an answer made
// without the store does not.
func known(d *dipwell.Decision) bool {
	return d.Source != store.SourceFallbackOpen && d.Source != store.SourceFallbackClosed
}

func named(limits []dipwell.Decision, name string) bool {
	for i := range limits {
		if limits[i].Limit == name {
			return true
		}
	}
	return false
}

func comma(b []byte) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	return b
}

// RetryAfter is the value of Retry-After for a refusal: whole seconds rounded
// up, at least 1, the latest over the limits that refused, each widened by its
// jitter. 0: waiting will not help, or nobody knows how long.
func RetryAfter(d *dipwell.Decision) (retry int64) {
	if d.Never || !known(d) {
		return 0
	}
	if d.Limits == nil {
		return widen(d)
	}
	for i := range d.Limits {
		if e := &d.Limits[i]; !e.Allowed {
			retry = max(retry, widen(e))
		}
	}
	return retry
}

func widen(d *dipwell.Decision) int64 {
	wait := d.RetryAfter
	if def := d.Definition(); def != nil && def.RetryJitter > 0 {
		more := time.Duration(rand.Float64() * float64(wait) / 100 * float64(def.RetryJitter))
		wait += min(more, math.MaxInt64-wait) // centuries stay centuries
	}
	return max(1, seconds(wait))
}

// seconds rounds up.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
