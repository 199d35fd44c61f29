package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// constArgs are script arguments that never change, converted once.
type constArgs struct {
	version, add any
	one, room    any // the units of a cost of 1, and how many may be used before
}

func newConstArgs(d *store.Definition) constArgs {
	r := &d.Rule
	n := func(i int64) any { return strconv.FormatInt(i, 10) }
	return constArgs{strconv.FormatUint(uint64(d.Number), 10), n(r.Add), n(r.Unit), n(r.Cap - r.Unit)}
}

var boxedOne, boxedTwo any = "1", "2"

// canTakeOne reports whether take_one.lua can decide the op: a bucket that
// refills continuously, and a verb that takes its whole cost or nothing.
func (e *entry) canTakeOne(op *store.Op) bool {
	switch op.Verb {
	case store.VerbTake, store.VerbCheck, store.VerbReserve:
		return e.def.Rule.Every == 1 && e.canUseScript(op, true)
	}
	return false
}

// take decides one call by take_one.lua. If done is false, the script did nothing, because
// the op needs more than to take its whole cost or nothing.
func (s *Store) take(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op := &g.Ops[0]
	args := make([]any, 4, 9)
	args[2], args[3] = boxedOne, e.row(op.Key)
	if e.override != nil {
		args[2], args = boxedTwo, append(args, args[3])
	}
	units, room := e.one, e.room
	if op.Cost != 1 || op.Floor > 0 || op.Fraction > 0 || op.Verb == store.VerbCheck {
		units, room = takeOneArgs(op)
	}
	if args = append(args, e.version, e.add, units, room); e.override != nil {
		args = append(args, e.until)
	}
	c, err := s.process(ctx, newCall(ctx, s.scripts.takeOne, op.Verb != store.VerbCheck, s.withClock(args)))
	if err != nil || strings.HasPrefix(c.str(), "-") {
		return false, err
	}
	now, text, ok := clockOf(c.str())
	row, ok2 := parseRow(text)
	if !ok || !ok2 {
		return false, fmt.Errorf("%w: the script answered %q", store.ErrOutcomeUnknown, c.str())
	}
	row.Override = e.override
	_, wrote, err := op.Step(now, row.State, false)
	if wrote && op.Delay > 0 {
		return false, nil
	}
	boundByHolds(op, &row.State)
	g.Allowed, g.Reserved = op.Allowed, false
	return true, err
}

// boundByHolds sets Bound of an op that a script has decided on a row: only a row with live
// holds has lows then.
func boundByHolds(op *store.Op, row *store.State) {
	if row.Lows != nil && (!op.Allowed || op.Shadow) && !op.Never {
		op.Bound = true
	}
}

// takeOneArgs returns the units that an op takes, and how many may be used
// before it. With a room of -1 the script takes nothing and only answers.
func takeOneArgs(op *store.Op) (units, room int64) {
	if op.Cost == 0 || op.Verb == store.VerbCheck {
		return 0, -1
	}
	return takeArgs(op)
}

// decideBySet decides a group by set.lua. If done is false, the script did
// nothing.
func (s *Store) decideBySet(ctx context.Context, g *store.Group, known []*entry) (done bool, err error) {
	q := newSetCall(s)
	defer q.free()
	q.addGroup(g, known)
	c := q.call(ctx)
	c.divisible = false
	c, err = s.process(ctx, c)
	if err != nil {
		return false, err
	}
	rest, err := q.answer(c.str())
	if err == nil {
		err = g.Err
	}
	return len(rest) == 0, err
}
