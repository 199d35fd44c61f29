package dipwell

import (
	"strconv"
	"time"

	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// A Decision is the answer to a call. For a call with several limits, it describes the limit
// with the latest retry if the call was refused, or the fewest remaining tokens if it was
// allowed; Limits has the decisions of all of them in order, and then of their parents.
type Decision struct {
	// Allowed is whether the caller may act: at once, or after Delay if that is not 0.
	Allowed bool
	// Never is set if the call was refused and would be at any later time too: its cost,
	// with its Floor, is more than the limit can ever grant, or the plan of the key is
	// Blocked without an end. Retrying does not help; RetryAfter is 0.
	Never bool
	// Shadow is set if the call is allowed only because the limit is in shadow mode.
	// Nothing was taken, and RetryAfter is what a refusal would have said.
	Shadow bool
	// Source is what made the decision: the store, a decorator such as the deny cache, or
	// the failure mode of the limit.
	Source store.Source
	Limit  string // name of the limit that decided
	// Plan is the plan of the limit that decided, because the call named it or an override
	// gave it to the key. Plan is "" if the limit itself decided, or numbers of an
	// override or of TakeWith.
	Plan string
	Key  string // key as the call had it; "" for the limit's shared bucket
	Cost int64  // tokens requested
	// Granted is the number of tokens taken: Cost or 0, less than Cost after TakeUpTo.
	// Granted is 0 after Refund, Reset and Check, and in shadow mode if the call would
	// have been refused.
	Granted int64

	// Capacity is the burst of the limit or plan that decided, in tokens; 2^53-1 if it
	// is unlimited. For an adaptive limit Capacity and Remaining are counted at the present
	// price of a token, at least 1 if the bucket is full.
	Capacity int64
	// Remaining is the number of whole tokens left after the charge; 0 if the bucket is in debt.
	Remaining int64
	// RetryAfter is the time until the same call would first be allowed, if nobody else
	// takes tokens. RetryAfter is exact to the microsecond, and 0 if Allowed or Never.
	RetryAfter time.Duration
	// ResetAfter is the time until the bucket is full, if nothing more is taken; 0 if it is full.
	ResetAfter time.Duration
	// Delay is how long to wait, from the answer on, before acting on a reservation. Delay
	// is 0 if the tokens were free.
	Delay time.Duration

	// Reservation is what to pass to Cancel; zero if Delay is 0, as there is nothing to cancel.
	Reservation Reservation
	// For a call with several takes, Limits has a Decision for each take in order, and
	// then one for each parent of their limits. Limits is nil for a lone take of a
	// limit without a parent.
	Limits []Decision

	Hold    string    // id of the hold, for Settle and Extend; "" if there is none
	Expires time.Time // when the hold expires, on the store's clock
	// Repeated is set if the same Hold or Settle was made before. Nothing was changed by
	// the repeated call: do not do the work twice.
	Repeated bool

	// RetryIsBound is set on a refusal whose RetryAfter is not exact. If the key has live
	// holds, the call may be allowed earlier, when one of them is settled to less than it
	// took. If the override of the key ends, RetryAfter is at most the time until its end, and
	// the call may be refused once more. If the key refills by a faster plan than the one that
	// decided, the call may be allowed earlier. If the limit is adaptive, its price may
	// change.
	RetryIsBound bool

	// Definition is the definition that decided: the limit's, its plan's, or the one that
	// an override of the key makes. Definition is nil if the call was not decided. Header
	// fields that state a policy are made from Definition. Definition is not in the JSON.
	Definition *store.Definition
}

// Err returns nil if the call was allowed, and a *RefusedError otherwise, for callers
// that return refusals as errors:
//
//	d, err := limiter.Take(ctx, "login", user, 1)
//	if err = cmp.Or(err, d.Err()); err != nil {
//		return err // not decided, or refused
//	}
func (d *Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return &RefusedError{*d}
}

// MarshalJSON returns the decision object of the HTTP API: times in whole microseconds,
// retry_after_us null if the call was allowed or can never be. Empty members are left
// out, such as "plan" if the limit itself decided. The error is always nil.
func (d Decision) MarshalJSON() ([]byte, error) {
	return append(d.AppendMembers([]byte{'{'}), '}'), nil
}

// AppendMembers appends the members of the decision's JSON object, without its braces, so
// that the caller can add other members. AppendMembers allocates only to grow b.
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
	b = texts.AppendJSON(append(b, `,"limit":`...), d.Limit)
	if d.Plan != "" {
		b = texts.AppendJSON(append(b, `,"plan":`...), d.Plan)
	} else if d.Definition != nil && d.Definition.Override != nil {
		b = append(b, `,"plan":"override"`...)
	}
	b = append(b, `,"key":`...)
	if d.Key == "" {
		b = append(b, "null"...)
	} else {
		b = texts.AppendJSON(b, d.Key)
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
		b = texts.AppendJSON(append(b, `,"hold":`...), d.Hold)
	}
	if !d.Expires.IsZero() {
		b = appendInt(b, `,"expires_us":`, d.Expires.UnixMicro())
	}
	if until := d.Definition.BlockedUntil(); until != 0 {
		b = appendInt(b, `,"blocked_until_us":`, until)
	}
	if d.Repeated {
		b = append(b, `,"repeated":true`...)
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
