package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// Bounds of one call of set.lua, so that the server is busy for about 0.1 ms at most.
const (
	maxRows  = 64
	maxCosts = 512 // most requests in a call; each op of a group counts
)

// A setCall is one call of set.lua. It has rows, and requests for them by groups, in
// order.
type setCall struct {
	s        *Store
	rows     []setRow
	limits   []*entry
	requests packed
	last     run            // a run that is not in requests yet
	costs    int            // number of requests
	groups   []*store.Group // groups in the order of decision
	opRows   []int          // by op, in the order of groups: index of its row in rows
}

// A run is a request of several equal takes, of which as many as fit are granted, up to count.
type run struct{ row, units, room, count int64 }

type rowName struct {
	e   *entry
	key string
}

type setRow struct {
	rowName
	name   string
	limit  int   // index of the row's limit in limits, from 1
	origin int64 // origin of its windows, if these are spread
	phase  int64
	bare   bool // the row must have no records, because a charge may make it live longer than they do

	state   store.State
	skipped bool // not decided, because the row has another version or records, or is not a bucket
	written bool
}

// fits reports whether there is room for a group, or for the calls of a row.
func (q *setCall) fits(rows, costs int) bool {
	return len(q.rows) == 0 || len(q.rows)+rows <= maxRows && q.costs+costs <= maxCosts
}

// sameEntries reports whether the call has no other entry for one of these
// limits. A limit may change between two groups of a batch; a bucket under both
// entries would then be charged twice from the same state.
func (q *setCall) sameEntries(known []*entry) bool {
	for _, e := range known {
		for _, l := range q.limits {
			if l != e && l.def.Name == e.def.Name {
				return false
			}
		}
	}
	return true
}

// rowIndex returns the index of a row, which is added if missing.
func (q *setCall) rowIndex(e *entry, op *store.Op) int {
	name := rowName{e, op.Key}
	for i := range q.rows {
		if q.rows[i].rowName == name {
			return i
		}
	}
	return q.addRow(e, op, e.row(op.Key))
}

// addRow appends a row. name is its name in Redis.
func (q *setCall) addRow(e *entry, op *store.Op, name string) int {
	limit := len(q.limits)
	for limit > 0 && q.limits[limit-1] != e {
		limit--
	}
	if limit == 0 {
		q.limits = append(q.limits, e)
		limit = len(q.limits)
	}
	r := setRow{rowName: rowName{e, op.Key}, name: name, limit: limit}
	if e.def.Rule.Spread {
		var scratch store.Rule
		r.origin, r.phase = op.RuleFor(&scratch).Origin, op.Phase
	}
	q.rows = append(q.rows, r)
	return len(q.rows) - 1
}

// canUseSet reports whether set.lua can decide the op, which must not be a Reserve that may be
// granted with a delay. alone is true if it is the only op of its group.
func (e *entry) canUseSet(op *store.Op, alone bool) bool {
	return e.override == nil && (op.Verb != store.VerbReserve || op.Def.Rule.Debt == 0) && e.canUseScript(op, alone)
}

// canUseScript is canUseSet for take_one.lua, which can decide under overrides too.
func (e *entry) canUseScript(op *store.Op, alone bool) bool {
	if !e.even {
		return false
	}
	switch op.Verb {
	case store.VerbTake, store.VerbCheck:
		return true
	case store.VerbReserve:
		return op.Def.Mode != store.Shadow && (!op.Bounded || op.MaxDelay >= 0)
	case store.VerbReset:
		return false
	}
	return alone
}

// canUseSet reports whether set.lua can decide the group.
func canUseSet(g *store.Group, known []*entry) bool {
	if g.Cancel || g.Hold != nil {
		return false
	}
	for i := range g.Ops {
		if !known[i].canUseSet(&g.Ops[i], len(g.Ops) == 1) {
			return false
		}
	}
	return true
}

// addGroup appends a group. known are the entries of its limits.
func (q *setCall) addGroup(g *store.Group, known []*entry) {
	if len(g.Ops) == 1 {
		q.addSingle(g, q.rowIndex(known[0], &g.Ops[0]))
		return
	}
	q.flush()
	q.requests.add(1, int64(len(g.Ops)))
	q.groups = append(q.groups, g)
	for i := range g.Ops {
		op := &g.Ops[i]
		row := q.rowIndex(known[i], op)
		q.opRows = append(q.opRows, row)
		number := int64(row + 1)
		if op.Def.Mode == store.Shadow {
			number = -number
		}
		units, room := takeArgs(op)
		q.requests.add(number, units, room)
	}
	q.costs += len(g.Ops)
}

// takeArgs returns the units that an op takes, and how many may be used before it:
// Op.Step for Take, Check, and Reserve without a delay. A room of -1 means never.
func takeArgs(op *store.Op) (units, room int64) {
	r := &op.Def.Rule
	if op.Cost+op.Floor > r.Burst {
		return 0, -1
	}
	most := r.Cap - op.Floor*r.Unit
	if units = op.Cost * r.Unit; op.Fraction > 0 {
		units = algebra.PricedUnits(units, op.Fraction, most)
	}
	room = most - units
	if op.Verb == store.VerbCheck {
		units = 0
	}
	return units, room
}

// addSingle appends a group of one op for a row.
func (q *setCall) addSingle(g *store.Group, row int) {
	q.groups, q.opRows = append(q.groups, g), append(q.opRows, row)
	op, number := &g.Ops[0], int64(row+1)
	r := &op.Def.Rule
	switch op.Verb {
	case store.VerbTakeUpTo: // one token at a time while there are tokens
		q.takes(run{number, r.Unit, r.Cap - r.Unit, op.Cost})
	case store.VerbCharge: // one unit at a time, up to MaxUsed
		q.rows[row].bare = true
		if op.Cost <= op.Def.MostCharge() {
			q.takes(run{number, 1, r.MaxUsed - 1, algebra.UnitsOf(op.Cost, r.Unit)})
		}
	case store.VerbRefund:
		if op.Cost > 0 {
			q.flush()
			q.requests.add(0, number, algebra.UnitsOf(op.Cost, r.Unit))
			q.costs++
		}
	case store.VerbTake, store.VerbReserve:
		if units, room := takeArgs(op); units > 0 {
			q.takes(run{number, units, room, 1})
		}
	}
}

// takes adds a request for takes. They join the last request if only the number of takes
// differs.
func (q *setCall) takes(r run) {
	if l := q.last; r.row != l.row || r.units != l.units || r.room != l.room {
		q.flush()
	}
	r.count = min(r.count+q.last.count, store.MaxInt)
	q.last = r
}

// flush appends the last run of takes to the requests.
func (q *setCall) flush() {
	if l := q.last; l.count > 0 {
		q.requests.add(l.count, 1, l.row, l.units, l.room)
		q.costs++
	}
	q.last = run{}
}

// call returns the call of set.lua.
func (q *setCall) call(ctx context.Context) call {
	q.flush()
	args := make([]any, 3, 5+len(q.rows))
	for i := range q.rows {
		args = append(args, q.rows[i].name)
	}
	args[2] = len(q.rows)
	head := newPacked(33*len(q.limits) + 12*len(q.rows) + len(q.requests.b))
	head.add(int64(len(q.limits)))
	for _, e := range q.limits {
		r := &e.def.Rule
		head.add(int64(e.def.Number), r.Every, r.Add, r.Origin)
	}
	for i := range q.rows {
		r := &q.rows[i]
		limit := 2 * int64(r.limit)
		if r.bare {
			limit++
		}
		if r.e.def.Rule.Spread {
			head.add(-limit, r.origin)
		} else {
			head.add(limit)
		}
	}
	writes := false
	for _, g := range q.groups {
		writes = writes || g.Ops[0].Verb != store.VerbCheck
	}
	c := q.s.call(ctx, q.s.scripts.set, writes, append(args, head.array(&q.requests)))
	c.divisible = len(q.rows) > 1
	return c
}

// answer fills in the answers from the reply. answer returns the groups that
// must be decided one by one.
func (q *setCall) answer(words string) (rest []*store.Group, err error) {
	if words == "" {
		return q.groups, nil
	}
	head, words, _ := strings.Cut(words, "\n")
	now, count, ok := clockOf(head)
	written, err := strconv.Atoi(count)
	ok = ok && err == nil
	for i := range q.rows {
		var line string
		line, words, _ = strings.Cut(words, "\n")
		r := &q.rows[i]
		r.state = store.State{}
		if r.skipped = line == "-"; !r.skipped && ok {
			var row storedRow
			row, ok = parseRow(line)
			r.state = row.State
		}
	}
	if !ok {
		return nil, fmt.Errorf("%w: the script answered %q", store.ErrOutcomeUnknown, head)
	}
	at := 0
	for _, g := range q.groups {
		rows, done := q.opRows[at:at+len(g.Ops)], false
		if at += len(rows); len(rows) == 1 {
			done = q.rows[rows[0]].decide(g, now)
		} else {
			done = q.decide(g, rows, now)
		}
		if !done {
			rest = append(rest, g)
		}
	}
	for i := range q.rows {
		if q.rows[i].written {
			written--
		}
	}
	if written != 0 {
		return nil, fmt.Errorf("%w: the script and the program disagree about %s and others", store.ErrOutcomeUnknown, q.rows[0].name)
	}
	return rest, nil
}

// decide fills in the answer of a group of one op. If done is false, the script
// has charged nothing for the group, which must be decided separately.
func (r *setRow) decide(g *store.Group, now int64) (done bool) {
	if r.skipped {
		return false
	}
	op := &g.Ops[0]
	op.Phase = r.phase
	next, wrote, err := op.Step(now, r.state, false)
	boundByHolds(op, &r.state)
	g.Err, g.Allowed, g.Reserved = err, op.Allowed, false
	if wrote {
		r.state, r.written = next, true
	}
	return true
}

// This decide is for a group of several ops.
func (q *setCall) decide(g *store.Group, at []int, now int64) (done bool) {
	var rows [store.MaxTakes]store.State
	var write [store.MaxTakes]bool
	for i, row := range at {
		r := &q.rows[row]
		if r.skipped {
			return false
		}
		rows[i], g.Ops[i].Phase = r.state, r.phase
	}
	g.Allowed = false
	g.Err = g.Decide(now, rows[:len(at)], write[:len(at)])
	for i, row := range at {
		r := &q.rows[row]
		if boundByHolds(&g.Ops[i], &r.state); write[i] {
			r.state, r.written = rows[i], true
		}
	}
	return true
}

// clockOf decodes seconds and microseconds, which begin the reply of a script.
func clockOf(reply string) (now int64, rest string, ok bool) {
	seconds, rest, _ := strings.Cut(reply, " ")
	micros, rest, _ := strings.Cut(rest, " ")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	return s*1e6 + us, rest, err1 == nil && err2 == nil
}

// packed is a list of integers in the encoding MessagePack.
type packed struct {
	b []byte
	n int
}

// newPacked returns a list with room for bytes before it grows.
func newPacked(bytes int) *packed {
	return &packed{b: make([]byte, arrayHead, arrayHead+bytes)}
}

func (p *packed) add(list ...int64) {
	p.n += len(list)
	for _, n := range list {
		switch {
		case 0 <= n && n <= math.MaxInt8:
			p.b = append(p.b, byte(n))
		case 0 <= n && n <= math.MaxUint16:
			p.b = binary.BigEndian.AppendUint16(append(p.b, 0xcd), uint16(n))
		case 0 <= n && n <= math.MaxUint32:
			p.b = binary.BigEndian.AppendUint32(append(p.b, 0xce), uint32(n))
		default:
			p.b = binary.BigEndian.AppendUint64(append(p.b, 0xd3), uint64(n))
		}
	}
}

// arrayHead is the space that array needs before the integers.
const arrayHead = 5

// array returns a MessagePack array of the integers, followed by those of more.
func (p *packed) array(more *packed) []byte {
	p.b[0] = 0xdd
	binary.BigEndian.PutUint32(p.b[1:], uint32(p.n+more.n))
	return append(p.b, more.b...)
}
