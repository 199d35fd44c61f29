package memory

import (
	"math"
	"math/bits"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// A takeRule has the numbers of a rule for the fast paths of a Take.
type takeRule struct {
	bucket  bool // take can decide: a token bucket counted in µs
	windows bool // takeInWindow can decide: ticks longer than 1 µs, of equal length
	spread  bool // takeInWindow needs the phase of the key

	unit, every, add, cap, origin int64
	enough                        int64  // ticks after which everything has come back
	perUnit                       uint64 // 2^64 / unit
	perTick                       uint64 // 2^64 / every
}

func newTakeRule(d *store.Definition) takeRule {
	r := &d.Rule
	t := takeRule{spread: r.Spread, unit: r.Unit, every: r.Every, add: r.Add, cap: r.Cap, origin: r.Origin,
		enough: algebra.QuoUp(r.MaxUsed, r.Add), perUnit: math.MaxUint64 / uint64(r.Unit)}
	if d.Mode == store.Enforce && d.Even() {
		t.bucket = r.Every == 1 && d.Algorithm == store.TokenBucket
		t.windows = r.Every > 1
	}
	if t.windows {
		t.perTick = math.MaxUint64 / uint64(r.Every)
	}
	return t
}

// take is the fast path of Op.Step for VerbTake with a cost of 1 to Burst. It
// returns the units used after the call, the time of the decision, and the
// Remaining, Retry and Reset of the Answer.
func (r *takeRule) take(used, ts, now, cost int64) (after, t, remaining, retry, reset int64, allowed bool) {
	if t = max(now, ts); used != 0 {
		if ticks := t - ts; r.add == 1 {
			used = max(0, used-ticks)
		} else {
			used = r.left(used, ticks)
		}
	}
	after = used + cost*r.unit
	if over := after - r.cap; over > 0 {
		after, retry = used, t+algebra.QuoUp(over, r.add)-now
	} else {
		allowed = true
	}
	remaining = r.tokens(r.cap - after)
	if reset = after; r.add != 1 {
		reset = algebra.QuoUp(after, r.add)
	}
	if after != 0 {
		reset += t - now
	}
	return after, t, remaining, retry, reset, allowed
}

// takeInWindow is take for windows and intervals of one length, and for buckets counted
// in ticks longer than 1 µs. If windows are spread, phase is that of the key and must not
// be 0.
func (r *takeRule) takeInWindow(used, ts, now, cost, phase int64) (after, t, remaining, retry, reset int64, allowed bool) {
	origin := r.origin
	if r.spread {
		origin = phase - 1 - r.ticksIn(phase-1)*r.every
	}
	t = max(now, ts)
	tick := r.ticksIn(t - origin)
	start := origin + tick*r.every
	if used != 0 && ts < start {
		used = r.left(used, tick-r.ticksIn(ts-origin))
	}
	after = used + cost*r.unit
	if over := after - r.cap; over > 0 {
		after, retry = used, start+r.ticksFor(over)*r.every-now
	} else {
		allowed = true
	}
	if remaining = max(0, r.cap-after); r.unit != 1 {
		remaining = r.tokens(remaining)
	}
	if after != 0 {
		reset = start + r.ticksFor(after)*r.every - now
	}
	return after, t, remaining, retry, reset, allowed
}

// left returns the units used after a number of ticks.
func (r *takeRule) left(used, ticks int64) int64 {
	return algebra.LeftAfter(used, ticks, r.add, r.enough)
}

// tokens returns the number of whole tokens in free units. It multiplies by
// perUnit, which gives at most one token too few. A floating-point division makes
// a Take 4 % slower. The processor's division makes it 1 % slower, and more on
// processors where that takes 40 cycles, such as Intel's before 2019.
func (r *takeRule) tokens(free int64) int64 {
	if free <= 0 {
		return 0
	}
	hi, _ := bits.Mul64(uint64(free), r.perUnit)
	n := int64(hi)
	if free-n*r.unit >= r.unit {
		n++
	}
	return n
}

// ticksIn returns x / every rounded down. It multiplies by perTick, which gives
// at most one tick too few; dividing makes a Take of a window 11 % slower.
func (r *takeRule) ticksIn(x int64) int64 {
	if x < 0 {
		return algebra.FloorDiv(x, r.every)
	}
	hi, _ := bits.Mul64(uint64(x), r.perTick)
	n := int64(hi)
	if x-n*r.every >= r.every {
		n++
	}
	return n
}

// ticksFor returns the number of ticks in which units come back, usually 1.
func (r *takeRule) ticksFor(units int64) int64 {
	if units <= r.add {
		return 1
	}
	return algebra.QuoUp(units, r.add)
}
