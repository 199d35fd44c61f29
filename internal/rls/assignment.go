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

// delivery is how long an assignment may be under way: from when its tokens are asked
// for until the Envoy has it, and then that much less until the Envoy has ended it. The
// protocol has no instants, only lengths of time, so nothing can end it earlier.
const delivery = 500 * time.Millisecond

// life returns for how long after they were asked for tokens may be used.
func life(quota time.Duration) time.Duration { return quota + delivery }

// comesBack returns how many tokens come back in the life of an assignment, rounded up,
// with two thousandths for clocks of different speed.
func comesBack(rate int64, period, quota time.Duration) int64 {
	return algebra.MulDiv(life(quota).Microseconds()*1002, rate, period.Microseconds()*1000, true)
}

// mostTokens is of one assignment.
const mostTokens = math.MaxInt32

// tokens returns a bucket of which an Envoy allows at most n requests in the life of an
// assignment. A few tokens are there at once, and none comes back in time. Of more, a
// quarter comes evenly: an Envoy cannot make a bucket that needs longer to fill than its
// machine is up, and this one needs less than a minute.
//
// An Envoy keeps its bucket, and does not fill it, if the next one is equal, for which it
// compares the nanoseconds of the interval, not the seconds. seq makes them differ.
// Otherwise it ignores the nanoseconds.
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
