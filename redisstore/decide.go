package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// First element of decide.lua's reply.
const (
	undecided    = 1
	otherWindow  = 2
	needBoundary = 3
	needRecords  = 4
)

// A decision is one call of decide.lua, for a group of any kind.
type decision struct {
	s       *Store
	g       *store.Group
	entries []*entry
	rules   []store.Rule // by op; with the key's own origin, if origins are spread
	rows    []string
	rates   []*fixedRate // by op; nil unless the limit is adaptive
	args    []any

	next    int64              // the server's clock, if it was not in the window that was sent
	needed  []calendarBoundary // by op: the last boundary that decide.lua lacked; zero: none
	records bool               // rows may have records, so that the names of their keys are sent too
	inGo    bool               // the script cannot decide the group
}

// A calendarBoundary is the number-th boundary of a calendar after t. Number 0 is none.
type calendarBoundary struct{ number, t int64 }

// maxBoundaries is the number of calendar boundaries in a call.
const maxBoundaries = 32

// decide decides a group by decide.lua. It calls the script again as long as something
// must be prepared first, such as a calendar boundary that the script lacked. records
// tells whether the rows may have records.
func (s *Store) decide(ctx context.Context, g *store.Group, entries []*entry, records bool) error {
	now, needed := s.estimateNow(), []calendarBoundary(nil)
	for range maxRounds + len(g.Ops) { // each op may lack a boundary
		d, err := s.newDecision(g, entries, now, needed, records)
		if err != nil {
			return err
		}
		if err = s.registerReservation(ctx, d); err != nil {
			return err
		}
		v, err := s.run(ctx, d.call(ctx))
		if err != nil {
			return err
		}
		done, err := d.answer(v)
		if d.inGo {
			done, err = true, s.decideInGo(ctx, g, nil)
		}
		if done || err != nil {
			s.unregisterReservation(ctx, d)
			return err
		}
		records, needed = d.records, d.needed
		if now = d.next; now == 0 {
			now = s.estimateNow()
		}
	}
	return errRetry
}

func (s *Store) newDecision(g *store.Group, entries []*entry, now int64, needed []calendarBoundary, records bool) (*decision, error) {
	n := len(g.Ops)
	d := &decision{s: s, g: g, entries: append([]*entry(nil), entries...), rules: make([]store.Rule, n), rows: make([]string, n), rates: make([]*fixedRate, n), needed: needed}
	reserves := mayReserve(g)
	d.records = records || reserves || resets(g)
	for i := range g.Ops {
		d.rules[i] = *g.Ops[i].RuleFor(&d.rules[i])
		d.rows[i] = entries[i].row(g.Ops[i].Key)
	}
	if err := s.names.oneSlot(g, entries); err != nil {
		return nil, err
	}
	d.args = append(make([]any, 0, 3+3*n+1+4+14*n), nil, nil, nil)
	for _, row := range d.rows {
		d.args = append(d.args, row)
	}
	if d.records {
		d.args = s.names.appendLists(d.args, n, func(i int) (limit, key string) { return entries[i].def.Name, g.Ops[i].Key })
	}
	id, parts := "", ""
	if reserves {
		if id, parts = g.ID.String(), partLines(g); !s.names.cluster {
			d.args = append(d.args, s.names.reservation(g.ID))
		}
	}
	rates := 0
	for i, e := range entries {
		if e.rate == nil {
			continue
		}
		if d.rates[i] = e.rate.used.Load(); !s.names.cluster {
			d.args, rates = append(d.args, s.names.rate(e.def.Name)), rates+1
		}
	}
	d.args[2] = len(d.args) - 3
	d.args = append(d.args, n, id, parts, rates)
	for i := range g.Ops {
		d.args = d.appendOp(d.args, i, now)
	}
	d.args = s.withClock(d.args)
	return d, nil
}

func (d *decision) call(ctx context.Context) call {
	return newCall(ctx, d.s.scripts.decide, writes(d.g), d.args)
}

// appendOp appends the arguments of an op.
func (d *decision) appendOp(args []any, i int, now int64) []any {
	op, r, e := &d.g.Ops[i], &d.rules[i], d.entries[i]
	kind, units, room, flags, most := opTerms(op, r)
	if op.Def.Mode == store.Shadow && op.Verb != store.VerbCharge {
		flags += "s"
	}
	if r.Every > 0 {
		return append(args, kind, units, room, r.Cap, r.Every, r.Origin, r.Add, e.version, flags, most, "", "", "", e.until)
	}
	if rate := d.rates[i]; rate != nil {
		levels := rate.levels
		if !d.s.names.cluster {
			levels = e.rate.unobserved()
		}
		return append(args, kind, units, room, r.Cap, 0, 0, r.Add, e.version, flags+"a", most, int64(store.MaxInt), rate.revision, levels, e.until)
	}
	start, end := algebra.Window(r, now)
	list := ""
	if strings.Contains(flags, "d") {
		list = listBoundaries(r, now, d.boundary(i))
	}
	return append(args, kind, units, room, r.Cap, 0, start, r.Add, e.version, flags, most, end, longestWindow(r), list, e.until)
}

// opTerms translates an op into the arguments of decide.lua, following Op.Step.
func opTerms(op *store.Op, r *store.Rule) (kind string, units, room int64, flags string, most any) {
	most = ""
	verb := op.Verb
	reserve := verb == store.VerbReserve && (op.Cost > 0 || r.Leaky) || r.Leaky && (verb == store.VerbTake || verb == store.VerbCheck)
	switch {
	case reserve:
		if op.Cost > r.Most {
			return "n", 0, 0, "", most
		}
		if flags = "d"; verb != store.VerbCheck {
			flags = "dw"
		}
		if op.Bounded && verb == store.VerbReserve {
			most = op.MaxDelay
		}
		return "t", unitsOf(op.Cost, r), r.Cap + r.Debt, flags, most
	case verb == store.VerbTake, verb == store.VerbCheck, verb == store.VerbReserve, verb == store.VerbTakeUpTo && op.Cost == 0:
		if op.Cost+op.Floor > r.Burst {
			return "n", 0, 0, "", most
		}
		if verb == store.VerbTake {
			flags = "w"
		}
		return "t", unitsOf(op.Cost, r), r.Cap - unitsOf(op.Floor, r), flags, most
	case verb == store.VerbTakeUpTo:
		if r.Burst == 0 {
			return "n", 0, 0, "", most
		}
		return "u", op.Cost, r.Unit, "w", most
	case verb == store.VerbCharge:
		if op.Cost > r.MaxCharge {
			return "n", 0, 0, "", most
		}
		return "c", unitsOf(op.Cost, r), r.MaxUsed, "w", most
	case verb == store.VerbRefund:
		return "r", unitsOf(op.Cost, r), 0, "w", most
	}
	return "x", 0, 0, "w", most
}

func unitsOf(tokens int64, r *store.Rule) int64 { return algebra.UnitsOf(tokens, r.Unit) }

// longestWindow returns an upper bound of the length of a calendar's windows, in µs. It
// adds a day, for changes to and from summer time.
func longestWindow(r *store.Rule) int64 {
	const day = int64(86400e6)
	c := r.Calendar.Spec()
	return (31*c.Months + c.Days + 1) * day
}

// boundary returns the boundary that an op lacked in the last call, or none.
func (d *decision) boundary(i int) (b calendarBoundary) {
	if d.needed != nil {
		b = d.needed[i]
	}
	return b
}

// listBoundaries encodes boundaries of a calendar.
func listBoundaries(r *store.Rule, now int64, needed calendarBoundary) string {
	t, first := now, int64(1)
	if needed.number > 0 {
		t, first = needed.t, max(1, needed.number-4)
	}
	start, end := algebra.Window(r, t)
	b := strconv.AppendInt(nil, start, 10)
	for _, n := range [...]int64{end, first} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	for i := range int64(maxBoundaries) {
		b = strconv.AppendInt(append(b, ' '), t+algebra.TimeToFull(r, (first+i)*r.Add, t, t), 10)
	}
	return string(b)
}

// answer fills in the answers from the reply, or sets what must be prepared
// before the next call.
func (d *decision) answer(v []int64) (done bool, err error) {
	d.next = 0
	now := v[1]
	d.s.noteClock(now)
	switch v[0] {
	case undecided:
		d.inGo = true
		return false, nil
	case otherWindow:
		d.next = now
		return false, nil
	case needBoundary:
		if d.needed == nil {
			d.needed = make([]calendarBoundary, len(d.g.Ops))
		}
		d.needed[v[2]], d.next = calendarBoundary{v[3], v[4]}, now
		return false, nil
	case needRecords:
		d.records = true
		return false, nil
	}
	g := d.g
	var rows [store.MaxTakes]store.State
	var write [store.MaxTakes]bool
	for i := range g.Ops {
		rows[i] = store.State{Used: v[3+4*i], TS: v[4+4*i], Version: uint32(v[5+4*i]), Override: d.entries[i].override}
	}
	d.fixRates(v[3+4*len(g.Ops):])
	err = g.Decide(now, rows[:len(g.Ops)], write[:len(g.Ops)])
	for i, rate := range d.rates {
		if rate != nil {
			g.Ops[i].Def, g.Ops[i].Asked = d.entries[i].def, d.entries[i].def
		}
	}
	if err != nil {
		return false, err
	}
	if g.Allowed != (v[2] == 1) {
		return false, fmt.Errorf("%w: the script and the program disagree about %s", store.ErrOutcomeUnknown, strings.Join(d.rows, ", "))
	}
	return true, nil
}

// fixRates gives the ops of adaptive limits the rates with which the script has decided.
// moved has those whose revision differs from what was sent.
func (d *decision) fixRates(moved []int64) {
	for len(moved) >= 3 {
		i, revision, n := moved[0], moved[1], moved[2]
		d.rates[i], moved = d.entries[i].rate.moved(revision, moved[3:3+n]), moved[3+n:]
	}
	for i, rate := range d.rates {
		if rate != nil {
			d.g.Ops[i].Def = rate.def
		}
	}
}

func writes(g *store.Group) bool {
	for i := range g.Ops {
		if g.Ops[i].Verb != store.VerbCheck {
			return true
		}
	}
	return g.Cancel
}

// mayReserve reports whether the group may leave a reservation.
func mayReserve(g *store.Group) bool {
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Verb == store.VerbReserve && op.Cost > 0 || op.Def.Rule.Leaky && op.Verb == store.VerbTake {
			return true
		}
	}
	return false
}

func resets(g *store.Group) bool {
	for i := range g.Ops {
		if g.Ops[i].Verb == store.VerbReset {
			return true
		}
	}
	return false
}
