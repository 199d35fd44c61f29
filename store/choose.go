package store

import "github.com/dipwell/dipwell/internal/number"

// choose sets Def to the definition that decides the op on a row at t, in µs: that of the
// key's override if it has one, or else the one that the caller named. Charge leaves the
// row under its own definition unless the row is full. A full row counts as missing,
// because a sweep may have deleted it.
func (op *Op) choose(row State, t int64) {
	if op.Def.Override != nil { // an earlier call of choose has set it
		if op.Def = op.Def.Base(); op.Asked != nil {
			op.Def = op.Asked
		}
	}
	asked := op.Def
	switch {
	case row.Override.decides(t):
		op.Def = asked.overriddenBy(row.Override)
	case op.Verb == VerbCharge:
		if own := asked.own(row, t); !own.isEmpty(row, op.Key, &op.Phase, t) {
			op.Def = own
		}
	}
	op.Asked = asked
}

// isEmpty reports whether a row that is under d at t, in µs, is a full bucket at t.
func (d *Definition) isEmpty(row State, key string, phase *int64, t int64) bool {
	row, ok := d.carry(row, key, phase, t, nil)
	var scratch Rule
	return ok && isNone(d.ruleFor(key, phase, &scratch).usedAt(&row, later(t, row.TS)))
}

// byMode decides an op under a plan that is unlimited or blocked. The row stays as it is,
// except that a hold of an unlimited concurrency limit is counted.
func (op *Op) byMode(now int64, row State, dry bool) (State, bool, error) {
	own := op.Def
	if own.Override == nil {
		own = own.Base()
	}
	row, ok := own.carryRow(row, op.Key, now)
	if !ok {
		return row, false, ErrStaleDefinition
	}
	t := max(now, row.TS)
	var scratch Rule
	rule := own.ruleFor(op.Key, &op.Phase, &scratch)
	used := rule.usedAt(&row, t)
	op.Answer = Answer{Used: used, TS: t}
	if op.Def.Mode == Blocked {
		op.Remaining, op.Reset = rule.remaining(used), op.fullIn(rule, used, t, now)
		op.Never = true
		if op.Def.Override != nil && row.Override.Until != 0 {
			op.retryAfterOverride(row, now)
		}
		return row, false, nil
	}
	op.Allowed, op.Remaining = true, MaxInt
	if dry || op.Verb == VerbCheck {
		return row, false, nil
	}
	if op.Granted = op.Cost; own.Algorithm == Concurrency {
		row.Used, row.TS, row.Version = min(used+op.Cost, rule.MaxUsed), t, own.Number
		op.Used = row.Used
		return row, op.Cost > 0, nil
	}
	return row, false, nil
}

// retryAfterOverride sets Retry to the first time after the end of the override at which
// the same call would be allowed, or sets Never. In shadow mode the answer is the one
// that enforcing would give, both before and after the end.
func (op *Op) retryAfterOverride(row State, now int64) {
	until := row.Override.Until
	later := *op
	later.Def, later.Answer = op.Asked, Answer{}
	_, _, err := later.Step(until, row, true)
	op.Never, op.Retry = false, until-now
	switch {
	case err == nil && later.Allowed && (!later.Shadow || op.Def.Mode != Shadow):
	case err != nil || later.Never:
		op.Never, op.Retry = true, 0
	default:
		op.Retry += later.Retry
	}
}

// retryUnder corrects the retry of a refusal whose row stays under another definition
// than the one that decided. Until the call is repeated, or the key's override ends, the
// row refills under its own definition, from.
func (op *Op) retryUnder(o *outcome, from *Definition, own State, rule *Rule, now int64) {
	if !o.Never && from.Number != op.Def.Number && !number.IsOverride(op.Def.Number) {
		row, ok := from.carryRow(own, op.Key, now)
		if ok {
			var scratch Rule
			r := from.ruleForKey(op.Key, &scratch)
			t := max(now, row.TS)
			used := r.usedAt(&row, t)
			// The most units that may be used under from, so that the call fits once they
			// are converted.
			_, _, _, _, short, _ := decide(int64(op.Verb), rule.Leaky, o.Before, op.Cost, rule.Unit, rule.Cap-unitsOf(op.Floor, rule.Unit), rule.Debt, rule.MaxCharge, rule.MaxUsed)
			if op.bounded() {
				short = max(short, op.tooLate(rule, o.Before))
			}
			most := mulDiv(max(o.Before-short, 0), r.Unit, rule.Unit, false)
			switch {
			case o.Before >= short && used > most:
				o.Retry = r.wait(used-most, t, now)
			case op.bounded():
				o.Retry = 0
			default:
				o.Retry = max(o.Retry, 1)
			}
		}
	}
	if !o.Never && op.bounded() {
		op.retryBounded(o, own, now)
	}
	if ov := own.Override; ov.decides(op.Def.instant(&own, now)) && ov.Until != 0 && (o.Never || now+o.Retry >= ov.Until) {
		a := *op
		a.retryAfterOverride(own, now)
		o.Never, o.Retry = a.Never, a.Retry
	}
}

// applyFloor is apply for a Take or a Check that must leave op.Floor tokens free.
func (r *Rule) applyFloor(o *outcome, row *State, now int64, op *Op) {
	units := unitsOf(op.Floor, r.Unit)
	if units > r.Cap {
		o.TS = max(now, row.TS)
		o.Before = r.usedAt(row, o.TS)
		o.After, o.Never = o.Before, true
		return
	}
	lower := *r
	lower.Cap -= units
	lower.apply(o, row, now, op.Verb, op.Cost)
}
