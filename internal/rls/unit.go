package rls

import (
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell/store"
)

const day = 24 * time.Hour

// unitLength is how long a unit is: months and years are 30 and 365 days, and
// every unit's windows begin at multiples of it since the Unix epoch.
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

// maxPeriod keeps a period's µs, and windows of it since the epoch, exact.
const maxPeriod = store.MaxInt * time.Microsecond
