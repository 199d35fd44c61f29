package httplimit

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
)

// policy is the constant part of a definition's header fields.
type policy struct {
	header []string // the one value of RateLimit-Policy
	item   string   // the limit's name as a structured string, followed by `;r=`
	window int64    // w of RateLimit-Policy, in seconds; 0: none
	def    *store.Definition
}

// maxPolicies bounds the cache. Emptying a full cache also drops the policies
// of definitions that have been replaced.
const maxPolicies = 1024

var (
	policies sync.Map // by *store.Definition: *policy
	cached   atomic.Int64
)

func policyOf(def *store.Definition) *policy {
	if def.Override != nil { // each key may have an override, too many for the cache
		return newPolicy(def)
	}
	if p, known := policies.Load(def); known {
		return p.(*policy)
	}
	if cached.Add(1) > maxPolicies {
		policies.Clear()
		cached.Store(0)
	}
	p, _ := policies.LoadOrStore(def, newPolicy(def))
	return p.(*policy)
}

func newPolicy(def *store.Definition) *policy {
	name := strconv.AppendQuote(nil, def.Name) // as a structured string, since it is printable ASCII
	p := &policy{item: string(name) + ";r=", def: def}
	b := appendParam(name, ";q=", def.Rule.Burst)
	if def.Algorithm == store.Concurrency {
		b = append(b, `;qu="concurrent-requests"`...)
	} else {
		p.window = policyWindow(def)
		b = appendParam(b, ";w=", p.window)
	}
	p.header = []string{string(b)}
	return p
}

// append appends an item of RateLimit: r, the remaining tokens, and t, the
// effective window. retry is Retry-After in seconds, or 0. A blocked key has none of the
// tokens in its bucket, and none come back before retry.
func (p *policy) append(b []byte, d *dipwell.Decision, retry int64) []byte {
	if front.Blocked(d) {
		b = appendParam(append(b, p.item...), "", 0)
		if retry > 0 {
			b = appendParam(b, ";t=", retry)
		}
		return b
	}
	b = appendParam(append(b, p.item...), "", d.Remaining)
	if p.window == 0 { // the tokens come back when other requests end
		return b
	}
	t := p.effective(d)
	if retry > 0 {
		t = min(t, retry)
	}
	return appendParam(b, ";t=", t)
}

// effective returns t in seconds: of a bucket the time in which r tokens come back, or the next
// token if r is 0; of a window or an interval the time to the next boundary.
func (p *policy) effective(d *dipwell.Decision) int64 {
	if windowed(p.def) {
		return p.boundary(d.ResetAfter)
	}
	r := &p.def.Rule
	priced := func(n int64) int64 { // n converted to what it buys from an adaptive limit now
		if d.Capacity < 1 || d.Capacity >= r.Burst {
			return n
		}
		return algebra.MulDiv(n, r.Burst, d.Capacity, true)
	}
	if d.Remaining > 0 {
		return ceilSeconds(priced(d.Remaining), r)
	}
	// The bucket is full burst-1 tokens after the next token.
	full := d.ResetAfter.Microseconds()
	rest := algebra.MulDiv(max(0, r.Burst-priced(1)), r.Unit, r.Add, true)
	if rest > full/r.Every {
		return 1
	}
	return max(1, front.Seconds(time.Duration(full-rest*r.Every)*time.Microsecond))
}

// boundary returns the seconds to the next boundary, given the time to the boundary at
// which the bucket is full. That is a later one only with roll-over. In a calendar, the
// windows in between are computed from this machine's clock.
func (p *policy) boundary(reset time.Duration) int64 {
	r := &p.def.Rule
	switch {
	case reset <= 0:
		return p.window
	case r.Every > 0:
		reset = time.Duration((reset.Microseconds()-1)%r.Every+1) * time.Microsecond
	case r.Cap > r.Add:
		now := time.Now().UnixMicro()
		_, end := r.Window(now)
		reset = min(reset, time.Duration(end-now)*time.Microsecond)
	}
	return max(1, front.Seconds(reset))
}

func windowed(def *store.Definition) bool {
	return def.Algorithm == dipwell.FixedWindow || def.Algorithm == dipwell.Interval || def.Rule.Sliding
}

// policyWindow returns w in seconds: the time in which a whole burst comes back,
// or the period of a window or interval. w is a hint, so a month counts as 30
// days and a year as 365.
func policyWindow(def *store.Definition) int64 {
	const day = 24 * 3600
	switch months := -int64(def.Period); {
	case !windowed(def):
		return max(1, ceilSeconds(def.Rule.Burst, &def.Rule))
	case months > 0 && months%12 == 0:
		return months / 12 * 365 * day
	case months > 0:
		return months * 30 * day
	}
	return max(1, front.Seconds(def.Period))
}

// ceilSeconds returns the time in which n tokens come back, in seconds rounded up.
func ceilSeconds(n int64, r *store.Rule) int64 {
	return algebra.MulDiv(algebra.MulDiv(n, r.Unit, r.Add, true), r.Every, 1e6, true)
}

const maxInteger = 999_999_999_999_999 // of a structured field, which has 15 digits

func appendParam(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), min(n, maxInteger), 10)
}
