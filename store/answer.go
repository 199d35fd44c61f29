package store

import "github.com/dipwell/dipwell/internal/terms"

// CopyAnswer copies what a store has set in another op of the same call.
func (op *Op) CopyAnswer(from *Op) { op.Answer, op.Def, op.Asked = from.Answer, from.Def, from.Asked }

// Row returns the row of an op from its answer, with the override that decided it.
func (op *Op) Row() State {
	row := State{Used: op.Used, TS: op.TS, Version: op.Def.Number}
	if op.Def.Override != nil {
		o := *op.Def.Override
		o.ID, o.Version = terms.OverrideOf(row.Version), op.Def.Base().Number // the version as of the row
		row.Override = &o
	}
	return row
}

// DecidedAt returns the time of the store's clock at which an op was answered, in µs. If the
// bucket is full, the answer does not contain the time of the decision, and DecidedAt returns
// TS.
func (op *Op) DecidedAt() int64 {
	if op.Used == 0 {
		return op.TS
	}
	var scratch Rule
	return op.RuleFor(&scratch).TimeToFull(op.Used, op.TS, 0) - op.Reset
}

// AtEnd returns a check of op's bucket, by the limit itself, at the end of the override
// that decides op, or nil if the override does not end before the time full, in µs.
func (op *Op) AtEnd(full int64) *Op {
	o := op.Def.Override
	if o == nil || o.Until == 0 || o.Until >= full || op.Def.Algorithm == Concurrency {
		return nil
	}
	then := &Op{Def: op.Def.Base(), Key: op.Key, Verb: VerbCheck}
	_, _, _ = then.Step(o.Until, op.Row(), true) // no error, because the row is not of a later version than its base
	return then
}
