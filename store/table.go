package store

import "slices"

// A Table holds the rows and reservations of a store that reads a row, decides in
// Go, and writes the row back. The store calls DecideIn and SweepRow within one
// transaction, or under one lock. If they return an error, the store must undo
// what they have written.
//
// A store with statements or a layout of its own calls Group.Decide, Op.Record,
// Definition.Advance and Definition.GiveBack itself, as DecideIn does.
type Table interface {
	// Row returns the row of a key and its records, in the order in which SetRow
	// got them. It returns the zero State if there is no row.
	Row(limit, key string) (State, []Record, error)

	// SetRow stores a row and all its records. If the State is zero and there are
	// no records, it deletes the key.
	SetRow(limit, key string, row State, records []Record) error

	// Pending returns a reservation, or the zero Pending if there is none.
	Pending(id Reservation) (Pending, error)

	// SetPending stores a reservation, or deletes it if h is zero. The table may
	// delete it at any time from h.Due on.
	SetPending(id Reservation, h Pending) error
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
	var rows [MaxTakes]State
	var records [MaxTakes][]Record
	var write [MaxTakes]bool
	for i := range g.Ops {
		op := &g.Ops[i]
		switch d := limits.Lookup(op.Def.Name); {
		case d == nil && limits.hasDropped(op.Def):
			return limits.Missing(op.Def.Name)
		case d != nil && d.Number > op.Def.Number:
			op.Def = d
		}
		var err error
		if rows[i], records[i], err = t.Row(op.Def.Name, op.Key); err != nil {
			return err
		}
		if rows[i].Lows != nil {
			if rows[i], records[i], err = op.Def.Advance(rows[i], op.Key, now, slices.Clone(records[i])); err != nil {
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
		case g.Reserved && op.Granted > 0:
			r := op.Record(&rows[i], g.ID, now, h.Due)
			records[i], write[i] = append(slices.Clip(records[i]), r), true
			h.Parts = append(h.Parts, PendingPart{op.Def.Name, op.Key, r.Number, r.Mark})
		}
		if write[i] {
			if err := setRow(t, op.Def.Name, op.Key, rows[i], records[i]); err != nil {
				return err
			}
		}
	}
	if g.Reserved {
		return t.SetPending(g.ID, h)
	}
	return nil
}

// setRow stores a row, or the zero State if nothing is used.
func setRow(t Table, limit, key string, row State, records []Record) error {
	if isNone(row.Used) {
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
		if rows[i], records[i], err = def.GiveBack(rows[i], p.Key, now, slices.Clone(records[i]), p.Number, p.Mark); err != nil {
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
	if row, records, err = d.Advance(row, key, now, slices.Clone(records)); err != nil {
		return false, err
	}
	var scratch Rule
	if gone = isNone(d.RuleFor(key, &scratch).usedAt(row, later(now, row.TS))); gone {
		row = State{}
	}
	return gone, setRow(t, limit, key, row, records)
}
