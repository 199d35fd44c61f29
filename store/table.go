package store

import "slices"

// A Table is where a small store keeps its rows and reservations. DecideIn and
// SweepRow use it within one transaction, or under one lock, which the store
// opens before and ends after: if they return an error, nothing may be stored.
//
// It is for stores that read a row, decide in Go and write the row back. A
// store with statements or a layout of its own calls Group.Decide, Op.Record,
// Definition.Advance and Definition.GiveBack itself, as DecideIn does.
type Table interface {
	// Row returns the row of a key and its records, in the order in which they
	// were stored. A row that is missing is the zero State.
	Row(limit, key string) (State, []Record, error)

	// SetRow stores a row and all its records. Where the State is zero and there
	// are no records, it deletes what is stored of the key.
	SetRow(limit, key string, row State, records []Record) error

	// Pending returns a reservation, or the zero Pending if it is not known.
	Pending(id Reservation) (Pending, error)

	// SetPending stores a reservation, or forgets it where h is zero. It may also be
	// forgotten at any time from h.Due on.
	SetPending(id Reservation, h Pending) error
}

// Pending is what a store keeps of a reservation until it is due.
type Pending struct {
	Due   int64 // µs on the store's clock; the reservation can be cancelled before
	Parts []PendingPart
}

// PendingPart names the record of one key that a reservation took tokens of.
type PendingPart struct {
	Limit, Key   string
	Number, Mark int64 // of the Record
}

func (p *PendingPart) names(r Record) bool {
	return r.Number == p.Number && r.Mark == p.Mark && !r.Rest
}

// DecideIn decides the group at now on the rows of a table, stores what is to
// be stored, and fills the answers: it is all that a small store does for a
// group. It makes reservations and cancels them, carries rows of older versions
// of a limit to the present one, and ends the reservations of a key that is reset.
//
// now is the store's clock, in µs, read after the rows of the group were locked.
// limits has the store's limits: an op that was made before its limit changed is
// decided under the new definition, and op.Def says so. The error is one of the
// table, ErrReservation for a reservation that cannot be cancelled, an
// ErrUnknownLimit for a limit that was dropped while the call was on its way,
// or ErrStaleDefinition where a row is of a later version than limits has:
// another process has changed the limit, and the store must read it again.
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

// setRow stores a row. One with nothing used is full, and the same as none.
func setRow(t Table, limit, key string, row State, records []Record) error {
	if isNone(row.Used) {
		row = State{}
	}
	return t.SetRow(limit, key, row, records)
}

// cancelIn gives back all parts of a reservation, or none of them: if a key was
// reset, or its limit dropped, the record is gone and the reservation with it.
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

// SweepRow ends the records of a key that are over, and deletes the row if it is
// full at now, or if limits does not have its limit. It reports whether the key
// has no row afterwards. A Sweeper calls it for one key after another; no
// decision depends on it.
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
