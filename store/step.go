package store

import "github.com/dipwell/dipwell/internal/algebra"

// decide decides a verb on a bucket with used units in use at the time of the decision.
// short is how many units must come back before the same call would be allowed, ahead how
// many before a reservation is due.
func (r *Rule) decide(verb Verb, used, cost, parts int64) (allowed, never bool, granted, after, short, ahead int64) {
	switch {
	case verb >= VerbCharge:
		return r.anyway(verb, used, cost)
	case verb == VerbTakeUpTo && cost > 0:
		return r.takeUpTo(used, cost)
	}
	return r.take(verb, used, cost, parts)
}

// take decides Take, Check and Reserve, and a TakeUpTo of nothing, which is a Check.
func (r *Rule) take(verb Verb, used, cost, parts int64) (allowed, never bool, granted, after, short, ahead int64) {
	units, most := algebra.UnitsOf(cost, r.Unit), r.Cap
	if r.Leaky && verb != VerbTakeUpTo || verb == VerbReserve && cost > 0 {
		most = r.Cap + r.Debt
	}
	if units > most {
		return false, true, 0, used, 0, 0
	}
	if parts > 0 {
		units = algebra.PricedUnits(units, parts, most)
	}
	if used > most-units {
		return false, false, 0, used, used - (most - units), 0
	}
	ahead = max(used-(r.Cap-units), 0)
	if verb == VerbCheck {
		return true, false, 0, used, 0, ahead
	}
	return true, false, cost, used + units, 0, ahead
}

// takeUpTo decides a TakeUpTo of at least one token.
func (r *Rule) takeUpTo(used, cost int64) (allowed, never bool, granted, after, short, ahead int64) {
	if r.Unit > r.Cap {
		return false, true, 0, used, 0, 0
	}
	if used > r.Cap-r.Unit {
		return false, false, 0, used, used - (r.Cap - r.Unit), 0
	}
	granted = min(cost, algebra.Quo(r.Cap-used, r.Unit))
	return true, false, granted, used + granted*r.Unit, 0, 0
}

// anyway decides Charge, Refund and Reset, which need no free tokens.
func (r *Rule) anyway(verb Verb, used, cost int64) (allowed, never bool, granted, after, short, ahead int64) {
	units := algebra.UnitsOf(cost, r.Unit)
	if verb == VerbReset {
		return true, false, 0, 0, 0, 0
	}
	if verb == VerbRefund {
		return true, false, 0, max(used-units, 0), 0, 0
	}
	if cost > r.MaxCharge {
		return false, true, 0, used, 0, 0
	}
	return true, false, cost, min(used+units, max(r.MaxUsed, used)), 0, 0
}

// slackOf returns the units that will be in use when a reservation that waits falls
// due, without its own.
func slackOf(units, bound int64) int64 { return max(bound-units, 0) }

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
