package rls

import (
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dipwell/dipwell/store"
)

const day = 24 * time.Hour

var unitLengths = [...]time.Duration{
	pb.RateLimitResponse_RateLimit_SECOND: time.Second,
	pb.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	pb.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	pb.RateLimitResponse_RateLimit_DAY:    day,
	pb.RateLimitResponse_RateLimit_WEEK:   7 * day,
	pb.RateLimitResponse_RateLimit_MONTH:  30 * day,
	pb.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

// unitLength returns the length of a unit, or 0 if it is unknown. A month has 30 days and
// a year 365; windows begin at multiples of the unit since the Unix epoch.
func unitLength(u pb.RateLimitResponse_RateLimit_Unit) time.Duration {
	if u < 0 || int(u) >= len(unitLengths) {
		return 0
	}
	return unitLengths[u]
}

// maxPeriod is the longest period that is exact in µs.
const maxPeriod = store.MaxInt * time.Microsecond
