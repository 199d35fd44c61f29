package front

import (
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Refused yields the decisions of a refused call that refused it, one for each limit.
func Refused(d *dipwell.Decision) iter.Seq[*dipwell.Decision] {
	return func(yield func(*dipwell.Decision) bool) {
		if d.Limits == nil {
			yield(d)
		}
		for i := range d.Limits {
			again := func(o dipwell.Decision) bool { return !o.Allowed && o.Limit == d.Limits[i].Limit }
			if !d.Limits[i].Allowed && !slices.ContainsFunc(d.Limits[:i], again) && !yield(&d.Limits[i]) {
				return
			}
		}
	}
}

// Known reports whether d has the state of a bucket, which a fallback's answer has not.
func Known(d *dipwell.Decision) bool {
	return d.Source != store.SourceFallbackOpen && d.Source != store.SourceFallbackClosed
}

// RetryAfter returns how many seconds a refused client is told to wait: until the latest retry
// time of the limits that refused, each lengthened at random by its RetryJitter, rounded up,
// and at least 1; or 0 if waiting does not help (d.Never) or the time is not known.
func RetryAfter(d *dipwell.Decision) (retry int64) {
	if d.Never || !Known(d) {
		return 0
	}
	if d.Limits == nil {
		return jittered(d)
	}
	for i := range d.Limits {
		if e := &d.Limits[i]; !e.Allowed {
			retry = max(retry, jittered(e))
		}
	}
	return retry
}

// jittered returns the retry time of one limit, in seconds.
func jittered(d *dipwell.Decision) int64 {
	wait := d.RetryAfter
	if def := d.Definition; def != nil && def.RetryJitter > 0 {
		more := time.Duration(rand.Float64() * float64(wait) / 100 * float64(def.RetryJitter))
		wait += min(more, math.MaxInt64-wait) // must not overflow
	}
	return max(1, Seconds(wait))
}

// Blocked reports whether a call was refused because a plan or an override blocks its key.
func Blocked(d *dipwell.Decision) bool {
	return !d.Allowed && d.Definition != nil && d.Definition.Mode == store.Blocked
}

// Seconds returns d in seconds, rounded up, and 0 if d is negative.
func Seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
