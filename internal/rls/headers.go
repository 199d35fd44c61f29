package rls

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
)

// Headers selects the header fields that the proxy adds to its response. With any other value
// it adds none.
type Headers string

const (
	RateLimit3 Headers = "ratelimit" // RateLimit-Limit, -Remaining and -Reset, as envoyproxy/ratelimit names them
	IETF       Headers = "ietf"      // RateLimit and RateLimit-Policy, and Retry-After when refused
)

// HeaderNames are the names of RateLimit3's header fields. An empty name means the
// default in its comment.
type HeaderNames struct {
	Limit     string // RateLimit-Limit
	Remaining string // RateLimit-Remaining
	Reset     string // RateLimit-Reset
}

// add adds the header fields of a request's limits.
func (c *Config) add(r *pb.RateLimitResponse, asks []ask) {
	switch c.Headers {
	case IETF:
		addIETF(r, asks)
	case RateLimit3:
		c.addRateLimit(r)
	}
}

func (c *Config) addRateLimit(r *pb.RateLimitResponse) {
	tightest := -1
	for i, st := range r.Statuses {
		if st.CurrentLimit == nil {
			continue
		}
		if tightest < 0 || st.Code > r.Statuses[tightest].Code ||
			st.Code == r.Statuses[tightest].Code && st.LimitRemaining < r.Statuses[tightest].LimitRemaining {
			tightest = i
		}
	}
	if tightest < 0 {
		return
	}
	st := r.Statuses[tightest]
	reset := ceil(st.GetDurationUntilReset().AsDuration()) / time.Second
	r.ResponseHeadersToAdd = []*core.HeaderValue{
		{Key: cmp.Or(c.Names.Limit, "RateLimit-Limit"), Value: strconv.FormatUint(uint64(st.CurrentLimit.RequestsPerUnit), 10)},
		{Key: cmp.Or(c.Names.Remaining, "RateLimit-Remaining"), Value: strconv.FormatUint(uint64(st.LimitRemaining), 10)},
		{Key: cmp.Or(c.Names.Reset, "RateLimit-Reset"), Value: strconv.FormatInt(int64(reset), 10)},
	}
}

// announced returns the decision to announce, or nil if there is none. A rule that
// refuses every request is announced with a quota of 0, although its limit has one token.
func (a *ask) announced() *dipwell.Decision {
	if a.d == nil || !a.rule.none || a.overridden() != nil {
		return a.d
	}
	d, def := *a.d, *a.d.Definition
	def.Rule.Burst, d.Remaining = 0, 0
	d.Definition = &def
	return &d
}

func addIETF(r *pb.RateLimitResponse, asks []ask) {
	var all dipwell.Decision
	for i := range asks {
		d := asks[i].announced()
		if d == nil {
			continue
		}
		if all.Definition == nil || !d.Allowed && (all.Allowed || !all.Never && (d.Never || d.RetryAfter > all.RetryAfter)) {
			limits := all.Limits
			all = *d
			all.Limits = limits
		}
		all.Limits = append(all.Limits, *d)
	}
	if all.Limits == nil { // nothing was decided; a zero Decision would look like a refusal
		return
	}
	if len(all.Limits) < 2 {
		all.Limits = nil
	}
	h := http.Header{}
	httplimit.IETF.Set(h, &all)
	for name, values := range h {
		for _, v := range values {
			r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, &core.HeaderValue{Key: name, Value: v})
		}
	}
	slices.SortFunc(r.ResponseHeadersToAdd, func(a, b *core.HeaderValue) int { return cmp.Compare(a.Key, b.Key) })
}
