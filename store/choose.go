package store

import (
	"cmp"
	"math/bits"

	"github.com/dipwell/dipwell/internal/algebra"
)

// choose sets Def to the definition that decides the op on a row at now, in µs: that of the
// key's override if there is one, or else the one that the caller named. Charge and Refund
// leave the row under its own definition unless the row is full. A full row counts as
// missing, because a sweep may have deleted it.
func (op *Op) choose(row State, now int64) {
	if op.Def.Override != nil { // an earlier call of choose has set it
		op.Def = cmp.Or(op.Asked, op.Def.Base())
	}
	asked := op.Def
	o := row.Override.At(now)
	if op.Verb == VerbReset {
		o = o.unblocked()
	}
	switch {
	case o != nil:
		op.Def = asked.WithOverride(o)
	case op.Verb == VerbCharge, op.Verb == VerbRefund:
		if own := asked.Own(row, now); !own.isEmpty(row, op.Key, &op.Phase, now) {
			op.Def = own
		}
	}
	op.Asked = asked
}

// isEmpty reports whether a row that is under d is a full bucket at now, in µs.
func (d *Definition) isEmpty(row State, key string, phase *int64, now int64) bool {
	row, ok := d.carry(row, key, phase, now, nil)
	var scratch Rule
	return ok && d.ruleFor(key, phase, &scratch).usedAt(&row, max(now, row.TS)) == 0
}

// byMode decides an op under a plan that is unlimited or blocked. The row stays as it is,
// except that a hold of an unlimited concurrency limit is counted.
func (op *Op) byMode(now int64, row State, dry bool) (State, bool, error) {
	own := op.Def
	if own.Override == nil {
		own = own.Base()
	}
	row, ok := own.Carry(row, op.Key, now)
	if !ok {
		return row, false, ErrStaleDefinition
	}
	var scratch Rule
	rule := own.ruleFor(op.Key, &op.Phase, &scratch)
	used, t := rule.stepped(&row, max(now, row.TS))
	op.Answer = Answer{Used: used, TS: t}
	if op.Def.Mode == Blocked {
		op.Remaining, op.Reset = rule.Remaining(used, t), rule.TimeToFull(used, t, now)
		op.Never = true
		if op.Def.Override != nil && op.Def.Override.Until != 0 {
			op.retryUnblocked(row, now)
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

// retryUnblocked sets Retry to the first time after the end of the override, which blocks
// the key, at which the same call would be allowed, or sets Never. If the call is refused
// once more at the end of the override, and only then moves the row, Retry is that end.
func (op *Op) retryUnblocked(row State, now int64) {
	until := op.Def.Override.Until
	later := *op
	later.Def, later.Answer = op.Asked, Answer{}
	if op.Verb == VerbCheck { // a check moves no row, but is told what a Take would be told
		later.Verb = VerbTake
	}
	_, wrote, err := later.Step(until, row, false)
	if op.Never = err != nil || later.Never && later.enforced(op); op.Never {
		return
	}
	moves := wrote && later.Granted == 0
	if op.Retry, op.Bound = until-now, later.Bound || moves; later.enforced(op) && !moves {
		op.Retry += later.Retry
	}
}

// boundByEnd corrects the retry of a refusal under an override that ends at some time. What is
// allowed after the end is not computed: Retry is at most the time until the end, and Never is
// unset if the call would fit into an empty bucket of the definition that decides then.
func (op *Op) boundByEnd(now int64) {
	o := op.Def.Override
	if o == nil || o.Until == 0 {
		return
	}
	end := o.Until - now
	if op.Never {
		later := *op
		later.Def, later.Answer = op.Asked, Answer{}
		if _, _, err := later.Step(now, State{Override: o.Under}, true); err != nil || later.Never && later.enforced(op) {
			return
		}
		op.Never, op.Retry = false, end
	}
	op.Retry, op.Bound = min(op.Retry, end), true
}

// enforced reports whether the refusal of an op counts after the end of the override before:
// the refusal of a limit in shadow mode does not, unless before is in shadow mode too.
func (op *Op) enforced(before *Op) bool { return op.Def.Mode != Shadow || before.Def.Mode == Shadow }

// rowNumber returns the State.Version of a row that d has decided. All plans of a sliding
// window count in the same way, so that its rows stay under the base.
func (d *Definition) rowNumber() uint32 {
	if d.Rule.Sliding && d.Override == nil {
		return d.Base().Number
	}
	return d.Number
}

// moves reports whether a refusal by d moves a row that is under own to d: it does if more
// tokens come back under d in the same time. Otherwise a caller with a slower plan could
// slow the others just by asking.
func (d *Definition) moves(own *Definition) bool {
	slower, low := bits.Mul64(uint64(own.Rule.Add), uint64(d.Rule.Unit))
	faster, most := bits.Mul64(uint64(d.Rule.Add), uint64(own.Rule.Unit))
	return slower < faster || slower == faster && low < most
}

// applyFloor is apply for a Take or a Check that must leave op.Floor tokens free.
func (r *Rule) applyFloor(o *outcome, row *State, now int64, op *Op) {
	units := algebra.UnitsOf(op.Floor, r.Unit)
	if units > r.Cap {
		o.Before, o.TS = r.stepped(row, max(now, row.TS))
		o.After, o.Never = o.Before, true
		return
	}
	lower := *r
	lower.Cap -= units
	lower.apply(o, row, now, op.Verb, op.Cost, op.Fraction)
}
