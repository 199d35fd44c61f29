package dipwell

import (
	"strconv"
	"time"

	"github.com/dipwell/dipwell/internal/jsontext"
	"github.com/dipwell/dipwell/store"
)

// A Decision is the answer to a call. Of a call with several limits, it is that of
// the limit with the latest retry if the call was refused, and of the limit with
// the fewest remaining tokens if it was allowed; Limits has all of them in order, and
// then the parents of their limits.
type Decision struct {
	// Allowed is whether the caller may act: at once, or after Delay if that is not 0.
	Allowed bool
	Never   bool         // the cost is more than the limit can ever grant; retrying does not help
	Shadow  bool         // allowed only because the limit is in shadow mode; nothing was taken
	Source  store.Source // what made the decision: the store, a decorator or a failure mode
	Limit   string       // name of the limit that decided
	Plan    string       // the plan of the limit that decided; "" for the limit itself
	Key     string       // "" for the limit's shared bucket
	Cost    int64        // tokens requested
	Granted int64        // tokens taken

	// Capacity is the burst of the limit or plan that decided, in tokens; 2^53-1 if it
	// is unlimited.
	Capacity int64
	// Remaining is the number of whole tokens left, after the charge if there was one,
	// and 0 if the bucket is in debt.
	Remaining int64
	// RetryAfter is the time until the same call would first be allowed, if nobody else
	// takes tokens. It is exact to the microsecond, and 0 if Allowed or Never.
	RetryAfter time.Duration
	ResetAfter time.Duration // until the bucket is full, if nothing more is taken
	Delay      time.Duration // how long to wait before acting on a reservation

	Reservation Reservation // for Cancel; zero if Delay is 0
	Limits      []Decision  // of a call with several limits, or of a limit with a parent

	Hold     string    // id of the hold, for Settle and Extend
	Expires  time.Time // when the hold expires, on the store's clock
	Repeated bool      // the same call was made before: nothing was changed, so do not do the work twice

	// RetryIsBound is set if the key has holds: the call may be allowed before
	// RetryAfter, when one of them is settled.
	RetryIsBound bool

	// Definition is what decided: the definition of the limit, of its plan, or the one
	// that an override of the key makes. It is nil if the call was not decided. Headers
	// that state a policy are made from it. It is not in the JSON.
	Definition *store.Definition
}

// Err returns nil if the call was allowed, and a *RefusedError otherwise, for callers
// that hand refusals on as errors.
func (d *Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return &RefusedError{*d}
}

// MarshalJSON returns the decision object of the HTTP API: times in whole microseconds,
// retry_after_us null if the call was allowed or can never be.
func (d Decision) MarshalJSON() ([]byte, error) {
	return append(d.AppendMembers([]byte{'{'}), '}'), nil
}

// AppendMembers appends the members of the decision's JSON object, without its braces.
func (d *Decision) AppendMembers(b []byte) []byte {
	b = d.appendOne(b)
	if d.Limits != nil {
		b = append(b, `,"limits":[`...)
		for i := range d.Limits {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(d.Limits[i].appendOne(append(b, '{')), '}')
		}
		b = append(b, ']')
	}
	return b
}

func (d *Decision) appendOne(b []byte) []byte {
	b = append(b, `"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	b = jsontext.AppendString(append(b, `,"limit":`...), d.Limit)
	if d.Plan != "" {
		b = jsontext.AppendString(append(b, `,"plan":`...), d.Plan)
	}
	b = append(b, `,"key":`...)
	if d.Key == "" {
		b = append(b, "null"...)
	} else {
		b = jsontext.AppendString(b, d.Key)
	}
	b = appendInt(b, `,"cost":`, d.Cost)
	b = appendInt(b, `,"granted":`, d.Granted)
	b = appendInt(b, `,"capacity":`, d.Capacity)
	b = appendInt(b, `,"remaining":`, d.Remaining)
	if d.Never || d.Allowed && !d.Shadow {
		b = append(b, `,"retry_after_us":null`...)
	} else {
		b = appendInt(b, `,"retry_after_us":`, d.RetryAfter.Microseconds())
	}
	b = appendInt(b, `,"reset_after_us":`, d.ResetAfter.Microseconds())
	b = appendInt(b, `,"delay_us":`, d.Delay.Microseconds())
	if d.Never {
		b = append(b, `,"never":true`...)
	}
	if d.Reservation != (Reservation{}) {
		b = append(append(append(b, `,"reservation":"`...), d.Reservation.String()...), '"')
	}
	if d.RetryIsBound {
		b = append(b, `,"retry_is_bound":true`...)
	}
	if d.Hold != "" {
		b = jsontext.AppendString(append(b, `,"hold":`...), d.Hold)
	}
	if !d.Expires.IsZero() {
		b = appendInt(b, `,"expires_us":`, d.Expires.UnixMicro())
	}
	if d.Repeated {
		b = append(b, `,"repeated":true`...)
	}
	if d.Definition != nil && d.Definition.Rule.Pace != nil {
		rate, reason, _ := d.Definition.CurrentRate(time.Now().UnixMicro())
		b = appendInt(b, `,"rate":`, rate)
		b = append(append(append(b, `,"rate_reason":"`...), reason...), '"')
	}
	b = append(b, `,"shadow":`...)
	b = strconv.AppendBool(b, d.Shadow)
	b = append(b, `,"source":"`...)
	b = append(b, d.Source.String()...)
	return append(b, '"')
}

func appendInt(b []byte, member string, n int64) []byte {
	return strconv.AppendInt(append(b, member...), n, 10)
}
