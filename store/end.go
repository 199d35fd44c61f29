package store

import "math"

// This file looks past the end of the override that decides an op. Until then the row
// refills under the override, and from then on under the base of the limit.

// forever is a time after all others. A time before the epoch can be subtracted from it.
const forever = math.MaxInt64 / 2

// ends returns the time at which the override that made d ends, in µs, or a time after all
// others if d is of no override, or of one that does not end.
func (d *Definition) ends() int64 {
	if o := d.Override; o != nil && o.Until != 0 {
		return o.Until
	}
	return forever
}

// atEnd decides, at the end of the override that decides op, whether a row is then within
// the cap, and when it is otherwise. It returns that decision: its Retry is the time from
// the end, 0 if the row is within the cap at once, and its Used are the units in use at the
// end, of its Def. That is the definition that op asked for, or the base if that is
// blocked or unlimited. used and ts are a row under the override.
func (op *Op) atEnd(used, ts int64) *Op {
	d, base := op.Def, op.Def.Base()
	later := Op{Def: base, Key: op.Key, Phase: op.Phase, Verb: VerbTakeUpTo} // of 0 tokens: a Check, of leaky buckets too
	if asked := op.Asked; asked != nil && asked.Override == nil && asked.Mode <= Shadow {
		later.Def = asked
	}
	row := State{Used: used, TS: ts, Version: d.Number, Override: base.renewed(d.Override)}
	_, _, _ = later.Step(d.ends(), row, true) // it finds no later version than that of d's base
	return &later
}

// delayPastEnd corrects the Delay of a reservation that is due after the end of the
// override that decides it: it is due once the row, converted at the end, is within the
// cap.
func (op *Op) delayPastEnd(o *outcome, now int64) {
	o.Delay = op.Def.ends() - now + op.atEnd(o.Before+unitsOf(op.Cost, op.Def.Rule.Unit), o.TS).Retry
}

// slack returns the units that will be in use when op, which waits, is due, without its
// own. row is the row with them.
func (op *Op) slack(row *State, now int64) int64 {
	r := &op.Def.Rule
	if dueIn(now, op.Delay) < op.Def.ends() {
		return slackOf(op.Granted*r.Unit, r.Cap)
	}
	later := op.atEnd(row.Used, row.TS)
	then := &later.Def.Rule
	return Keep.giveBack(slackOf(unitsOf(op.Granted, then.Unit), min(later.Used, then.Cap)), then, r)
}

// fullIn returns the time in µs from now until the bucket is full, if used units of op's
// definition are in use at t. r is the rule of op's key.
func (op *Op) fullIn(r *Rule, used, t, now int64) int64 {
	in := r.fullIn(used, t, now)
	if end := op.Def.ends(); in > end-now && op.Def.Algorithm != Concurrency {
		base := op.Def.Base()
		row, ok := base.carry(State{Used: used, TS: t, Version: op.Def.Number, Override: base.renewed(op.Def.Override)}, op.Key, &op.Phase, end, nil)
		if !ok {
			return in
		}
		var scratch Rule
		r = base.ruleFor(op.Key, &op.Phase, &scratch)
		t = max(end, row.TS)
		return end - now + r.fullIn(r.usedAt(&row, t), t, end)
	}
	return in
}
