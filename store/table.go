package store

import (
	"slices"

	"github.com/dipwell/dipwell/internal/number"
)

// A Table has the rows, reservations, overrides and holds of a store that reads a row, decides in
// Go, and writes the row back. The store calls DecideIn and SweepRow within one
// transaction, or under one lock. If they return an error, the store must undo
// what they have written.
//
// A store with statements or a layout of its own calls Group.Decide, Op.Record,
// Definition.Advance and Definition.GiveBack itself, as DecideIn does.
type Table interface {
	// Row returns the row of a key and its records, in the order in which SetRow
	// got them. It returns the zero State if there is no row. In both cases it sets
	// the Override of the State to the one that SetOverride got for the key.
	Row(limit, key string) (State, []Record, error)

	// SetRow stores a row and all its records, but not its Override. If the State
	// is zero and there are no records, it deletes the key.
	SetRow(limit, key string, row State, records []Record) error

	// Pending returns a reservation, or the zero Pending if there is none.
	Pending(id Reservation) (Pending, error)

	// SetPending stores a reservation, or deletes it if h is zero. The table may
	// delete it at any time from h.Due on.
	SetPending(id Reservation, h Pending) error

	// SetOverride stores the override of a key, or deletes it if o is nil.
	SetOverride(limit, key string, o *Override) error

	// Hold returns what SetHold stored under an id, or the zero Hold if there is nothing.
	Hold(id string) (Hold, error)

	// SetHold stores a hold, or deletes it if h is zero. The table may delete it at
	// any time from h.Forget on. Its records are on rows, and SetRow stores them.
	SetHold(id string, h Hold) error
}

// Pending is a reservation that is not yet due.
type Pending struct {
	Due   int64 // µs on the store's clock; the reservation can be cancelled before
	Parts []PendingPart
}

// PendingPart identifies the record of one key that a reservation took tokens of.
type PendingPart struct {
	Limit, Key   string
	Number, Mark int64 // of the Record
}

func (p *PendingPart) names(r Record) bool {
	return r.Number == p.Number && r.Mark == p.Mark && !r.Rest
}

// DecideIn decides the group on the rows of a table, writes the rows that change,
// and sets the group's answers. It makes and cancels reservations, converts rows of
// older versions of a limit to the present one, and ends the reservations of a key
// that is reset.
//
// now is the time of the store's clock, in µs, read after the rows of the group were
// locked. limits has the store's limits: an op whose limit has changed since it was
// made is decided under the new definition, which DecideIn sets as its Def.
//
// The error is one of the table's, or ErrReservation if the reservation cannot be
// cancelled, or wraps ErrUnknownLimit if a limit was dropped meanwhile, or is
// ErrStaleDefinition if a row is of a later version than limits has. In that case
// another process has changed the limit, and the store must read its limits again.
func (g *Group) DecideIn(t Table, limits *Registry, now int64) error {
	if g.Cancel {
		return g.cancelIn(t, limits, now)
	}
	if g.Hold != nil {
		return ErrNotSupported
	}
	var rows [MaxTakes]State
	var records [MaxTakes][]Record
	var overrides [MaxTakes]*Override
	var write [MaxTakes]bool
	for i := range g.Ops {
		op := &g.Ops[i]
		switch d := limits.Lookup(op.Def.Name); {
		case d == nil && limits.hasDropped(op.Def):
			return limits.Missing(op.Def.Name)
		case d != nil && d.Version() > op.Def.Version():
			if op.Def = d.WithPlan(op.Def.Plan); op.Def == nil {
				return badField("plan", "limit %s has no such plan any more", d.Name)
			}
		}
		var err error
		if rows[i], records[i], err = t.Row(op.Def.Name, op.Key); err != nil {
			return err
		}
		if overrides[i] = rows[i].Override; rows[i].Lows != nil {
			if rows[i], records[i], err = op.Def.Own(rows[i], max(now, rows[i].TS)).Advance(rows[i], op.Key, now, slices.Clone(records[i])); err != nil {
				return err
			}
		}
	}
	if err := g.Decide(now, rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	h := Pending{Due: now + g.Due()}
	for i := range g.Ops {
		op := &g.Ops[i]
		switch {
		case op.Verb == VerbReset && g.Allowed: // without its record, a reservation can no longer be cancelled
			rows[i], records[i], write[i] = State{}, nil, true
		case g.Reserved && op.Granted > 0 && op.Def.Mode != Unlimited:
			r := op.Record(&rows[i], g.ID, now, h.Due)
			records[i], write[i] = append(slices.Clip(records[i]), r), true
			h.Parts = append(h.Parts, PendingPart{op.Def.Name, op.Key, r.Number, r.Mark})
		}
		if write[i] {
			op.Def.convertRecords(records[i], overrides[i], now)
			if err := setRow(t, op.Def.Name, op.Key, rows[i], records[i]); err != nil {
				return err
			}
			if rows[i].Override != overrides[i] && op.Verb != VerbReset {
				if err := t.SetOverride(op.Def.Name, op.Key, rows[i].Override); err != nil {
					return err
				}
			}
		}
	}
	if g.Reserved {
		return t.SetPending(g.ID, h)
	}
	return nil
}

// convertRecords converts records to d at the time now, in µs. o is the override of
// their key before the call, or nil.
func (d *Definition) convertRecords(rs []Record, o *Override, now int64) {
	for i := range rs {
		r := &rs[i]
		if r.Version == d.Number {
			continue
		}
		if r.Units = d.CarryUnits(r.Units, r.Version, o, now); r.Slack >= 0 {
			r.Slack = d.CarryUnits(r.Slack, r.Version, o, now)
		}
		r.Version = d.Number
	}
}

// SetOverrideIn sets the override of a key of limit d at the time now, in µs, or ends
// it if o is nil. It converts the row of the key in the same step, and stores what
// changes in the table, as DecideIn does. It returns the override with its ID and
// Version. The error is one of the table's, a *FieldError as CheckOverride returns it,
// or ErrStaleDefinition.
func (d *Definition) SetOverrideIn(t Table, key string, o *Override, now int64) (*Override, error) {
	base := d.Base()
	if o != nil {
		c := *o
		if o = &c; o.Key != key {
			o.Key = key
		}
		if err := base.CheckOverride(o, now); err != nil {
			return nil, err
		}
	}
	row, records, err := t.Row(base.Name, key)
	if err != nil {
		return nil, err
	}
	was := row.Override
	if row.Lows != nil {
		if row, records, err = base.Own(row, max(now, row.TS)).Advance(row, key, now, slices.Clone(records)); err != nil {
			return nil, err
		}
	}
	to := base
	if o != nil {
		if o.Version = base.Number; was == nil {
			o.ID = NewOverrideID(now, 0)
		} else {
			o.ID = NewOverrideID(now, base.Renewed(was).ID)
		}
		o.Prepare()
		to = base.WithOverride(o)
	}
	if row, records, err = to.override(row, records, was, key, now); err != nil {
		return nil, err
	}
	if row.Version != 0 {
		if err = setRow(t, base.Name, key, row, records); err != nil {
			return nil, err
		}
	}
	return o, t.SetOverride(base.Name, key, o)
}

// override converts a row and its records to d, to which another override than was
// leads. It steps the row to now under its own definition first.
func (d *Definition) override(row State, records []Record, was *Override, key string, now int64) (State, []Record, error) {
	if row.Version == 0 { // no row
		return row, records, nil
	}
	base := d.Base()
	from := base.Own(row, max(now, row.TS))
	row, ok := from.Carry(row, key, now)
	if !ok {
		return row, records, ErrStaleDefinition
	}
	from.convertRecords(records, was, now)
	t := max(now, row.TS)
	var scratch Rule
	r := from.RuleFor(key, &scratch)
	row.Used, row.TS = Keep.convert(r.usedAt(row, t), &from.Rule, &d.Rule, true), t
	give := func(units int64) int64 { return Keep.giveBack(units, &from.Rule, &d.Rule) }
	if row.Lows != nil {
		row.Lows = row.Lows.carry(give)
	}
	for i := range records {
		if records[i].Units = give(records[i].Units); records[i].Slack >= 0 {
			records[i].Slack = give(records[i].Slack)
		}
		records[i].Version = d.Number
	}
	row.Version = d.Number
	return row, records, nil
}

// setRow stores a row, or the zero State if nothing is used.
func setRow(t Table, limit, key string, row State, records []Record) error {
	if row.Override = nil; isNone(row.Used) {
		row = State{}
	}
	return t.SetRow(limit, key, row, records)
}

// cancelIn gives back all parts of a reservation. It returns ErrReservation, and
// gives back none, if one of its keys was reset or one of its limits dropped.
func (g *Group) cancelIn(t Table, limits *Registry, now int64) error {
	h, err := t.Pending(g.ID)
	if err != nil {
		return err
	}
	if len(h.Parts) == 0 || dueBy(h.Due, now) {
		return ErrReservation
	}
	rows, records := make([]State, len(h.Parts)), make([][]Record, len(h.Parts))
	for i := range h.Parts {
		p := &h.Parts[i]
		if rows[i], records[i], err = t.Row(p.Limit, p.Key); err != nil {
			return err
		}
		def := limits.Lookup(p.Limit)
		if def == nil || !slices.ContainsFunc(records[i], p.names) {
			return ErrReservation
		}
		if rows[i], records[i], err = def.Own(rows[i], max(now, rows[i].TS)).GiveBack(rows[i], p.Key, now, slices.Clone(records[i]), p.Number, p.Mark); err != nil {
			return err
		}
	}
	for i := range h.Parts {
		if err := setRow(t, h.Parts[i].Limit, h.Parts[i].Key, rows[i], records[i]); err != nil {
			return err
		}
	}
	g.Allowed = true
	return t.SetPending(g.ID, Pending{})
}

// SweepRow removes the records of a key that have ended, and deletes the row if it
// is full at now, in µs, or if limits does not have its limit. It reports whether
// the key has no row afterwards. A store's sweep calls it for each key; it changes
// no decision.
func SweepRow(t Table, limits *Registry, limit, key string, now int64) (gone bool, err error) {
	row, records, err := t.Row(limit, key)
	if err != nil {
		return false, err
	}
	d := limits.Lookup(limit)
	if d == nil {
		return true, t.SetRow(limit, key, State{}, nil)
	}
	d = d.Own(row, max(now, row.TS))
	if row, records, err = d.Advance(row, key, now, slices.Clone(records)); err != nil {
		return false, err
	}
	var scratch Rule
	if gone = !number.IsOverride(d.Number) && isNone(d.RuleFor(key, &scratch).usedAt(row, later(now, row.TS))); gone {
		row = State{}
	}
	return gone, setRow(t, limit, key, row, records)
}
