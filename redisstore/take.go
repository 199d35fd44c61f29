package redisstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/store"
)

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
// the op is not one that takes its whole cost or nothing.
func (s *Store) take(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op := &g.Ops[0]
	units, room := takeArgs(op)
	if units == 0 {
		room = -1 // the op takes nothing and only answers
	}
	args, name := append(make([]any, 0, 10), nil, nil), e.row(op.Key)
	if e.override == nil {
		args = append(args, 1, name, op.Def.Number, op.Def.Rule.Add, units, room)
	} else {
		args = append(args, 2, name, name, op.Def.Number, op.Def.Rule.Add, units, room, e.until)
	}
	c, err := s.process(ctx, s.call(ctx, s.scripts.takeOne, op.Verb != store.VerbCheck, args))
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

// boundByHolds sets Bound of an op that a script has decided: only a row with live holds
// has lows then.
func boundByHolds(op *store.Op, row *store.State) {
	if row.Lows != nil && (!op.Allowed || op.Shadow) && !op.Never {
		op.Bound = true
	}
}

// decideBySet decides a group by set.lua. If done is false, the script did nothing.
func (s *Store) decideBySet(ctx context.Context, g *store.Group, known []*entry) (done bool, err error) {
	q := &setCall{s: s}
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
