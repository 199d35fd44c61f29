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

// slide decides a verb on a sliding window, into an outcome whose Before and TS are set.
func (r *Rule) slide(o *outcome, now int64, verb Verb, cost int64) {
	prev, cur := algebra.Halves(o.Before)
	if verb >= VerbCharge {
		if verb == VerbReset {
			prev = 0
		}
		o.Allowed, o.Never, o.Granted, cur, _, _ = r.anyway(verb, cur, cost)
		o.After = algebra.OfHalves(prev, cur)
		return
	}
	need, free := cost, r.Cap-r.Counted(o.Before, o.TS)
	if verb == VerbTakeUpTo {
		need = min(cost, 1)
	}
	switch o.After = o.Before; {
	case need > r.Cap:
		o.Never = true
	case need > free:
		o.Retry = r.TimeToFree(need, o.Before, o.TS, now)
	default:
		if o.Allowed = true; verb != VerbCheck {
			o.Granted = min(cost, free)
			o.After += o.Granted
		}
	}
}

// take decides Take, Check and Reserve, and a TakeUpTo of cost 0, which is a Check.
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
