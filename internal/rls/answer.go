package rls

import (
	"cmp"
	"math"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// answer returns the response, with a status for each descriptor in order.
func (s *Service) answer(asks []ask) *pb.RateLimitResponse {
	n := len(asks)
	r := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK, Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, n)}
	statuses, durations := make([]pb.RateLimitResponse_DescriptorStatus, n), make([]durationpb.Duration, n)
	for i := range asks {
		st := &statuses[i]
		r.Statuses[i] = st
		asks[i].status(st, &durations[i])
		if s.Shadow && asks[i].passed() {
			st.Code = pb.RateLimitResponse_OVER_LIMIT
		}
		if st.Code == pb.RateLimitResponse_OVER_LIMIT {
			r.OverallCode = pb.RateLimitResponse_OVER_LIMIT
		}
	}
	if s.Shadow && r.OverallCode == pb.RateLimitResponse_OVER_LIMIT {
		r.OverallCode = pb.RateLimitResponse_OK
		s.metrics.shadowed.Add(1)
	}
	s.Headers.add(r)
	return r
}

// passed reports whether a descriptor is over a limit that is not in shadow mode,
// and was allowed only because the whole service is in shadow mode.
func (a *ask) passed() bool {
	return a.d != nil && a.d.Shadow && a.rule.limit.Mode != dipwell.Shadow
}

func (a *ask) status(st *pb.RateLimitResponse_DescriptorStatus, until *durationpb.Duration) {
	st.Code = pb.RateLimitResponse_OK
	if a.rule == nil {
		return
	}
	def := a.overridden()
	if a.rule.unlimited || def != nil && def.Mode == store.Unlimited {
		st.LimitRemaining = math.MaxUint32
		return
	}
	st.CurrentLimit = a.rule.answer
	if def != nil {
		st.CurrentLimit = currentLimit(def, a.rule.answer)
	}
	if !a.d.Allowed {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
	}
	if !front.Blocked(a.d) && (def != nil || !a.rule.none) {
		st.LimitRemaining = uint32(min(a.d.Remaining, math.MaxUint32))
	}
	if d, ok := a.reset(); ok {
		until.Seconds, until.Nanos = int64(d/time.Second), int32(d%time.Second)
		st.DurationUntilReset = until
	}
}

// overridden returns the definition made from the override that decided, or nil.
func (a *ask) overridden() *store.Definition {
	if a.d != nil && a.d.Definition != nil && a.d.Definition.Override != nil {
		return a.d.Definition
	}
	return nil
}

// currentLimit returns the limit to report for a key with an override, not the rule's.
func currentLimit(def *store.Definition, rule *pb.RateLimitResponse_RateLimit) *pb.RateLimitResponse_RateLimit {
	out := &pb.RateLimitResponse_RateLimit{Name: rule.Name, Unit: rule.Unit, UnitMultiplier: rule.UnitMultiplier,
		RequestsPerUnit: uint32(min(def.Rate, math.MaxUint32))}
	if length := unitLength(rule.Unit) * time.Duration(max(1, rule.UnitMultiplier.GetValue())); length == def.Period {
		return out
	}
	out.Unit, out.UnitMultiplier = pb.RateLimitResponse_RateLimit_UNKNOWN, nil // a bucket whose period differs from the rule's
	for _, u := range periodUnits {
		if n := def.Period / unitLength(u); def.Period%unitLength(u) == 0 && n <= math.MaxUint32 {
			if out.Unit = u; n > 1 {
				out.UnitMultiplier = wrapperspb.UInt32(uint32(n))
			}
			break
		}
	}
	return out
}

// periodUnits are the units of currentLimit, the longest first.
var periodUnits = []pb.RateLimitResponse_RateLimit_Unit{pb.RateLimitResponse_RateLimit_WEEK, pb.RateLimitResponse_RateLimit_DAY,
	pb.RateLimitResponse_RateLimit_HOUR, pb.RateLimitResponse_RateLimit_MINUTE, pb.RateLimitResponse_RateLimit_SECOND}

// near returns the number of hits up to which a key is not near its limit.
func (a *ask) near() int64 {
	def := a.overridden()
	if def == nil {
		return a.rule.near
	}
	return int64(float64(a.rule.near) / float64(def.Base().Rule.Burst) * float64(a.d.Capacity))
}

// reset returns the time until a retry can succeed or, for an allowed descriptor, until
// the limit is full. For windows it is the time to the window's end, in whole seconds
// rounded up. It returns false if waiting does not help or the time is not known.
func (a *ask) reset() (time.Duration, bool) {
	over := !a.d.Allowed || a.d.Shadow
	if def := a.overridden(); def != nil && def.Mode == store.Blocked {
		return a.d.RetryAfter, !a.d.Never
	}
	if a.d.Source == store.SourceFallbackOpen || a.d.Source == store.SourceFallbackClosed {
		return 0, false
	}
	if a.rule.windowed {
		return ceil(a.windowEnd(over)), true
	}
	switch {
	case over && a.d.Never:
		return 0, false
	case over:
		return a.d.RetryAfter, true
	}
	return a.d.ResetAfter, true
}

// windowEnd returns how long the present window lasts. A reset or retry time of the store
// is the end of a later window, a whole number of windows later. If there is none,
// windowEnd uses this machine's clock.
func (a *ask) windowEnd(over bool) time.Duration {
	known := a.d.ResetAfter
	if over && a.d.RetryAfter > 0 {
		known = a.d.RetryAfter
	}
	def := a.d.Definition
	if every := time.Duration(def.Rule.Every) * time.Microsecond; known > 0 && every > 0 {
		return (known-1)%every + 1
	}
	now := time.Now().UnixMicro()
	_, end := def.Rule.Window(now)
	return time.Duration(end-now) * time.Microsecond
}

func ceil(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// Headers are the header fields that the proxy adds to its response. An empty name means the
// one in its comment, which is envoyproxy/ratelimit's.
type Headers struct {
	Add       bool
	Limit     string // RateLimit-Limit
	Remaining string // RateLimit-Remaining
	Reset     string // RateLimit-Reset
}

// add adds the header fields of the limit that decided.
func (h *Headers) add(r *pb.RateLimitResponse) {
	if !h.Add {
		return
	}
	var st *pb.RateLimitResponse_DescriptorStatus // the tightest
	for _, o := range r.Statuses {
		if o.CurrentLimit != nil && (st == nil || o.Code > st.Code || o.Code == st.Code && o.LimitRemaining < st.LimitRemaining) {
			st = o
		}
	}
	if st == nil {
		return
	}
	reset := ceil(st.GetDurationUntilReset().AsDuration()) / time.Second
	r.ResponseHeadersToAdd = []*core.HeaderValue{
		{Key: cmp.Or(h.Limit, "RateLimit-Limit"), Value: strconv.FormatUint(uint64(st.CurrentLimit.RequestsPerUnit), 10)},
		{Key: cmp.Or(h.Remaining, "RateLimit-Remaining"), Value: strconv.FormatUint(uint64(st.LimitRemaining), 10)},
		{Key: cmp.Or(h.Reset, "RateLimit-Reset"), Value: strconv.FormatInt(int64(reset), 10)},
	}
}
