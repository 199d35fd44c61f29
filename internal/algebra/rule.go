// Package algebra has the functions of store/step.go, exported, and functions of a rule
// that are computed from them, for packages that compute parameters of statements in Go.
// It also arranges batches by row.
package algebra

import (
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// Remaining returns the number of whole free tokens if used units are in use.
func Remaining(r *store.Rule, used int64) int64 { return TokensLeft(used, r.Unit, r.Cap) }

// Used returns the units of a row that are in use at now, or at its TS if that is later.
// The row is under the rule.
func Used(r *store.Rule, row store.State, now int64) int64 {
	switch t := max(now, row.TS); {
	case row.Used == 0 || t == row.TS:
		return row.Used
	case r.Every == 0:
		return LeftAfter(row.Used, tick(r, t)-tick(r, row.TS), r.Add, r.Enough)
	default:
		return LeftAfter(row.Used, TicksUpTo(row.TS, t, r.Origin, r.Every), r.Add, r.Enough)
	}
}

// TimeToFull returns the time in µs from now until nothing is used, if used units are
// in use at t.
func TimeToFull(r *store.Rule, used, t, now int64) int64 {
	if r.Every != 0 || used == 0 {
		return FullIn(used, t, now, r.Origin, r.Every, r.Add)
	}
	return boundary(r, tick(r, t)+TicksFor(used, r.Add)) - now
}

// Window returns the bounds of the window at now, in µs: the last tick at or before
// now, and the next one. A bucket's ticks are the bounds of its windows.
func Window(r *store.Rule, now int64) (start, end int64) {
	k := tick(r, now)
	if r.Every == 1 {
		return now, now + 1
	}
	return boundary(r, k), boundary(r, k+1)
}

// tick returns the number of the last tick at or before x.
func tick(r *store.Rule, x int64) int64 {
	if r.Calendar != nil {
		return r.Calendar.Tick(x - r.Origin)
	}
	return TickOf(x, r.Origin, r.Every)
}

// boundary returns the time of a tick.
func boundary(r *store.Rule, tick int64) int64 {
	if r.Calendar != nil {
		return r.Calendar.Boundary(tick) + r.Origin
	}
	return r.Origin + tick*r.Every
}

// CopyAnswer copies what a store has set in an op to another op of the same call.
func CopyAnswer(to, from *store.Op) {
	to.Answer, to.Def, to.Asked = from.Answer, from.Def, from.Asked
}

// Row returns the row of an op from its answer, with the override that decided it.
func Row(op *store.Op) store.State {
	row := store.State{Used: op.Used, TS: op.TS, Version: op.Def.Number}
	if op.Def.Override != nil {
		o := *op.Def.Override
		o.ID, o.Version = terms.OverrideOf(row.Version), op.Def.Base().Number // as of the row
		row.Override = &o
	}
	return row
}

// DecidedAt returns the time of the store's clock at which an op was answered, in µs. If
// the bucket is full, the answer does not contain that time, and DecidedAt returns TS.
func DecidedAt(op *store.Op) int64 {
	if op.Used == 0 {
		return op.TS
	}
	var scratch store.Rule
	return TimeToFull(op.RuleFor(&scratch), op.Used, op.TS, 0) - op.Reset
}

// AtEnd returns a check of op's bucket at the end of the override that decides it, by the
// limit itself, or nil if there is no such end before the time full, in µs.
func AtEnd(op *store.Op, full int64) *store.Op {
	o := op.Def.Override
	if o == nil || o.Until == 0 || o.Until >= full || op.Def.Algorithm == store.Concurrency {
		return nil
	}
	then := &store.Op{Def: op.Def.Base(), Key: op.Key, Verb: store.VerbCheck}
	_, _, _ = then.Step(o.Until, Row(op), true) // the row is not of a later version than its base
	return then
}
