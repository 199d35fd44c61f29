// Package algebra has the arithmetic of rows: what comes back as time passes, how long
// that takes, and what units of one version are in another. It is pure, and all numbers
// are whole.
//
// Parameters mean the same everywhere: used is in units, cost and burst in tokens; ts, now
// and t are in µs, t not before ts; unit, every, add, origin and the rest are those of
// store.Rule.
//
// Redis decides with doubles, which are exact up to 2^53. A sum or product that may be
// larger must only be compared with smaller numbers, or subtracted from something not
// smaller.
package algebra

// TickOf returns the number of the last tick at or before x. With ticks of 1 µs it
// ignores origin, because differences of ticks do not depend on it.
func TickOf(x, origin, every int64) int64 {
	if every == 1 {
		return x
	}
	return FloorDiv(x-origin, every)
}

// TicksUpTo returns the number of ticks after ts up to t.
func TicksUpTo(ts, t, origin, every int64) int64 {
	if every == 1 {
		return t - ts
	}
	return FloorDiv(t-origin, every) - FloorDiv(ts-origin, every)
}

// Returned returns the number of units that come back in a number of ticks. It may be
// somewhat more than all. enough is the number of ticks after which everything has come
// back; multiplying more ticks could overflow.
func Returned(ticks, add, enough int64) int64 { return min(ticks, enough) * add }

// LeftAfter returns the units in use after a number of ticks.
func LeftAfter(used, ticks, add, enough int64) int64 {
	return max(used-Returned(ticks, add, enough), 0)
}

// UnitsOf returns a number of tokens in units, at most 2^53, which is more than any
// bucket holds.
func UnitsOf(tokens, unit int64) int64 { return MulCap(tokens, unit, maxInt+1) }

// PricedUnits returns what units cost a process that uses only parts/1024 of the rate: as
// many times more, but at most most, so that one call is allowed whenever the bucket is full.
func PricedUnits(units, parts, most int64) int64 {
	return min(MulDiv(units, 1024, parts, true), most)
}

// Wait returns the time from now to the tick at which units that are in use at t have
// come back.
func Wait(units, t, now, origin, every, add int64) int64 {
	if every == 1 {
		return t - now + QuoUp(units, add)
	}
	return FloorDiv(t-origin, every)*every + origin - now + QuoUp(units, add)*every
}

// TokensLeft returns the number of whole tokens that are free.
func TokensLeft(used, unit, bound int64) int64 { return Quo(max(bound-used, 0), unit) }

// Soonest returns the least delay of a Reserve of units: that of a full bucket 1 µs
// before its next tick. every is the length of the shortest window.
func Soonest(units, bound, every, add int64) int64 {
	if units <= bound {
		return 0
	}
	return QuoUp(units-bound, add)*every - every + 1
}

// ConvertUsed returns units used under one version in units of the next, rounded up, by the
// policy of the next: none, the same fraction of the cap, or the same tokens.
func ConvertUsed(used int64, startOver, fraction bool, fromUnit, fromCap, toUnit, toCap, toMax int64) int64 {
	if used == 0 || startOver {
		return 0
	}
	if fraction && fromCap > 0 {
		return min(MulDiv(used, toCap, fromCap, true), toMax)
	}
	return min(MulDiv(used, toUnit, fromUnit, true), toMax)
}
