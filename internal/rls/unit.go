package rls

import (
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell/store"
)

const day = 24 * time.Hour

// unitLength returns the length of a unit. A month is 30 days and a year 365;
// windows begin at multiples of the unit since the Unix epoch.
func unitLength(u pb.RateLimitResponse_RateLimit_Unit) time.Duration {
	switch u {
	case pb.RateLimitResponse_RateLimit_SECOND:
		return time.Second
	case pb.RateLimitResponse_RateLimit_MINUTE:
		return time.Minute
	case pb.RateLimitResponse_RateLimit_HOUR:
		return time.Hour
	case pb.RateLimitResponse_RateLimit_DAY:
		return day
	case pb.RateLimitResponse_RateLimit_WEEK:
		return 7 * day
	case pb.RateLimitResponse_RateLimit_MONTH:
		return 30 * day
	case pb.RateLimitResponse_RateLimit_YEAR:
		return 365 * day
	}
	return 0
}

// maxPeriod is the longest period that is exact in µs.
const maxPeriod = store.MaxInt * time.Microsecond
