package rls

import (
	"math"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dipwell/dipwell/internal/algebra"
)

// delivery bounds how long an assignment may be on its way: from the request for its
// tokens until the Envoy has it. The Envoy then counts the time of the quota itself,
// because the protocol has only lengths of time and no instants. So tokens may be used
// until delivery plus the time of the quota after the request for them, and nothing ends
// that earlier.
const delivery = 500 * time.Millisecond

// life returns how long after their request tokens may be used.
func life(quota time.Duration) time.Duration { return quota + delivery }

// comesBack returns how many tokens come back in the life of an assignment, rounded up,
// plus 0.2 % for clocks of different speed.
func comesBack(rate int64, period, quota time.Duration) int64 {
	return algebra.MulDiv(life(quota).Microseconds()*1002, rate, period.Microseconds()*1000, true)
}

// mostTokens bounds the tokens of one assignment.
const mostTokens = math.MaxInt32

// tokens returns a bucket with which an Envoy allows at most n requests in the life of an
// assignment. If n is small, all tokens are there at once, and none comes back in time.
// Otherwise a quarter of them comes back evenly. Envoy cannot make a bucket that takes
// longer to fill than its machine has been up; this one fills in less than a minute.
//
// If the next bucket is equal to its present one, an Envoy keeps that and does not fill
// it. It compares the nanoseconds of the interval, which it otherwise ignores, and not
// the seconds. seq makes the nanoseconds differ.
func tokens(n int64, quota time.Duration, seq uint32) *typev3.RateLimitStrategy {
	whole := int64((life(quota) + time.Second - 1) / time.Second) // seconds
	fill, every := int64(1), whole+1
	if n > 4*whole {
		fill, every = n/4/whole, 1
		n -= fill * whole
	}
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens:     uint32(n),
		TokensPerFill: wrapperspb.UInt32(uint32(fill)),
		FillInterval:  &durationpb.Duration{Seconds: every, Nanos: int32(seq % 1e9)},
	}}}
}

func blanket(rule typev3.RateLimitStrategy_BlanketRule) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}}
}

func assign(id *rlqs.BucketId, quota time.Duration, s *typev3.RateLimitStrategy) *rlqs.RateLimitQuotaResponse_BucketAction {
	return &rlqs.RateLimitQuotaResponse_BucketAction{BucketId: id,
		BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
			QuotaAssignmentAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
				AssignmentTimeToLive: durationpb.New(quota), RateLimitStrategy: s}}}
}
