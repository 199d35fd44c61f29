package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// What set.lua is asked of rows.
const (
	askPieces  = 0
	askRefund  = 1
	askCosts   = 2
	askAll     = 3
	askReserve = 4 // as askAll; a row that does not fit is closed
)

// Bounds of one call of set.lua, so that none keeps the server from others for
// long: about 0.1 ms.
const (
	maxRows  = 64
	maxCosts = 512 // what is asked of them, single costs counted
)

// A set is one call of set.lua: some rows, and what groups ask of them, in order.
// If nothing but pieces of its limit's cap are asked of each row, and at once, it
// is a call of take_many.lua instead.
type set struct {
	s      *Store
	rows   []setRow
	index  map[rowName]int // of rows
	limits []*entry
	asked  packed
	mixed  bool           // take_many.lua cannot decide it
	costs  int            // in asked
	groups []*store.Group // in the order in which they are decided
	of     []int          // rows of the groups' ops, one after the other
}

type rowName struct {
	e   *entry
	key string
}

type setRow struct {
	rowName
	name   string
	limit  int   // in set.limits, from 1
	origin int64 // of spread windows
	phase  store.Phase

	units, pieces int64 // for take_many.lua

	state   store.State
	left    bool // alone: it is of another version, has records, or is no bucket
	closed  bool // a reservation did not fit: the script charges nothing more
	written bool
}

// sets keeps the memory of sets for the next batch.
var sets = sync.Pool{New: func() any { return new(set) }}

func newSet(s *Store) *set {
	q := sets.Get().(*set)
	q.s = s
	return q
}

// free gives the set's memory back. Its answers must have been made.
func (q *set) free() {
	clear(q.rows)
	clear(q.limits)
	clear(q.groups)
	*q = set{rows: q.rows[:0], limits: q.limits[:0], asked: packed{b: q.asked.b[:0]}, groups: q.groups[:0], of: q.of[:0]}
	sets.Put(q)
}

// fits reports whether the set has room for a group, or for the calls about a row.
func (q *set) fits(rows, costs int) bool {
	return len(q.rows) == 0 || len(q.rows)+rows <= maxRows && q.costs+costs <= maxCosts
}

// agrees reports whether the set's entries of these limits are the same ones. A
// limit may change between two groups of a batch, and a set that had a bucket
// once under each entry would charge it twice from what was found.
func (q *set) agrees(known []*entry) bool {
	for _, e := range known {
		for _, l := range q.limits {
			if l != e && l.def.Name == e.def.Name {
				return false
			}
		}
	}
	return true
}

// row returns the number of a row in the set, from 0, and adds it if it is not there.
func (q *set) row(e *entry, op *store.Op) int {
	name := rowName{e, op.Key}
	if len(q.rows) <= fewRows {
		for i := range q.rows {
			if q.rows[i].rowName == name {
				return i
			}
		}
		return q.add(e, op, e.row(op.Key))
	}
	if q.index == nil {
		q.index = make(map[rowName]int, maxRows)
		for i := range q.rows {
			q.index[q.rows[i].rowName] = i
		}
	}
	if at, there := q.index[name]; there {
		return at
	}
	return q.add(e, op, e.row(op.Key))
}

// fewRows are compared one by one faster than a map finds one.
const fewRows = 8

// add appends a row that is not in the set. name is that of its key in Redis.
func (q *set) add(e *entry, op *store.Op, name string) int {
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
	if q.index != nil {
		q.index[r.rowName] = len(q.rows)
	}
	q.rows = append(q.rows, r)
	return len(q.rows) - 1
}

// settable reports whether set.lua can decide the op. alone says that it is the
// only one of its group.
func (e *entry) settable(op *store.Op, alone bool) bool {
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

// settable reports whether set.lua can decide the group.
func settable(g *store.Group, known []*entry) bool {
	for i := range g.Ops {
		if !known[i].settable(&g.Ops[i], len(g.Ops) == 1) {
			return false
		}
	}
	return !g.Cancel
}

// group appends a group of any number of ops. known are the entries of its limits.
func (q *set) group(g *store.Group, known []*entry) {
	if len(g.Ops) == 1 {
		q.run([]*store.Group{g}, q.row(known[0], &g.Ops[0]))
		return
	}
	kind := askAll
	for i := range g.Ops {
		if mayWait(&g.Ops[i]) {
			kind = askReserve
		}
	}
	q.mixed = true
	q.asked.add(int64(kind), int64(len(g.Ops)))
	q.groups = append(q.groups, g)
	for i := range g.Ops {
		op := &g.Ops[i]
		row := q.row(known[i], op)
		q.of = append(q.of, row)
		number := int64(row + 1)
		if op.Def.Mode == store.Shadow {
			number = -number
		}
		units, room := need(op)
		q.asked.add(number, units, room)
	}
	q.costs += len(g.Ops)
}

// mayWait reports whether the op is a Reserve that may be granted for later.
func mayWait(op *store.Op) bool {
	return op.Verb == store.VerbReserve && op.Def.Rule.Debt > 0
}

// need is what an op takes if no more than room is used: Rule.Apply for Take,
// Check, and Reserve without a delay. A room of -1 is never there.
func need(op *store.Op) (units, room int64) {
	r := &op.Def.Rule
	if op.Cost > r.Burst {
		return 0, -1
	}
	units = op.Cost * r.Unit
	if op.Verb == store.VerbCheck {
		return 0, algebra.RoomBefore(units, r.Cap)
	}
	return units, algebra.RoomBefore(units, r.Cap)
}

// run appends groups of one op, all about one row: calls of one verb that follow
// each other as one.
func (q *set) run(groups []*store.Group, row int) {
	for from := 0; from < len(groups); {
		verb, to := groups[from].Ops[0].Verb, from+1
		for to < len(groups) && groups[to].Ops[0].Verb == verb {
			to++
		}
		q.calls(verb, groups[from:to], int64(row+1))
		from = to
	}
	for _, g := range groups {
		q.groups, q.of = append(q.groups, g), append(q.of, row)
	}
}

// calls appends what calls of one verb ask of a row.
func (q *set) calls(verb store.Verb, groups []*store.Group, row int64) {
	q.costs++
	r := &groups[0].Ops[0].Def.Rule
	switch verb {
	case store.VerbTakeUpTo: // each takes single tokens while there are any
		if n := total(groups, store.MaxInt); n > 0 {
			q.pieces(row, r.Unit, r.Cap, n)
		}
	case store.VerbCharge: // and each single units, up to MaxUsed
		if n := unitsOf(total(groups, r.MaxCharge), r); n > 0 {
			q.pieces(row, 1, r.MaxUsed, n)
		}
	case store.VerbRefund:
		if n := unitsOf(total(groups, store.MaxInt), r); n > 0 {
			q.mixed = true
			q.asked.add(askRefund, row, n)
		}
	case store.VerbTake, store.VerbReserve:
		q.takes(groups, row)
	}
}

// pieces appends pieces of so many units, as many of n as fit below a cap.
func (q *set) pieces(row, units, most, n int64) {
	r := &q.rows[row-1]
	q.mixed = q.mixed || r.pieces > 0 || most != r.e.def.Rule.Cap
	r.units, r.pieces = units, n
	q.asked.add(askPieces, row, units, most, n)
}

// total adds up costs, each at most so much, to MaxInt at the most.
func total(groups []*store.Group, most int64) (sum int64) {
	for _, g := range groups {
		if cost := g.Ops[0].Cost; cost <= most {
			sum = min(sum+cost, store.MaxInt)
		}
	}
	return sum
}

// takes appends what Takes or Reserves ask of a row.
func (q *set) takes(groups []*store.Group, row int64) {
	r, reserve := &groups[0].Ops[0].Def.Rule, mayWait(&groups[0].Ops[0])
	var sum, n, units int64
	alike := true
	for _, g := range groups {
		if one := unitsOfOne(g.Ops[0].Cost, r, reserve); one > 0 {
			alike = alike && (n == 0 || one == units)
			sum, n, units = min(sum+one, tooMany), n+1, one
		}
	}
	switch {
	case n == 0:
		return
	case reserve && n == 1 && units < tooMany:
		q.mixed = true
		q.asked.add(askReserve, 1, row, units, algebra.RoomBefore(units, r.Cap))
		return
	case alike && !reserve:
		q.pieces(row, units, r.Cap, n)
		return
	}
	q.mixed = true
	stop := int64(0)
	if reserve {
		stop = 1
	}
	q.asked.add(askCosts, row, sum, r.Cap, stop, n)
	for _, g := range groups {
		if one := unitsOfOne(g.Ops[0].Cost, r, reserve); one > 0 {
			q.asked.add(one)
		}
	}
	q.costs += int(n)
}

// tooMany units fit nowhere.
const tooMany = store.MaxInt + 1

// unitsOfOne is what one of several Takes or Reserves asks for; 0: it changes nothing.
func unitsOfOne(cost int64, r *store.Rule, reserve bool) int64 {
	switch {
	case cost <= r.Burst:
		return cost * r.Unit
	case reserve:
		return tooMany // it fits with a delay at best
	}
	return 0
}

// call makes the call of the set.
func (q *set) call(ctx context.Context) call {
	args := make([]any, 3, 5+len(q.rows))
	for i := range q.rows {
		args = append(args, q.rows[i].name)
	}
	args[2] = len(q.rows)
	head := packed{b: make([]byte, arrayHead, arrayHead+33*len(q.limits)+12*len(q.rows)+len(q.asked.b))}
	head.add(int64(len(q.limits)))
	for _, e := range q.limits {
		r := &e.def.Rule
		head.add(int64(e.def.Number), r.Every, r.Add, r.Origin)
		if !q.mixed {
			head.add(r.Cap)
		}
	}
	for i := range q.rows {
		r := &q.rows[i]
		if r.e.def.Rule.Spread {
			head.add(-int64(r.limit), r.origin)
		} else {
			head.add(int64(r.limit))
		}
		if !q.mixed {
			head.add(max(r.units, 1), r.pieces) // of a row that is only looked at, none
		}
	}
	writes := false
	for _, g := range q.groups {
		writes = writes || g.Ops[0].Verb != store.VerbCheck
	}
	script, asked := q.s.scripts.takeMany, &packed{}
	if q.mixed {
		script, asked = q.s.scripts.set, &q.asked
	}
	c := newCall(ctx, script, writes, q.s.withClock(append(args, head.array(asked))))
	c.split = len(q.rows) > 1
	return c
}

// settle makes the answers from what set.lua returned. It returns the groups
// that have to be asked by themselves.
func (q *set) settle(words string) (rest []*store.Group, err error) {
	if words == "" {
		return q.groups, nil
	}
	head, words, _ := strings.Cut(words, "\n")
	now, written, ok := clockOf(head)
	for i := range q.rows {
		var line string
		line, words, _ = strings.Cut(words, "\n")
		r := &q.rows[i]
		r.state = store.State{}
		if r.left = line == "-"; !r.left && line != "" && ok {
			r.state, ok = parseRow(line)
		}
	}
	if !ok {
		return nil, fmt.Errorf("%w: the script answered %q", store.ErrOutcomeUnknown, head)
	}
	at := 0
	for _, g := range q.groups {
		rows, done := q.of[at:at+len(g.Ops)], false
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

// decide makes the answer of a group of one op. Not done: the group has to be
// asked by itself, and the script has charged nothing for it.
func (r *setRow) decide(g *store.Group, now int64) (done bool) {
	if r.left {
		return false
	}
	op := &g.Ops[0]
	op.Phase = r.phase
	next, wrote, err := op.Step(now, r.state, false)
	g.Err, g.Allowed, g.Reserved = err, op.Allowed, false
	waits := op.Delay > 0 && wrote
	if waits || wrote && r.closed {
		r.closed, r.left = true, true
		return false
	}
	if !op.Allowed && op.Cost > 0 && mayWait(op) {
		r.closed = true
	}
	if wrote {
		r.state, r.written = next, true
	}
	return true
}

// decide is that of a row for a group of several ops.
func (q *set) decide(g *store.Group, at []int, now int64) (done bool) {
	var rows [store.MaxTakes]store.State
	var write [store.MaxTakes]bool
	left, closed := false, false
	for i, row := range at {
		r := &q.rows[row]
		rows[i], left, closed = r.state, left || r.left, closed || r.closed
		g.Ops[i].Phase = r.phase
	}
	if g.Allowed = false; !left {
		g.Err = g.Decide(now, rows[:len(at)], write[:len(at)])
	}
	if !g.Allowed || g.Reserved {
		q.close(g, at, now)
	}
	if left || g.Reserved || closed && anyOf(write[:len(at)]) {
		g.Reserved = false
		q.leave(at)
		return false
	}
	for i, row := range at {
		if r := &q.rows[row]; write[i] {
			r.state, r.written = rows[i], true
		}
	}
	return true
}

// leave has all that comes after a group which is left wait for it, as far as
// the script has not charged it.
func (q *set) leave(at []int) {
	for _, row := range at {
		r := &q.rows[row]
		r.left = r.left || r.closed
	}
}

// close closes the rows in which a group with a Reserve does not fit now.
func (q *set) close(g *store.Group, at []int, now int64) {
	reserves := false
	for i := range g.Ops {
		reserves = reserves || mayWait(&g.Ops[i])
	}
	if !reserves {
		return
	}
	for i, row := range at {
		r, op := &q.rows[row], &g.Ops[i]
		if r.left || op.Def.Mode == store.Shadow {
			continue
		}
		var scratch store.Rule
		room := int64(-1)
		if op.Cost <= op.Def.Rule.Burst {
			room = algebra.RoomBefore(op.Cost*op.Def.Rule.Unit, op.Def.Rule.Cap)
		}
		if op.RuleFor(&scratch).Apply(r.state, now, store.VerbCheck, 0).Before > room {
			r.closed = true
		}
	}
}

// clockOf reads the first line of what set.lua returns.
func clockOf(line string) (now int64, written int, ok bool) {
	seconds, rest, _ := strings.Cut(line, " ")
	micros, count, _ := strings.Cut(rest, " ")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	written, err3 := strconv.Atoi(count)
	return s*1e6 + us, written, err1 == nil && err2 == nil && err3 == nil
}

// packed is integers in MessagePack.
type packed struct {
	b []byte
	n int
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

// arrayHead is the room that array needs before the integers.
const arrayHead = 5

// array returns an array of the integers and then those of more.
func (p *packed) array(more *packed) []byte {
	p.b[0] = 0xdd
	binary.BigEndian.PutUint32(p.b[1:], uint32(p.n+more.n))
	return append(p.b, more.b...)
}
