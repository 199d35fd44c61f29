package store

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// MaxLows bounds the entries of a row's Lows. With more, neighbours become one,
// which can only lessen what is given back.
const MaxLows = 32

// Lows is what a row keeps while records of it live: how much of what each
// record took is still there to be given back. That is the least that has been
// used since the record was made, because what was used less than that has come
// back by time already. Rows without live records have none.
//
// Both Number and Used normalize from entry to entry. An entry covers the records
// from its own number up to the next entry's.
type Lows struct {
	Mark    int64 // drawn at random, 48 bits; the records of this list carry it
	Next    int64 // number of the next record
	Entries []Low // at least one, at most MaxLows
}

// Low is the least that has been used since record Number was made, in units.
type Low struct{ Number, Used int64 }

// A Record is what one call took of a row and may still give back.
type Record struct {
	Number  int64 // in the list of its row, from 1
	Mark    int64 // of that list
	Units   int64 // still to be given back
	Slack   int64 // units that will be used when it falls due, itself not counted; -1: it does not wait
	Version uint32
	Due     int64 // µs; when the part of this row acts. Slack counts until then
	Ends    int64 // µs; when all parts of the call have fallen due: it cannot be cancelled from then on
	Rest    bool  // it was cancelled, and Units is what had to be withheld
}

// Record notes what op took of its row, which is the one that Step returned.
// now is the instant of the decision, ends the one at which the whole group is due.
func (op *Op) Record(row *State, id Reservation, now, ends int64) Record {
	var l Lows
	if row.Lows == nil {
		l = Lows{Mark: id.mark(), Next: 1}
	} else {
		l = row.Lows.clone()
	}
	units := op.Granted * op.Def.Rule.Unit
	r := Record{Number: l.Next, Mark: l.Mark, Units: units, Slack: -1, Version: op.Def.Number, Due: dueIn(now, op.Delay), Ends: ends}
	if op.Delay > 0 {
		r.Slack = slackOf(units, op.Def.Rule.Cap)
	}
	l.Entries = append(l.Entries, Low{l.Next, row.Used})
	l.Next++
	l.shorten()
	row.Lows = &l
	return r
}

// mark is the random number in a list's Mark: the last 48 bits of the id of its first record.
func (r Reservation) mark() int64 {
	return int64(binary.BigEndian.Uint64(r[8:]) & (1<<48 - 1))
}

// Advance prepares records for a write to their row at now: what waited and has
// fallen due lowers the lows before it for good, and records that have ended
// go. rs are all the records of the row in the order of their numbers; it is
// changed in place. Without a live record the row's list goes.
//
// Stores call it before each write to a row that has Lows, since a write appends
// to them; what comes due between writes need not be noted at once.
func (d *Definition) Advance(row State, key string, now int64, rs []Record) (State, []Record, error) {
	row, ok := d.Carry(row, key)
	if !ok {
		return row, rs, ErrStaleDefinition
	}
	var l Lows
	if row.Lows != nil && !isNone(row.Used) {
		l = row.Lows.clone()
	}
	rs = d.advance(&l, now, rs)
	if row.Lows = nil; len(l.Entries) > 0 {
		row.Lows = &l
	}
	return row, rs, nil
}

// advance is Advance for a list that may be changed; no entries mean none.
func (d *Definition) advance(l *Lows, now int64, rs []Record) []Record {
	for i := range rs {
		r := &rs[i]
		r.Units = d.CarryUnits(r.Units, r.Version)
		if r.Slack >= 0 {
			r.Slack = d.CarryUnits(r.Slack, r.Version)
		}
		r.Version = d.Number
	}
	var due []*Record
	for i := range rs {
		if rs[i].Slack >= 0 && dueBy(rs[i].Due, now) {
			due = append(due, &rs[i])
		}
	}
	slices.SortStableFunc(due, func(a, b *Record) int { return cmp.Compare(a.Due, b.Due) })
	for _, r := range due {
		if r.Mark == l.Mark {
			l.limit(r.Number-1, r.Slack)
		}
		r.Slack = -1
	}
	return l.retire(now, rs)
}

// retire drops records that have ended and rests that nothing can free any
// more. The list goes with its last live record.
func (l *Lows) retire(now int64, rs []Record) []Record {
	live, waits := false, int64(0)
	for i := range rs {
		if r := &rs[i]; r.Mark == l.Mark && !r.Rest && (!dueBy(r.Ends, now) || r.Slack >= 0) {
			live = true
			if r.Slack >= 0 {
				waits = max(waits, r.Number)
			}
		}
	}
	if !live {
		*l = Lows{}
	}
	return slices.DeleteFunc(rs, func(r Record) bool {
		if r.Rest {
			return r.Mark != l.Mark || restGoes(r.Units, r.Number, waits)
		}
		return dueBy(r.Ends, now) && r.Slack < 0
	})
}

// GiveBack cancels record number of a row at now: the row gets back what of it
// is still there, as far as no reservation that waits would miss it; the rest
// is withheld, and each later cancellation of the key tries it again. rs are
// all the records of the row in the order of their numbers; it is changed in
// place. It returns the row to store, which may be full, and the records to keep.
func (d *Definition) GiveBack(row State, key string, now int64, rs []Record, number, mark int64) (State, []Record, error) {
	row, rs, err := d.Advance(row, key, now, rs)
	if err != nil {
		return row, rs, err
	}
	var scratch Rule
	t := later(now, row.TS)
	if row.Used, row.TS = d.RuleFor(key, &scratch).usedAt(row, t), t; isNone(row.Used) {
		row.Lows = nil
	}
	i := slices.IndexFunc(rs, func(r Record) bool { return r.Number == number && r.Mark == mark && !r.Rest })
	if i < 0 {
		return row, rs, nil
	}
	if row.Lows == nil || row.Lows.Mark != mark {
		return row, slices.Delete(rs, i, i+1), nil
	}
	l := row.Lows.clone()
	l.touch(row.Used)
	rs[i].Rest, rs[i].Slack = true, -1
	row.Used = without(row.Used, l.giveBack(rs, i))
	row.Used = without(row.Used, l.giveWithheld(rs, i))
	if isNone(row.Used) { // a store may delete the row, and the list goes with it
		l = Lows{}
	}
	rs = l.retire(now, rs)
	if row.Lows = nil; len(l.Entries) > 0 {
		row.Lows = &l
	}
	return row, rs, nil
}

// giveBack returns the units that record i gives back now, and leaves it with what is withheld.
func (l *Lows) giveBack(rs []Record, i int) int64 {
	free := int64(MaxInt)
	for j := i + 1; j < len(rs); j++ {
		if w := &rs[j]; w.Slack >= 0 && w.Mark == l.Mark {
			free = lesser(free, w.Slack)
		}
	}
	units := l.give(&rs[i], free)
	for j := i + 1; j < len(rs); j++ {
		if w := &rs[j]; w.Slack >= 0 && w.Mark == l.Mark {
			w.Slack = without(w.Slack, units)
		}
	}
	return units
}

// giveWithheld tries what was withheld of other records than i again, newest first,
// in one pass: a key may have thousands of them.
func (l *Lows) giveWithheld(rs []Record, i int) (units int64) {
	free := int64(MaxInt) // least slack of those that wait and were made after record j
	for j := len(rs) - 1; j >= 0; j-- {
		switch r := &rs[j]; {
		case r.Mark != l.Mark || j == i:
		case r.Slack >= 0:
			free = lesser(free, r.Slack)
			r.Slack = added(r.Slack, units) // given back by newer records, which does not concern it
		case r.Rest:
			n := l.give(r, free)
			units, free = added(units, n), without(free, n)
		}
	}
	for j := range rs {
		if w := &rs[j]; w.Slack >= 0 && w.Mark == l.Mark {
			w.Slack = without(w.Slack, units)
		}
	}
	return units
}

// give takes off r what may come back of it, at most free units, and returns
// how many of them are still there.
func (l *Lows) give(r *Record, free int64) int64 {
	units := lesser(r.Units, free)
	r.Units = without(r.Units, units)
	return l.lower(r.Number, units)
}

// lower takes units off every low from the one that covers a record to the
// last, or as many as there are, and returns what came out at the end.
func (l *Lows) lower(number, units int64) int64 {
	i := l.covers(number)
	if i < 0 {
		return 0
	}
	for ; i < len(l.Entries); i++ {
		e := &l.Entries[i]
		units = lesser(units, e.Used)
		e.Used = without(e.Used, units)
	}
	l.normalize()
	return units
}

// touch lowers the last low to what is used now: what was used before that has come back by time.
func (l *Lows) touch(used int64) {
	if last := &l.Entries[len(l.Entries)-1]; lowers(used, last.Used) {
		last.Used = used
		l.normalize()
	}
}

// limit lowers the low that covers a record, if there is one.
func (l *Lows) limit(number, used int64) {
	if i := l.covers(number); i >= 0 && lowers(used, l.Entries[i].Used) {
		l.Entries[i].Used = used
		l.normalize()
	}
}

// clear says that nothing can be given back of what was taken so far.
func (l *Lows) clear() {
	l.Entries = []Low{{l.Entries[0].Number, 0}}
}

func (l *Lows) covers(number int64) int {
	for i := len(l.Entries) - 1; i >= 0; i-- {
		if covers(l.Entries[i].Number, number) {
			return i
		}
	}
	return -1
}

// normalize joins neighbours of which one is not below the next: the earlier number
// with the later low.
func (l *Lows) normalize() {
	out := l.Entries[:0]
	for _, e := range l.Entries {
		for len(out) > 0 && joins(out[len(out)-1].Used, e.Used) {
			e.Number = out[len(out)-1].Number
			out = out[:len(out)-1]
		}
		out = append(out, e)
	}
	l.Entries = out
}

// shorten joins the two neighbours whose lows lie closest where there are more
// than MaxLows: the oldest of equals, never the last entry, with the lesser low.
func (l *Lows) shorten() {
	for e := l.Entries; tooMany(int64(len(e))); e = l.Entries {
		at := 1
		for i := 2; i < len(e)-1; i++ {
			if closer(e[i].Used, e[i-1].Used, e[at].Used, e[at-1].Used) {
				at = i
			}
		}
		l.Entries = slices.Delete(l.Entries, at, at+1)
	}
}

func (l *Lows) clone() Lows {
	c := *l
	c.Entries = append(make([]Low, 0, len(l.Entries)+1), l.Entries...)
	return c
}

// carry converts the lows of a row into units of the next version, rounded down.
func (l *Lows) carry(convert func(units int64) int64) *Lows {
	c := l.clone()
	for i := range c.Entries {
		c.Entries[i].Used = convert(c.Entries[i].Used)
	}
	c.normalize()
	return &c
}
