package store

//go:generate go run ../internal/gen/step

// The step: what a row becomes as time passes, what each verb makes of it, and
// what is said about it. Every store states it by these functions. SQL and Lua
// are made of them by internal/gen, whose documentation has the part of Go that
// they may use. Lua has only doubles, which are exact up to 2^53: a sum or product
// that may be more is only compared, with less, or taken off what it is not above.
//
// Parameters mean the same everywhere: used is in units, cost and burst in
// tokens; ts, now and t are in µs, t not before ts; unit, every, add, origin,
// and the rest are those of Rule. enough is the number of ticks after which
// everything has come back, enoughTicks; multiplying more could overflow.

// enoughTicks is the number of ticks after which everything has come back.
func enoughTicks(maxUsed, add int64) int64 { return quoUp(maxUsed, add) }

// tickOf is the number of the last tick at or before x. Where every instant is a
// tick, any origin gives the same differences.
func tickOf(x, origin, every int64) int64 {
	if every == 1 {
		return x
	}
	return floorDiv(x-origin, every)
}

// ticksSince is the number of ticks after ts up to now.
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

// ticksBetween is ticksSince where ticks of 1 µs are not worth a condition.
func ticksBetween(ts, now, origin, every int64) int64 {
	return floorDiv(max(now, ts)-origin, every) - floorDiv(ts-origin, every)
}

// ticksSinceOnce is ticksSince with the origin named once where it must be
// looked up: from the time since ts, and how much of it is the present window's.
func ticksSinceOnce(ts, now, origin, every int64) int64 {
	return floorDiv(max(now-ts, 0)-floorMod(now-origin, every)+every-1, every)
}

// returned is what comes back in a number of ticks, or some more than everything.
func returned(ticks, add, enough int64) int64 { return min(ticks, enough) * add }

// leftAfter is what stays used after a number of ticks.
func leftAfter(used, ticks, add, enough int64) int64 {
	return max(used-returned(ticks, add, enough), 0)
}

// usedAt is what is used at now.
func usedAt(used, ts, now, origin, every, add, enough int64) int64 {
	return leftAfter(used, ticksSince(ts, now, origin, every), add, enough)
}

// fullAfter reports whether a row is full after a number of ticks.
func fullAfter(used, ticks, add, enough int64) bool { return used <= returned(ticks, add, enough) }

// unitsOf is a number of tokens in units; 2^53, which is more than any bucket
// holds, where it is more than that.
func unitsOf(tokens, unit int64) int64 { return mulCap(tokens, unit, MaxInt+1) }

// roomBefore is what may be used before units, for a bound of the cap, and of a
// reservation the cap and the debt.
func roomBefore(units, bound int64) int64 { return bound - units }

// fits reports whether units more may be used.
func fits(used, units, bound int64) bool { return used <= roomBefore(units, bound) }

// excess is how many of units are too many, at most none when they fit.
func excess(used, units, bound int64) int64 { return used - roomBefore(units, bound) }

// fitsAfter is fits after a number of ticks, for units of at most bound.
func fitsAfter(used, ticks, add, enough, units, bound int64) bool {
	return used-returned(ticks, add, enough) <= roomBefore(units, bound)
}

// fitsWithin is fitsAfter without a product: a Take fits when the ticks that it
// needs have passed. room is roomFor the units, which the caller knows.
func fitsWithin(used, ticks, add, room int64) bool { return quo(used+room, add) <= ticks }

// roomFor is what fitsWithin divides besides used: with it, the units that are
// too many, divided by those of a tick and rounded up, or nothing above zero.
func roomFor(units, bound, add int64) int64 { return units - bound + add - 1 }

// wholeTokens is how many units TakeUpTo takes of those that are free, which are
// one token's at least: whole tokens, at most units.
func wholeTokens(used, units, unit, bound int64) int64 {
	return min(units, quo(bound-used, unit)*unit)
}

// pieces is how many pieces of so many units fit, at most so many.
func pieces(used, units, bound, most int64) int64 { return min(floorDiv(bound-used, units), most) }

// charged is what is used after a Charge: it stops growing at maxUsed.
func charged(used, units, maxUsed int64) int64 { return min(used+units, max(maxUsed, used)) }

// clipped reports whether a Charge added less than its units, so that nothing
// may be given back of what was taken before.
func clipped(used, units, after int64) bool { return after < used+units }

// refunded is what is used after a Refund.
func refunded(used, units int64) int64 { return max(used-units, 0) }

// decide is what a verb makes of a bucket of which used units are in use at the
// instant of the decision. short is how many units must come back before the
// same call would be allowed, ahead how many must before it may act.
func decide(verb int64, leaky bool, used, cost, unit, bound, debt, maxCharge, maxUsed int64) (allowed, never bool, granted, after, short, ahead int64) {
	if verb >= int64(VerbCharge) {
		return decideAnyway(verb, used, cost, unit, maxCharge, maxUsed)
	}
	if verb == int64(VerbTakeUpTo) && cost > 0 {
		return decideUpTo(used, cost, unit, bound)
	}
	return decideTake(verb, leaky, used, cost, unit, bound, debt)
}

// decideTake is decide for Take, Check and Reserve, and for a TakeUpTo of
// nothing, which is a Check.
func decideTake(verb int64, leaky bool, used, cost, unit, bound, debt int64) (allowed, never bool, granted, after, short, ahead int64) {
	units := unitsOf(cost, unit)
	most := bound
	if leaky && verb != int64(VerbTakeUpTo) || verb == int64(VerbReserve) && cost > 0 {
		most = bound + debt
	}
	if units > most {
		return false, true, 0, used, 0, 0
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

// decideAnyway is decide for Charge, Refund and Reset, which ask for no room.
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

// ticksFor is the number of ticks in which units come back.
func ticksFor(units, add int64) int64 { return quoUp(units, add) }

// dueAt is the instant of the tick that comes a number of ticks after t.
func dueAt(t, ticks, origin, every int64) int64 {
	if every == 1 {
		return t + ticks
	}
	return origin + (floorDiv(t-origin, every)+ticks)*every
}

// lastTick is the instant of the last tick at or before t.
func lastTick(t, origin, every int64) int64 { return floorDiv(t-origin, every)*every + origin }

// comeBack is the time from a tick to the one at which units will have come back.
func comeBack(units, every, add int64) int64 { return ticksFor(units, add) * every }

// wait is the time from now to the tick at which units will have come back, of a
// row that was stepped to t.
func wait(units, t, now, origin, every, add int64) int64 {
	if every == 1 {
		return t - now + ticksFor(units, add)
	}
	return lastTick(t, origin, every) - now + comeBack(units, every, add)
}

// fullIn is the time from now until nothing is used.
func fullIn(used, t, now, origin, every, add int64) int64 {
	if used == 0 {
		return 0
	}
	return wait(used, t, now, origin, every, add)
}

// tokensLeft is the number of whole tokens that are free.
func tokensLeft(used, unit, bound int64) int64 { return quo(max(bound-used, 0), unit) }

// soonest is the least delay of a Reserve of units: that of a full bucket whose
// next tick is an instant away. every is the length of the shortest window.
func soonest(units, bound, every, add int64) int64 {
	if units <= bound {
		return 0
	}
	return comeBack(units-bound, every, add) - every + 1
}

// slackOf is what will be used when a reservation falls due that has to wait,
// itself not counted.
func slackOf(units, bound int64) int64 { return max(bound-units, 0) }

// convertUsed turns units used under one version into units of the next, by the
// policy of the next: nothing used, the same fraction, or the same tokens.
func convertUsed(used int64, startOver, fraction bool, fromUnit, fromCap, toUnit, toCap, toMax int64, up bool) int64 {
	if used == 0 || startOver {
		return 0
	}
	if fraction && fromCap > 0 {
		return min(mulDiv(used, toCap, fromCap, up), toMax)
	}
	return min(mulDiv(used, toUnit, fromUnit, up), toMax)
}

// convertBack turns units that can be given back under one version into units of
// the next, rounded down: the same tokens, or what the policy makes of them
// where that is less.
func convertBack(units int64, startOver, fraction bool, fromUnit, fromCap, toUnit, toCap, toMax int64) int64 {
	return min(convertUsed(units, false, false, fromUnit, fromCap, toUnit, toCap, toMax, false),
		convertUsed(units, startOver, fraction, fromUnit, fromCap, toUnit, toCap, toMax, false))
}

// What can be given back is worked out on the lists of a row, its Lows and its
// records. Each store walks lists of its own; what becomes of an entry, and which
// is meant, is stated here.

// later is the later of two instants, or the longer of two delays.
func later(a, b int64) int64 { return max(a, b) }

// dueIn is the instant that comes a delay after now.
func dueIn(now, delay int64) int64 { return now + delay }

// dueBy reports whether an instant has come.
func dueBy(at, now int64) bool { return at <= now }

// isNone reports whether units are none. A row of which none are used is full.
func isNone(units int64) bool { return units == 0 }

// lesser is what of units is left where no more than most may come back, or
// where no more are left.
func lesser(units, most int64) int64 { return min(units, most) }

// added is units and some more.
func added(units, more int64) int64 { return units + more }

// without is units without those that were given back.
func without(units, given int64) int64 { return units - given }

// lowers reports whether so little is used that a low must be lowered.
func lowers(used, low int64) bool { return used < low }

// joins reports whether a low becomes one with the next: lows normalize.
func joins(low, next int64) bool { return low >= next }

// covers reports whether an entry from record first on covers a record, if no
// later entry does.
func covers(first, number int64) bool { return first <= number }

// tooMany reports whether two of so many entries must become one.
func tooMany(entries int64) bool { return entries > MaxLows }

// closer reports whether a low lies closer to the one before it than another.
func closer(low, before, other, otherBefore int64) bool { return low-before < other-otherBefore }

// restGoes reports whether nothing can free what is withheld of a record: it is
// nothing, or no record that waits was made after it. last is the last of those.
func restGoes(units, number, last int64) bool { return units == 0 || number >= last }
