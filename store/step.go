package store

//go:generate go run ../internal/gen/step

// The step: how a row changes as time passes, how each verb changes it, and what the
// answer says about it. All stores use these functions: internal/gen translates them
// to SQL and Lua, and its documentation says which part of Go they may use. Lua has
// only doubles, which are exact up to 2^53. A sum or product that may be larger must
// only be compared with smaller numbers, or subtracted from something not smaller.
//
// Parameters mean the same everywhere: used is in units, cost and burst in
// tokens; ts, now and t are in µs, t not before ts; unit, every, add, origin,
// and the rest are those of Rule. enough is enoughTicks; multiplying more ticks
// could overflow. parts is Op.Fraction.

// enoughTicks returns the number of ticks after which everything has come back.
func enoughTicks(maxUsed, add int64) int64 { return quoUp(maxUsed, add) }

// tickOf returns the number of the last tick at or before x. With ticks of 1 µs it
// ignores origin, because differences of ticks do not depend on it.
func tickOf(x, origin, every int64) int64 {
	if every == 1 {
		return x
	}
	return floorDiv(x-origin, every)
}

// ticksSince returns the number of ticks after ts up to now.
func ticksSince(ts, now, origin, every int64) int64 {
	if every == 1 {
		return max(now-ts, 0)
	}
	return ticksBetween(ts, now, origin, every)
}

// ticksUpTo is ticksSince for a t that is not before ts.
func ticksUpTo(ts, t, origin, every int64) int64 {
	if every == 1 {
		return t - ts
	}
	return floorDiv(t-origin, every) - floorDiv(ts-origin, every)
}

// ticksBetween is ticksSince without a condition for ticks of 1 µs.
func ticksBetween(ts, now, origin, every int64) int64 {
	return floorDiv(max(now, ts)-origin, every) - floorDiv(ts-origin, every)
}

// ticksSinceOnce is ticksSince for statements that must look origin up, and so use it
// once. It computes the ticks from the time since ts, and from how much of the
// present window has passed.
func ticksSinceOnce(ts, now, origin, every int64) int64 {
	return floorDiv(max(now-ts, 0)-floorMod(now-origin, every)+every-1, every)
}

// returned is the number of units that come back in a number of ticks. It may be
// somewhat more than all.
func returned(ticks, add, enough int64) int64 { return min(ticks, enough) * add }

// leftAfter returns the units in use after a number of ticks.
func leftAfter(used, ticks, add, enough int64) int64 {
	return max(used-returned(ticks, add, enough), 0)
}

// usedAt returns the units in use at now.
func usedAt(used, ts, now, origin, every, add, enough int64) int64 {
	return leftAfter(used, ticksSince(ts, now, origin, every), add, enough)
}

// fullAfter reports whether a row is full after a number of ticks.
func fullAfter(used, ticks, add, enough int64) bool { return used <= returned(ticks, add, enough) }

// unitsOf returns a number of tokens in units, at most 2^53, which is more than any
// bucket holds.
func unitsOf(tokens, unit int64) int64 { return mulCap(tokens, unit, MaxInt+1) }

// pricedUnits returns what units cost a process that uses only parts/1024 of the rate: as
// many times more, but at most most, so that one call is allowed whenever the bucket is full.
func pricedUnits(units, parts, most int64) int64 {
	return min(mulDiv(units, 1024, parts, true), most)
}

// roomBefore returns how many units may be in use if units more have to fit. bound is the
// cap, or for a reservation the cap and the debt.
func roomBefore(units, bound int64) int64 { return bound - units }

// fits reports whether units more may be used.
func fits(used, units, bound int64) bool { return used <= roomBefore(units, bound) }

// excess returns how many of units are too many; it is 0 or less if they fit. With 7 used,
// 5 units and a bound of 10 it is 2.
func excess(used, units, bound int64) int64 { return used - roomBefore(units, bound) }

// fitsAfter is fits after a number of ticks, for units of at most bound.
func fitsAfter(used, ticks, add, enough, units, bound int64) bool {
	return used-returned(ticks, add, enough) <= roomBefore(units, bound)
}

// fitsWithin is fitsAfter without a product: it compares the ticks that a Take needs
// with those that have passed. room is roomFor of the units.
func fitsWithin(used, ticks, add, room int64) bool { return quo(used+room, add) <= ticks }

// roomFor returns the part of fitsWithin's dividend that does not depend on used:
// the quotient is then the excess units divided by add, rounded up.
func roomFor(units, bound, add int64) int64 { return units - bound + add - 1 }

// wholeTokens returns the units that TakeUpTo takes: whole tokens, at most units. At
// least one token must be free. With 500 used, a bound of 3000 and 1000 units in a token,
// 2500 units are free, of which it takes 2000.
func wholeTokens(used, units, unit, bound int64) int64 {
	return min(units, quo(bound-used, unit)*unit)
}

// pieces returns how many pieces of units each fit, but at most most. With 1 used and a
// bound of 10, 4 pieces of 2 units fit.
func pieces(used, units, bound, most int64) int64 { return min(floorDiv(bound-used, units), most) }

// charged returns the units in use after a Charge, which stops at maxUsed.
func charged(used, units, maxUsed int64) int64 { return min(used+units, max(maxUsed, used)) }

// clipped reports whether a Charge added less than its units, so that nothing
// may be given back of what was taken before.
func clipped(used, units, after int64) bool { return after < used+units }

// refunded returns the units in use after a Refund.
func refunded(used, units int64) int64 { return max(used-units, 0) }

// decide decides a verb on a bucket with used units in use at the time of the
// decision. short is how many units must come back before the same call would be
// allowed, ahead how many before a reservation is due.
func decide(verb int64, leaky bool, used, cost, unit, bound, debt, maxCharge, maxUsed, parts int64) (allowed, never bool, granted, after, short, ahead int64) {
	if verb >= int64(VerbCharge) {
		return decideAnyway(verb, used, cost, unit, maxCharge, maxUsed)
	}
	if verb == int64(VerbTakeUpTo) && cost > 0 {
		return decideUpTo(used, cost, unit, bound)
	}
	return decideTake(verb, leaky, used, cost, unit, bound, debt, parts)
}

// decideTake is decide for Take, Check and Reserve, and for a TakeUpTo of
// nothing, which is a Check.
func decideTake(verb int64, leaky bool, used, cost, unit, bound, debt, parts int64) (allowed, never bool, granted, after, short, ahead int64) {
	units := unitsOf(cost, unit)
	most := bound
	if leaky && verb != int64(VerbTakeUpTo) || verb == int64(VerbReserve) && cost > 0 {
		most = bound + debt
	}
	if units > most {
		return false, true, 0, used, 0, 0
	}
	if parts > 0 {
		units = pricedUnits(units, parts, most)
	}
	if !fits(used, units, most) {
		return false, false, 0, used, excess(used, units, most), 0
	}
	ahead = max(excess(used, units, bound), 0)
	if verb == int64(VerbCheck) {
		return true, false, 0, used, 0, ahead
	}
	return true, false, cost, used + units, 0, ahead
}

// decideUpTo is decide for a TakeUpTo of at least one token.
func decideUpTo(used, cost, unit, bound int64) (allowed, never bool, granted, after, short, ahead int64) {
	if unit > bound {
		return false, true, 0, used, 0, 0
	}
	if !fits(used, unit, bound) {
		return false, false, 0, used, excess(used, unit, bound), 0
	}
	granted = min(cost, quo(bound-used, unit))
	return true, false, granted, used + granted*unit, 0, 0
}

// decideAnyway is decide for Charge, Refund and Reset, which need no free tokens.
func decideAnyway(verb, used, cost, unit, maxCharge, maxUsed int64) (allowed, never bool, granted, after, short, ahead int64) {
	units := unitsOf(cost, unit)
	if verb == int64(VerbReset) {
		return true, false, 0, 0, 0, 0
	}
	if verb == int64(VerbRefund) {
		return true, false, 0, refunded(used, units), 0, 0
	}
	if cost > maxCharge {
		return false, true, 0, used, 0, 0
	}
	return true, false, cost, charged(used, units, maxUsed), 0, 0
}

// ticksFor returns the number of ticks in which units come back.
func ticksFor(units, add int64) int64 { return quoUp(units, add) }

// dueAt returns the time of the tick a number of ticks after t.
func dueAt(t, ticks, origin, every int64) int64 {
	if every == 1 {
		return t + ticks
	}
	return origin + (floorDiv(t-origin, every)+ticks)*every
}

// lastTick returns the time of the last tick at or before t.
func lastTick(t, origin, every int64) int64 { return floorDiv(t-origin, every)*every + origin }

// comeBack returns the time from a tick to the one at which units have come back.
func comeBack(units, every, add int64) int64 { return ticksFor(units, add) * every }

// wait returns the time from now to the tick at which units that are in use at t have
// come back.
func wait(units, t, now, origin, every, add int64) int64 {
	if every == 1 {
		return t - now + ticksFor(units, add)
	}
	return lastTick(t, origin, every) - now + comeBack(units, every, add)
}

// fullIn returns the time from now until nothing is used.
func fullIn(used, t, now, origin, every, add int64) int64 {
	if used == 0 {
		return 0
	}
	return wait(used, t, now, origin, every, add)
}

// tokensLeft returns the number of whole tokens that are free.
func tokensLeft(used, unit, bound int64) int64 { return quo(max(bound-used, 0), unit) }

// soonest returns the least delay of a Reserve of units: that of a full bucket 1 µs
// before its next tick. every is the length of the shortest window.
func soonest(units, bound, every, add int64) int64 {
	if units <= bound {
		return 0
	}
	return comeBack(units-bound, every, add) - every + 1
}

// slackOf returns the units that will be in use when a reservation that waits falls
// due, without its own.
func slackOf(units, bound int64) int64 { return max(bound-units, 0) }

// convertUsed returns units used under one version in units of the next, by the
// policy of the next: none, the same fraction of the cap, or the same tokens.
func convertUsed(used int64, startOver, fraction bool, fromUnit, fromCap, toUnit, toCap, toMax int64, up bool) int64 {
	if used == 0 || startOver {
		return 0
	}
	if fraction && fromCap > 0 {
		return min(mulDiv(used, toCap, fromCap, up), toMax)
	}
	return min(mulDiv(used, toUnit, fromUnit, up), toMax)
}

// convertBack returns units that can be given back under one version in units of the
// next, rounded down: the same tokens, or what the policy makes of them if that is
// less.
func convertBack(units int64, startOver, fraction bool, fromUnit, fromCap, toUnit, toCap, toMax int64) int64 {
	return min(convertUsed(units, false, false, fromUnit, fromCap, toUnit, toCap, toMax, false),
		convertUsed(units, startOver, fraction, fromUnit, fromCap, toUnit, toCap, toMax, false))
}

// The functions below are for giving back. Each store loops over the Lows and the
// records of a row in its own way; these say how one entry changes.

// later returns the later of two times, or the longer of two delays.
func later(a, b int64) int64 { return max(a, b) }

// dueIn returns the time a delay after now.
func dueIn(now, delay int64) int64 { return now + delay }

// dueBy reports whether at has come by now.
func dueBy(at, now int64) bool { return at <= now }

// isNone reports whether units is 0. A row with no units in use is full.
func isNone(units int64) bool { return units == 0 }

// lesser returns units, or most if that is less.
func lesser(units, most int64) int64 { return min(units, most) }

// added returns units and more.
func added(units, more int64) int64 { return units + more }

// without returns units less those that were given back.
func without(units, given int64) int64 { return units - given }

// lowers reports whether a low must be lowered to used.
func lowers(used, low int64) bool { return used < low }

// joins reports whether a low must be joined with the next, because lows rise.
func joins(low, next int64) bool { return low >= next }

// covers reports whether an entry with Number first is about a record, if no later
// entry is.
func covers(first, number int64) bool { return first <= number }

// tooMany reports whether a row has more entries than it may have.
func tooMany(entries int64) bool { return entries > MaxLows }

// closer reports whether a low is closer to the one before it than other is to the
// one before that.
func closer(low, before, other, otherBefore int64) bool { return low-before < other-otherBefore }

// restGoes reports whether a cancelled record can be removed: nothing is withheld in
// it, or no waiting record was made after it. last is the number of the last waiting
// record.
func restGoes(units, number, last int64) bool { return units == 0 || number >= last }
