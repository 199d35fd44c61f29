package redisstore

import (
	"context"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell"
)

// fixed are the words of a take that are always the same, boxed once.
type fixed struct {
	version, add, cap, every, origin any
	one, room                        any // units of a cost of 1, and what may be used before it
}

func newFixed(d *dipwell.Definition) fixed {
	r := &d.Rule
	n := func(i int64) any { return strconv.FormatInt(i, 10) }
	f := fixed{strconv.FormatUint(uint64(d.Number), 10), n(r.Add), n(r.Cap), n(r.Every), n(r.Origin), n(r.Unit), n(r.Cap - r.Unit)}
	if r.Spread {
		f.origin = "" // each row has its own
	}
	return f
}

func (f *fixed) units(cost int64, r *dipwell.Rule) any {
	if cost == 1 {
		return f.one
	}
	return cost * r.Unit
}

var boxedOne any = "1"

// plain reports whether the op is a take of at least one token that may fit,
// of a limit whose windows are as long as one another.
func (e *entry) plain(op *dipwell.Op) bool {
	return op.Verb == dipwell.VerbTake && e.even && op.Cost > 0 && op.Cost <= e.def.Rule.Burst
}

// take decides one take. The row comes back as it was found, and makes the answer.
func (s *Store) take(ctx context.Context, g *dipwell.Group, e *entry) error {
	op := &g.Ops[0]
	r := &e.def.Rule
	args := make([]any, 4, 13)
	args[2], args[3] = boxedOne, e.row(op.Key)
	if r.Every == 1 {
		units, room := e.one, e.room
		if op.Cost != 1 {
			units, room = op.Cost*r.Unit, r.Cap-op.Cost*r.Unit
		}
		args = append(args, e.version, e.add, units, room)
		c, err := s.answered(ctx, newCall(ctx, s.scripts.takeOne, true, s.withClock(args)))
		if err != nil {
			return err
		}
		now, row, ok := found(c.words())
		if !ok {
			return s.decide(ctx, g, []*entry{e}, true)
		}
		return settle(g, now, e.state(row.Used, row.TS))
	}
	args = append(args, e.version, e.add, e.cap, e.every, e.origin, e.units(op.Cost, r), boxedOne)
	if r.Spread {
		var scratch dipwell.Rule
		args = append(args, e.def.RuleFor(op.Key, &scratch).Origin)
	}
	v, err := s.run(ctx, newCall(ctx, s.scripts.take, true, s.withClock(args)))
	if err != nil {
		return err
	}
	if v[1] < 0 {
		return s.decide(ctx, g, []*entry{e}, true)
	}
	return settle(g, v[0], e.state(v[1], v[2]))
}

// settle makes the answer from a row that was found at now.
func settle(g *dipwell.Group, now int64, found dipwell.State) error {
	op := &g.Ops[0]
	_, _, err := op.Step(now, found, false)
	g.Allowed, g.Reserved = op.Allowed, false
	return err
}

// found reads what take_one.lua returns: seconds, microseconds, and perhaps a row.
func found(words string) (now int64, row dipwell.State, ok bool) {
	seconds, rest, _ := strings.Cut(words, " ")
	micros, text, there := strings.Cut(rest, " ")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	if err1 != nil || err2 != nil {
		return 0, row, false
	}
	if there {
		row, ok = parseRow(text)
	}
	return s*1e6 + us, row, ok || !there
}

// state is a row of the present version.
func (e *entry) state(used, ts int64) dipwell.State {
	return dipwell.State{Used: used, TS: ts, Version: e.def.Number}
}
