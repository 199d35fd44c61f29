package store

import (
	"slices"
	"sync"

	"github.com/dipwell/dipwell/internal/terms"
)

// A Table has the rows, reservations, overrides and holds of a store that reads a row,
// decides in Go, and writes the row back. The store calls DecideIn, SweepRow and
// Definition.SetOverrideIn within one transaction, or under one lock. If they return an
// error, the store must undo what they have written. A Table is used by one goroutine at
// a time, and reads the rows and holds that it has written in the same transaction.
//
// Limits are passed by name; a key is as in Op, "" for the shared bucket. If a method
// returns an error, the call ends with it: wrap ErrStore, or the class that fits.
type Table interface {
	// Row returns the row of a key, or the zero State if there is none, with the Override that
	// SetOverride got for the key. From the call of Row until the transaction ends nobody else
	// may change the row or its records.
	Row(limit, key string) (State, error)

	// SetRow stores a row, but not its Override. If the State is zero, it deletes the row;
	// its records stay. A store that is full returns an error that wraps ErrFull for a new
	// key.
	SetRow(limit, key string, row State) error

	// Record returns a record of a key, or the zero Record if there is none.
	Record(limit, key string, id RecordID) (Record, error)

	// Records returns all records of a key, in the order of their numbers; those of different
	// marks may be in any order. DecideIn does not change them in place. It calls Records only
	// if a record of the key has ended or waits, if the row is converted, and for concurrency
	// limits, and before SetRecord, as Record.
	Records(limit, key string) ([]Record, error)

	// SetRecord stores a record of a key, or deletes it if r is zero.
	SetRecord(limit, key string, id RecordID, r Record) error

	// Live returns how many records a key has, and how many holds that are live at now have
	// a part of it that is Free, together: such a part has no record, but counts like
	// one. A hold is live if it is not Settled and Expires is after now.
	Live(limit, key string, now int64) (int, error)

	// Pending returns a reservation, or the zero Pending if there is none.
	Pending(id Reservation) (Pending, error)

	// SetPending stores a reservation, or deletes it if h is zero. The table may
	// delete it at any time from h.Due on, when it can no longer be cancelled.
	SetPending(id Reservation, h Pending) error

	// SetOverride stores the override of a key, with its ID and Version, or deletes it if o is
	// nil. The table must keep one that has ended until DecideIn or SweepRow deletes it,
	// because the row must be converted as of its end.
	SetOverride(limit, key string, o *Override) error

	// Hold returns what SetHold stored under an id, or the zero Hold if there is nothing.
	Hold(id string) (Hold, error)

	// SetHold stores a hold, or deletes it if h is zero. The table may delete it at
	// any time from h.Forget on, and earlier if it is full and the hold has ended. SetRecord
	// stores the records of a hold. While all holds that the table keeps are live, it may
	// return an error that wraps ErrFull for a new one.
	SetHold(id string, h Hold) error
}

// Pending is a reservation that is not yet due. The zero Pending means that there is
// none.
type Pending struct {
	// Due is the time in µs on the store's clock at which the last part is due; the
	// reservation can be cancelled before.
	Due int64
	// Parts has an entry for each key from which tokens were taken, also for keys whose
	// tokens were free, because a cancellation gives back all of them. If a row has no
	// record of its part, because the key was reset, the reservation cannot be cancelled.
	Parts []Part
}

// DecideIn decides the group on the rows of a table, writes the rows, records, overrides and
// holds that change, and sets the group's answers.
//
// now is the time of the store's clock, in µs, read after the rows of the group were
// locked. limits has the store's limits: an op whose limit has changed since it was
// made is decided under the new definition, which DecideIn sets as its Def.
//
// The error is one of the table's, or ErrReservation if the reservation cannot be
// cancelled, or wraps ErrUnknownLimit if a limit was dropped meanwhile, or is
// ErrStaleDefinition if a row is of a later version than limits has: the store must then
// read its limits again. For a hold it may also be ErrUnknownHold, ErrHoldConflict or a
// *FieldError. The store sets Err to this error, and undoes what the table has written.
func (g *Group) DecideIn(t Table, limits *Registry, now int64) error {
	if g.Cancel {
		return g.cancelIn(t, limits, now)
	}
	if g.Hold != nil && g.Hold.Verb != MakeHold {
		return g.endIn(t, limits, now)
	}
	for i := range g.Ops {
		if err := g.Ops[i].refresh(limits, g.Hold != nil); err != nil {
			return err
		}
	}
	if g.Hold != nil {
		if err := g.Hold.Check(g.Ops); err != nil {
			return err
		}
		if done, err := g.repeat(t, now); done || err != nil {
			return err
		}
	}
	r := roomFor(len(g.Ops))
	defer r.end()
	return g.decideRows(t, now, r.entries, r.rows)
}

// A room has zero entries and rows for the ops of one group, to be reused.
type room struct {
	entries []entry
	rows    []State
}

var rooms = sync.Pool{New: func() any { return new(room) }}

func roomFor(n int) *room {
	r := rooms.Get().(*room)
	r.entries, r.rows = slices.Grow(r.entries, n)[:n], slices.Grow(r.rows, n)[:n]
	return r
}

// end recycles the room for another group.
func (r *room) end() {
	clear(r.entries)
	clear(r.rows)
	r.entries, r.rows = r.entries[:0], r.rows[:0]
	rooms.Put(r)
}

// decideRows decides a group that takes or resets.
func (g *Group) decideRows(t Table, now int64, entries []entry, rows []State) error {
	for i := range g.Ops {
		if err := entries[i].read(t, g.Ops[i].Def, g.Ops[i].Key, now); err != nil {
			return err
		}
	}
	var write [MaxTakes]bool
	for due := true; due; {
		for i := range g.Ops {
			rows[i] = entries[i].row
		}
		if err := g.decide(now, func(i int) State { return entries[i].row }, rows, write[:]); err != nil {
			return err
		}
		due = false
		for i := range g.Ops { // a reservation that has fallen due matters only if the row is written
			if e := &entries[i]; write[i] && e.isDue(now) {
				if err := e.bring(t, now); err != nil {
					return err
				}
				due = true
			}
		}
	}
	if err := g.writeIn(t, now, entries, rows, write[:]); err != nil {
		return err
	}
	return g.blockIn(t, now, entries)
}

// writeIn writes the rows, records and reservation or hold of a group that was decided.
func (g *Group) writeIn(t Table, now int64, entries []entry, rows []State, write []bool) error {
	g.Reserved = g.Reserved && g.ID != (Reservation{})
	if g.Allowed && (g.Reserved || g.Hold != nil) {
		for i := range entries {
			if err := g.Ops[i].room(t, &entries[i], now); err != nil {
				return err
			}
		}
	}
	h := Pending{Due: now + g.Due()}
	var hold Hold
	if g.Hold != nil && g.Allowed {
		hold = g.NewHold(now)
		g.Hold.Expires, g.Hold.Repeated = hold.Expires, false
	}
	for i := range g.Ops {
		op, e := &g.Ops[i], &entries[i]
		reset := op.Verb == VerbReset && g.Allowed
		moved := e.row.Lows != nil && e.row.Lows.Waits && write[i] && rows[i].Version != e.row.Version
		if reset || moved {
			if err := e.load(t); err != nil {
				return err
			}
		}
		if moved {
			convertSlacks(e.records, e.own(now).Rule.Unit, e.def.Own(rows[i], now).Rule.Unit)
		}
		if !reset {
			op.answerHolds(&e.row, e.records, now)
		}
		var made Record
		took := op.Took()
		if g.Reserved && took > 0 {
			made, write[i] = op.Record(&rows[i], g.ID, now, h.Due), true
			h.Parts = append(h.Parts, Part{Limit: op.Def.Name, Key: op.Key, Number: made.Number, Mark: made.Mark})
		}
		if hold.Expires > 0 {
			part := &hold.Parts[i]
			if part.Free = took == 0; !part.Free {
				made, write[i] = op.holdRecord(&rows[i], g.Hold.ID, &hold, now), true
				part.Number, part.Mark = made.Number, made.Mark
				if op.Def.Algorithm == Concurrency {
					op.Reset = max(op.Reset, g.Hold.TTL)
				}
			}
		}
		switch {
		case reset: // without its record, a reservation or hold can no longer be given back
			ended := slices.DeleteFunc(e.records, func(r Record) bool { return r.expired(now) }) // records that had expired before have given back their tokens
			e.row, e.reset, e.records = State{Override: e.row.Override}, append(e.reset, ended...), nil
			if e.override.unblocked() != e.override {
				e.override = e.override.Under
				if err := t.SetOverride(e.def.Name, e.key, e.override); err != nil {
					return err
				}
			}
		case write[i]:
			e.row = rows[i]
		case !e.changed || op.Verb == VerbCheck:
			continue
		}
		err := e.write(t, now)
		if err == nil && made.Unit != 0 {
			err = t.SetRecord(e.def.Name, e.key, made.ID(), made)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case g.Reserved:
		return t.SetPending(g.ID, h)
	case hold.Expires > 0:
		return t.SetHold(g.Hold.ID, hold)
	}
	return nil
}

// refresh sets Def to the present definition of the limit.
func (op *Op) refresh(limits *Registry, hold bool) error {
	if terms.IsOverride(op.Def.Number) { // true if an earlier call of refresh or choose has set it
		op.Def = op.Asked
	}
	switch d, base := limits.Lookup(op.Def.Name), op.Def.Base(); {
	case d == nil && limits.hasDropped(op.Def):
		return limits.Missing(op.Def.Name)
	case d != nil && d != base && d.Number >= base.Number:
		def := d.WithPlan(op.Def.Plan)
		if def == nil {
			return badField("plan", "limit %s has no such plan any more", d.Name)
		}
		op.Def = def
	}
	op.Asked = op.Def
	return op.Def.CheckVerb(op.Verb, hold)
}

// Took returns how many tokens an op took of its row that can be given back: Granted, or
// 0 after a Charge or under an unlimited plan.
func (op *Op) Took() int64 {
	if op.Verb == VerbCharge || op.Def.Mode == Unlimited && op.Def.Algorithm != Concurrency {
		return 0
	}
	return op.Granted
}

// room checks that the key of op may have one more record. The error is a *FieldError of
// the field "key".
func (op *Op) room(t Table, e *entry, now int64) error {
	live, err := t.Live(op.Def.Name, op.Key, now)
	if err != nil || live < terms.MaxWaiting {
		return err
	}
	if err = e.load(t); err != nil {
		return err
	}
	live -= len(e.stored)
	waiting := 0
	for i := range e.records {
		if e.records[i].Until() > now {
			live++
		}
		if e.records[i].Slack >= 0 {
			waiting++
		}
	}
	if live >= terms.MaxRecords {
		return badField("key", "has %d live holds and reservations of limit %s, the most of a key; settle or cancel some", terms.MaxRecords, op.Def.Name)
	}
	if op.Delay > 0 && waiting >= terms.MaxWaiting {
		return badField("key", "has %d reservations of limit %s that wait, the most of a key; cancel some", terms.MaxWaiting, op.Def.Name)
	}
	return nil
}

// FailsOpen reports whether a limit allows an op that its store failed to decide: with
// FailOpen it does, and in Shadow mode it does for verbs that can be refused. A decorator
// that decides failed ops sets Answer.Shadow if Shadow mode allowed them.
func (op *Op) FailsOpen() bool {
	return op.Def.OnStoreError == FailOpen || op.Def.Mode == Shadow && op.Verb <= VerbReserve
}

// An entry is the state of a key in a table, while a call is decided.
type entry struct {
	def      *Definition // the limit's base definition
	key      string
	row      State
	records  []Record  // the records that were read or made: see all
	stored   []Record  // the records that were read, as they were stored
	reset    []Record  // records that a reset ended
	override *Override // override as it is stored in the table
	all      bool      // stored has all records of the key
	changed  bool      // the row or a record was changed
	one      [2]Record // memory for two records, or for one stored and one changed record
}

// read reads the entry of a key from the table. If one of its records has ended, or the row
// is of another version of its limit, read reads all records, converts row and records, and
// gives back the holds that have expired. def is any definition of the limit.
func (e *entry) read(t Table, def *Definition, key string, now int64) (err error) {
	e.def, e.key = def.Base(), key
	if e.row, err = t.Row(e.def.Name, key); err != nil {
		return err
	}
	e.override = e.row.Override
	l := e.row.Lows
	if e.def.Algorithm != Concurrency && (l == nil || e.own(now).isCurrent(&e.row) && (now < l.Due || l.Holds == 0)) {
		return nil
	}
	return e.bring(t, now)
}

// isDue reports whether a record that was not read may have ended or fallen due.
func (e *entry) isDue(now int64) bool { return !e.all && e.row.Lows != nil && now >= e.row.Lows.Due }

// bring reads all records, and brings them up to date.
func (e *entry) bring(t Table, now int64) (err error) {
	if err = e.load(t); err == nil {
		err = e.advance(now)
	}
	return err
}

// load reads all records, unless that was done before.
func (e *entry) load(t Table) (err error) {
	if !e.all {
		e.stored, err = t.Records(e.def.Name, e.key)
		e.records, e.all = append(e.one[:0], e.stored...), true
	}
	return err
}

// advance converts the row and all records, which must have been read, to the present
// version, and gives back the holds that have expired.
func (e *entry) advance(now int64) (err error) {
	if e.row.Version == 0 && len(e.records) == 0 {
		return nil
	}
	was := e.row.Lows
	e.changed = e.changed || slices.ContainsFunc(e.records, func(r Record) bool { return r.expired(now) })
	var b books
	if e.row, b, err = e.own(now).advance(e.row, e.key, now, e.records); err != nil {
		return err
	}
	e.records, e.reset = b.records, append(e.reset, b.reset...)
	e.count()
	if l := e.row.Lows; l != nil && was != nil && l.Due != was.Due && slices.Equal(e.records, e.stored) {
		e.changed = true // the record that was due had been given back before, and no other has ended
	}
	return err
}

// count counts the records again, all of which must have been read.
func (e *entry) count() {
	if e.row.Lows != nil {
		e.row.Lows = e.row.Lows.Count(e.records)
	}
}

// find returns the index in records of the record of part p of the hold with the given id,
// or of a reservation if id is "". The index is negative if there is no such record. find
// reads no other record unless one waits or the row must be converted.
func (e *entry) find(t Table, p *Part, id string, now int64) (i int, err error) {
	if l := e.row.Lows; l != nil && l.Waits || e.isDue(now) || e.row.Version != 0 && !e.own(now).isCurrent(&e.row) {
		if err = e.bring(t, now); err != nil {
			return -1, err
		}
	}
	if !e.all {
		r, err := t.Record(e.def.Name, e.key, RecordID{p.Mark, p.Number})
		if err != nil || r == (Record{}) {
			return -1, err
		}
		e.one = [2]Record{r, r}
		e.stored = e.one[:1:1]
		if r.expired(now) { // the record belongs to lows that the row had earlier
			e.changed = true
			return -1, nil
		}
		e.records = e.one[1:]
	}
	return slices.IndexFunc(e.records, func(r Record) bool { return p.names(r, id) }), nil
}

// giveBack gives back num/den of record i.
func (e *entry) giveBack(i int, now, num, den int64) {
	others := int64(0)
	if l := e.row.Lows; !e.all && l != nil && l.Mark == e.records[i].Mark {
		others = l.Live - 1
	}
	e.row, e.records = e.own(now).giveBack(e.row, e.key, now, e.records, others, i, num, den)
	if e.changed = true; e.all {
		e.count()
	}
}

// own returns the definition that the row is under.
func (e *entry) own(now int64) *Definition { return e.def.Own(e.row, now) }

// write stores the row and its records, and the override of the key if it has ended or
// has another ID at the present version of the limit.
func (e *entry) write(t Table, now int64) error {
	o := e.def.renewed(e.override.At(now))
	if err := e.writeRow(t, now); err != nil || o == e.override {
		return err
	}
	return t.SetOverride(e.def.Name, e.key, o)
}

// writeRow stores the row and the records that were made, changed or ended. Without its
// record, a reservation or hold can no longer be given back.
func (e *entry) writeRow(t Table, now int64) error {
	if err := endHolds(t, e.def.Name, e.key, e.reset, now); err != nil {
		return err
	}
	row := e.row
	if row.Override = nil; row.Used == 0 {
		row = State{}
	}
	if err := t.SetRow(e.def.Name, e.key, row); err != nil {
		return err
	}
	kept := e.records // in the order of stored, then the records made later
	for i := range e.stored {
		was, r := &e.stored[i], Record{}
		if len(kept) > 0 && kept[0].ID() == was.ID() {
			r, kept = kept[0], kept[1:]
		}
		if r != *was {
			if err := t.SetRecord(e.def.Name, e.key, was.ID(), r); err != nil {
				return err
			}
		}
	}
	for i := range kept {
		if err := t.SetRecord(e.def.Name, e.key, kept[i].ID(), kept[i]); err != nil {
			return err
		}
	}
	return nil
}

// noteReset sets Reset of part i of the hold h with the given id if a reset not yet stored
// has ended the part's record.
func (e *entry) noteReset(h *Hold, i int, id string) {
	if slices.ContainsFunc(e.reset, func(r Record) bool { return h.Parts[i].names(r, id) }) {
		h.reset(i)
	}
}

// SetOverrideIn sets an override in a table, as Overrider.SetOverride does, for limit d at the
// time now, in µs. The Key of the override is key, whatever o says. The error is one of
// the table's, one of CheckOverride, or ErrStaleDefinition.
func (d *Definition) SetOverrideIn(t Table, key string, o Override, now int64) (set Override, err error) {
	base := d.Base()
	err = d.changeOverrideIn(t, key, now, func(was *Override) (top *Override, err error) {
		o.Key, o.ID, o.Version, o.Under = key, 0, base.Number, nil
		if o.Replaced = was.Of(o.Kind()); o.Until != 0 {
			o.Under = was.Of(StandingOverride)
		}
		if err = base.CheckOverride(&o, now); err != nil {
			return nil, err
		}
		o.ID = was.newID(now)
		set = o
		kept := o
		if kept.Replaced = nil; o.Until != 0 || was.Of(TemporaryOverride) == nil {
			top = &kept
		} else { // the new override lies under the temporary one, whose numbers may replace its own
			over := *was
			over.Under = &kept
			if over.Plan == "" || kept.Start != "" {
				err = base.CheckOverride(&over, now)
			}
			if err != nil {
				return nil, err
			}
			over.ID = over.newID(now)
			top = &over
		}
		top.Prepare()
		return top, nil
	})
	return set, err
}

// EndOverrideIn ends an override of a key of limit d at the time now, in µs, and returns it,
// or nil if the key has none of this kind. Row and errors are handled as by SetOverrideIn.
func (d *Definition) EndOverrideIn(t Table, key string, kind OverrideKind, now int64) (ended *Override, err error) {
	err = d.changeOverrideIn(t, key, now, func(was *Override) (top *Override, err error) {
		switch ended = was.Of(kind); ended {
		case nil:
			return was, nil
		case was:
			return was.Under, nil
		}
		over := *was
		over.Under = nil
		over.ID = over.newID(now)
		over.Prepare()
		return &over, nil
	})
	return ended, err
}

// changeOverrideIn calls change with the overrides of a key, and stores those that change
// returns: the one on top, or nil.
func (d *Definition) changeOverrideIn(t Table, key string, now int64, change func(was *Override) (*Override, error)) error {
	var e entry
	if err := e.read(t, d, key, now); err != nil {
		return err
	}
	return e.changeOverride(t, now, change)
}

// changeOverride does the work of changeOverrideIn for an entry that was read.
func (e *entry) changeOverride(t Table, now int64, change func(was *Override) (*Override, error)) error {
	base, was := e.def, e.override
	top, err := change(base.renewed(was.At(now)))
	if err != nil || top == nil && was == nil { // otherwise the row stays as it is
		return err
	}
	if err := e.bring(t, now); err != nil {
		return err
	}
	to := base
	if top != nil {
		to = base.WithOverride(top)
	}
	if e.row.Version != 0 {
		e.moveTo(to, now)
		err = e.writeRow(t, now)
	}
	if err != nil {
		return err
	}
	e.row.Override = top
	return t.SetOverride(base.Name, e.key, top)
}

// moveTo converts the row, which was brought up to now under its own definition, to d, the
// definition under the new override.
func (e *entry) moveTo(d *Definition, now int64) {
	var scratch Rule
	v := step{from: e.own(now).RuleFor(e.key, &scratch), to: &d.Rule, at: max(now, e.row.TS)}
	b := books{records: e.records}
	b.convert(&e.row, v.from.usedAt(&e.row, v.at), v.at, v.from, &v)
	e.row.Version = d.Number
}

// cancelIn gives back all parts of a reservation. cancelIn returns ErrReservation, and
// gives back none, if one of its keys was reset or one of its limits dropped.
func (g *Group) cancelIn(t Table, limits *Registry, now int64) error {
	h, err := t.Pending(g.ID)
	if err != nil {
		return err
	}
	if len(h.Parts) == 0 || h.Due <= now {
		return ErrReservation
	}
	r := roomFor(len(h.Parts))
	defer r.end()
	entries := r.entries
	for i := range h.Parts {
		p, e := &h.Parts[i], &entries[i]
		def := limits.Lookup(p.Limit)
		if def == nil {
			return ErrReservation
		}
		if err = e.read(t, def, p.Key, now); err != nil {
			return err
		}
		at, err := e.find(t, p, "", now)
		if err == nil && at < 0 {
			err = ErrReservation
		}
		if err != nil {
			return err
		}
		e.giveBack(at, now, 1, 1)
	}
	for i := range entries {
		if err := entries[i].write(t, now); err != nil {
			return err
		}
	}
	g.Allowed = true
	return t.SetPending(g.ID, Pending{})
}

// SweepRow gives back expired holds of a key, removes records and an override that have ended,
// and deletes the row if it is full at now, in µs, or if limits does not have its limit; this
// ends its holds. SweepRow reports whether it has deleted the row, which records of holds may
// outlive. A store's sweep, or its drop of a limit, calls it for each key.
func SweepRow(t Table, limits *Registry, limit, key string, now int64) (gone bool, err error) {
	d := limits.Lookup(limit)
	if d == nil {
		return true, deleteRow(t, limit, key, now)
	}
	var e entry
	was, err := t.Row(limit, key)
	if err == nil {
		err = e.read(t, d, key, now)
	}
	if err == nil {
		err = e.bring(t, now)
	}
	if err != nil {
		return false, err
	}
	var scratch Rule
	own := e.own(now)
	if gone = own.Override == nil && own.RuleFor(key, &scratch).usedAt(&e.row, max(now, e.row.TS)) == 0; gone {
		e.row.Used = 0
	}
	return gone && was != (State{Override: was.Override}), e.write(t, now)
}

// deleteRow deletes the row of a key whose limit was dropped.
func deleteRow(t Table, limit, key string, now int64) error {
	e := entry{def: &Definition{Limit: Limit{Name: limit}}, key: key}
	row, err := t.Row(limit, key)
	if err == nil {
		err = e.load(t)
	}
	if err == nil && row.Override != nil {
		err = t.SetOverride(limit, key, nil)
	}
	e.records = nil
	e.reset = slices.DeleteFunc(slices.Clone(e.stored), func(r Record) bool { return r.expired(now) }) // expired records have given back their tokens
	if err == nil {
		err = e.writeRow(t, now)
	}
	return err
}
