package httplimit

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// Headers selects the header fields that announce a decision. Every choice
// sends Retry-After too. The zero value means IETF.
//
// All times in these fields are whole seconds, rounded up, so that a client that waits
// that long is not too early. An answer by FailOpen or FailClosed has only the policy,
// because it is not known what remains. A limit under an unlimited plan is left out.
type Headers string

const (
	// IETF is RateLimit and RateLimit-Policy, as in
	// draft-ietf-httpapi-ratelimit-headers-11, with an item for each limit:
	//
	//	RateLimit-Policy: "login";q=5;w=60
	//	RateLimit: "login";r=3;t=36
	//
	// q is the burst and w the time in which it comes back, or the period of a window; r
	// is what remains, and t the time in which r comes back, or the time until the
	// window ends. If nothing of a window is used, the decision does not say when it
	// ends: t is then the whole period, which is never too short. A concurrency limit has
	// neither w nor t. For a blocked key r is 0, and t is Retry-After, or missing if the
	// key is blocked without an end.
	IETF Headers = "ietf"

	// XRateLimit is X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, of the
	// limit that decided. Reset is the number of seconds until the bucket is full, not a
	// point in time, and in a refusal at least Retry-After. Some clients read a Unix time
	// there: choose it only for those that do not.
	XRateLimit Headers = "x-ratelimit"

	// NoHeaders is only Retry-After: allowed responses have no fields about limits.
	NoHeaders Headers = "off"
)

// Set sets the header fields of a decision in h: the fields that v selects, and
// Retry-After if the decision is a refusal and waiting helps. Fields of the same names
// in h are replaced, others stay. Call Set before the header is written.
func (v Headers) Set(h http.Header, d *dipwell.Decision) {
	retry := int64(0)
	if !d.Allowed {
		if retry = front.RetryAfter(d); retry > 0 {
			h["Retry-After"] = []string{strconv.FormatInt(retry, 10)}
		}
	}
	if d.Limits == nil && unbounded(d) {
		return
	}
	switch v {
	case NoHeaders:
	case XRateLimit:
		setX(h, d, retry)
	default:
		setIETF(h, d, retry)
	}
}

func setIETF(h http.Header, d *dipwell.Decision, retry int64) {
	if d.Limits == nil {
		p := policyOf(d.Definition)
		h["Ratelimit-Policy"] = p.header
		if front.Known(d) {
			var buf [64]byte
			h["Ratelimit"] = []string{string(p.append(buf[:0], d, retry))}
		}
		return
	}
	var policies, limits []byte
	for i := range d.Limits {
		e := &d.Limits[i]
		if unbounded(e) {
			continue
		}
		p := policyOf(e.Definition)
		again := func(o dipwell.Decision) bool { return o.Limit == e.Limit && !unbounded(&o) } // announced already
		if !slices.ContainsFunc(d.Limits[:i], again) {
			policies = append(comma(policies), p.header[0]...)
		}
		if front.Known(e) {
			limits = p.append(comma(limits), e, retryOf(e))
		}
	}
	if policies != nil {
		h["Ratelimit-Policy"] = []string{string(policies)}
	}
	if limits != nil {
		h["Ratelimit"] = []string{string(limits)}
	}
}

// retryOf returns when a limit that refused would allow the call, in seconds, or 0.
func retryOf(d *dipwell.Decision) int64 {
	if d.Allowed || d.Never {
		return 0
	}
	return max(1, front.Seconds(d.RetryAfter))
}

// unbounded reports whether nothing can be announced: no limit decided, or an unlimited plan.
func unbounded(d *dipwell.Decision) bool {
	def := d.Definition
	return def == nil || def.Mode == store.Unlimited
}

func setX(h http.Header, d *dipwell.Decision, retry int64) {
	if unbounded(d) {
		return
	}
	h["X-Ratelimit-Limit"] = []string{strconv.FormatInt(d.Capacity, 10)}
	if !front.Known(d) {
		return
	}
	remaining := d.Remaining
	if front.Blocked(d) {
		remaining = 0
	}
	h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(remaining, 10)}
	h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(max(front.Seconds(d.ResetAfter), retry), 10)}
}

func comma(b []byte) []byte {
	if len(b) > 0 {
		b = append(b, ", "...)
	}
	return b
}
