package store

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/dipwell/dipwell/internal/algebra"
)

// MaxLows bounds the entries of a row's Lows. Beyond MaxLows two neighbours are merged,
// which can only reduce what is given back.
const MaxLows = 32

// Lows says how much of each record of a row can still be given back: at most the least that
// was in use since the record was made, because the rest has come back by time. A row has Lows
// as long as it has records that have not ended. Number and Used rise from entry to entry; an
// entry covers the records from its Number up to the next entry's.
//
// For example, 2 units of a key are in use when record 1 takes 3 more: then the Lows
// are {1, 5}. When 4 of the 5 units have come back by time, a call that writes the row
// lowers them to {1, 1}: of the 3 units of record 1, at most 1 can still be given back.
// If that call makes record 2 of 6 units, the Lows are {1, 1}, {2, 7}.
type Lows struct {
	// Mark is 48 bits that no other Lows of the key have. If a record has another Mark, its row
	// was full in between, and nothing of it is left to give back.
	Mark int64
	// Next is the number of the next record, from 1.
	Next int64
	// Due is a time in µs before which no record of these Lows ends or falls due.
	Due int64
	// Live is how many records of these Lows may be given back, Holds how many of them belong
	// to holds.
	Live, Holds int64
	// Waits is set if one of these records waits, or withholds units from one that does:
	// ending a record then requires reading the others.
	Waits bool
	// Entries has 1 to MaxLows entries, in the order of their numbers.
	Entries []Low
}

// A Low says that since record Number was made, at least Used units were in use at any time.
type Low struct {
	// Number is the number of the first record that the entry covers, from 1.
	Number int64
	// Used is in units of the row's Version, 1 or more in all entries but the first.
	Used int64
}

// A Record says what a reservation or a hold took from a row and may still give back. A store
// keeps all of its fields with the row. DecideIn makes it, and removes it when it has ended.
type Record struct {
	// Number is the record's number in the Lows of its row, from 1, and Mark their Mark. On a
	// concurrency limit, which has no Lows, Number is 1 and each record has its own Mark.
	Number, Mark int64
	// Units is how many units can still be given back. A token has Unit of them, also after
	// the row was converted: a record is converted when it is given back.
	Units, Unit int64
	// Slack is how many units of other calls, of the row's Version, will be in use when the
	// record is due; -1 if it does not wait. Giving back earlier records leaves at least as
	// much, so that the reservation finds its tokens when it is due.
	Slack int64
	// Due is when this part is due, in µs since the Unix epoch; until then Slack counts.
	Due int64
	// Ends, on the same clock, is when the last part of the record's call is due and it can no
	// longer be cancelled. For a hold Ends is MaxInt, because the record lasts until it is given
	// back; or if nothing is given back when the hold expires, when the hold is forgotten.
	Ends int64
	// Rest is set if the record was given back, except for Units kept for a waiting
	// reservation, which each later cancellation of the key tries to give back.
	Rest bool

	// Hold is the id of the hold that the record belongs to; "" means a reservation.
	Hold string
	// Expires is when the hold expires, in µs since the Unix epoch; 0 for a reservation.
	Expires int64
}

// A RecordID identifies a record among those of its key.
type RecordID struct{ Mark, Number int64 }

// ID returns the identity of the record.
func (r *Record) ID() RecordID { return RecordID{r.Mark, r.Number} }

// FindRecord returns the record with an id from a list, or the zero Record, for a Table that
// has the records of a key in memory.
func FindRecord(rs []Record, id RecordID) Record {
	for i := range rs {
		if rs[i].ID() == id {
			return rs[i]
		}
	}
	return Record{}
}

// ReplaceRecord does to the records of a key what SetRecord of a Table says, and returns
// them. ReplaceRecord may append to the list, but does not change it in place otherwise.
func ReplaceRecord(rs []Record, id RecordID, r Record) []Record {
	i := slices.IndexFunc(rs, func(x Record) bool { return x.ID() == id })
	switch {
	case r == (Record{}) && i == 0:
		return rs[1:]
	case r == (Record{}) && i > 0:
		return slices.Concat(rs[:i], rs[i+1:])
	case r == (Record{}):
		return rs
	case i < 0:
		return append(rs, r)
	}
	rs = slices.Clone(rs)
	rs[i] = r
	return rs
}

// Until returns the time in µs before which the record neither ends nor falls due.
func (r *Record) Until() int64 {
	switch {
	case r.Rest:
		return math.MaxInt64 // such a record is removed together with others
	case r.Hold != "" && r.Ends == MaxInt:
		return r.Expires
	case r.Slack >= 0:
		return r.Due
	}
	return r.Ends
}

// Record returns a record of what op took for a reservation, and adds it to the Lows of row,
// which is the row that Step returned. now is the time of the decision, and ends that at which
// the whole group is due, now + Group.Due, both in µs since the Unix epoch. Call Record for
// each op with Granted > 0 of a group that is Reserved, and store row and record together.
func (op *Op) Record(row *State, id Reservation, now, ends int64) Record {
	r := op.record(row, id.mark(now), now)
	r.Ends = ends
	if row.Lows.add(&r); op.Def.Rule.Sliding { // nothing can be given back to a sliding window
		row.Lows = nil
	}
	return r
}

// add counts a new record in the lows.
func (l *Lows) add(r *Record) {
	if l.Live++; l.Live == 1 {
		l.Due = math.MaxInt64
	}
	if r.Hold != "" {
		l.Holds++
	}
	l.Due, l.Waits = min(l.Due, r.Until()), l.Waits || r.Slack >= 0
}

// Count returns the lows with the Due, Live, Holds and Waits of a key with these records.
func (l *Lows) Count(rs []Record) *Lows {
	c := *l
	c.Due, c.Live, c.Holds, c.Waits = math.MaxInt64, 0, 0, false
	for i := range rs {
		switch r := &rs[i]; {
		case r.Mark != l.Mark:
		case r.Rest:
			c.Waits = true
		default:
			c.add(r)
		}
	}
	return &c
}

// record is Record without Ends, and does not count the record. mark is the Mark that the Lows
// get if this is their first record.
func (op *Op) record(row *State, mark, now int64) Record {
	from := Lows{Mark: mark, Next: 1}
	if row.Lows != nil {
		from = *row.Lows
	}
	l := from.clone()
	units := op.Granted * op.Def.Rule.Unit
	r := Record{Number: l.Next, Mark: l.Mark, Units: units, Unit: op.Def.Rule.Unit, Slack: -1, Due: now + op.Delay}
	if op.Delay > 0 {
		r.Slack = max(op.Def.Rule.Cap-units, 0)
	}
	l.Entries = append(l.Entries, Low{l.Next, row.Used})
	l.Next++
	l.shorten()
	row.Lows = l
	return r
}

// mark returns the Mark of Lows whose first record belongs to this reservation, made at
// now. mark has 48 bits, from the id and from the time, because a request may arrive twice.
func (r Reservation) mark(now int64) int64 {
	return int64((binary.BigEndian.Uint64(r[8:]) + uint64(now)) & (1<<48 - 1))
}

// Advance brings a row and its records up to the time now, in µs. It converts the row to d,
// the definition that Own returns for it, and ends records at their time: it lowers the lows
// before each reservation that has fallen due, gives back holds that have expired, and
// removes what has ended. A change by StartOver ends all records, as a Reset does. rs has all
// records of the row in the order of their numbers, and is changed in place. Advance returns
// the row, whose Lows are nil if no record is left, and the remaining records. The error is
// ErrStaleDefinition if the row is of a later version than d. Call Advance before each write
// to a row that has Lows.
func (d *Definition) Advance(row State, key string, now int64, rs []Record) (State, []Record, error) {
	row, b, err := d.advance(row, key, now, rs)
	return row, b.records, err
}

// books are the records of a row while it is brought up to the time now.
type books struct {
	now     int64
	records []Record
	reset   []Record // records ended by a change with the policy StartOver
}

// advance does the work of Advance.
func (d *Definition) advance(row State, key string, now int64, rs []Record) (State, books, error) {
	b := books{now: now, records: rs}
	var phase int64
	var scratch Rule
	row, ok := d.carry(row, key, &phase, now, &b)
	if !ok {
		return row, b, ErrStaleDefinition
	}
	switch {
	case d.Algorithm == Concurrency:
		row.Used -= min(b.endSlots(), row.Used)
	case slices.ContainsFunc(b.records, func(r Record) bool { return r.expired(now) }):
		row.Used, row.TS = d.RuleFor(key, &scratch).stepped(&row, max(now, row.TS))
		fallthrough
	default:
		row.Used, row.Lows = b.end(row.Lows, row.Used, now, d.Rule.Unit)
	}
	return row, b, nil
}

// end ends the records that have ended at t, of a row with used units in use, and returns
// the units used and the lows after that.
func (b *books) end(lows *Lows, used, t, unit int64) (int64, *Lows) {
	var l Lows // lows without entries if the row has none
	if lows != nil && used != 0 {
		l = *lows.clone()
	}
	l.endDue(t, b.records)
	b.records = l.retire(t, b.records, 0, unit)
	switch old := expired(b.records, t); {
	case len(old) == 0:
	case withholds(b.records):
		for _, r := range old {
			i := slices.IndexFunc(b.records, func(x Record) bool { return x.ID() == r.ID() })
			if len(l.Entries) > 0 && l.Mark == r.Mark {
				used, b.records = l.cancel(used, t, b.records, 0, i, unit)
			} else if i >= 0 {
				b.records = slices.Delete(b.records, i, i+1)
			}
		}
	default:
		used, b.records = l.endHolds(used, t, b.records, old, unit)
	}
	if n := len(l.Entries); n == 0 || l.Entries[n-1].Used == 0 { // nothing is given back through a last low of 0
		return used, nil
	}
	return used, &l
}

// endSlots removes holds of a concurrency limit that have expired, and returns what they held.
func (b *books) endSlots() (held int64) {
	b.records = slices.DeleteFunc(b.records, func(r Record) bool {
		if r.expired(b.now) {
			held += r.Units
		}
		return r.expired(b.now)
	})
	return held
}

// convert converts a row that has used units in use at t under the rule from, that of its key.
// If the row has live records, the policy Proportional works like Keep, because a fraction
// of a record would give back what others took.
func (b *books) convert(s *State, used, t int64, from *Rule, v *step) {
	policy := v.policy
	switch {
	case s.Lows == nil:
	case policy == StartOver:
		s.Lows, b.reset, b.records = nil, append(b.reset, b.records...), nil
	default:
		policy, s.Lows = Keep, s.Lows.convert(v.from.Unit, v.to.Unit)
		convertSlacks(b.records, v.from.Unit, v.to.Unit)
	}
	s.Used, s.TS = policy.convert(used, t, from, v.to), v.stamp(s, used)
	switch {
	case s.Lows == nil:
	case v.to.Sliding: // nothing can be given back to a sliding window
		s.Lows = nil
	case s.Used == v.to.MaxUsed: // used may have been clipped
		s.Lows.clear()
	}
}

// convertSlacks converts the slacks of the records of a row with the row.
func convertSlacks(rs []Record, from, to int64) {
	for i := range rs {
		if r := &rs[i]; r.Slack >= 0 {
			r.Slack = algebra.MulDiv(r.Slack, to, from, false)
		}
	}
}

// in returns the units of a record in a rule whose token has unit of them.
func (r *Record) in(unit int64) int64 {
	if r.Unit == unit {
		return r.Units
	}
	return algebra.MulDiv(r.Units, unit, r.Unit, false)
}

// isCurrent reports whether a row and its override are of the present version.
func (d *Definition) isCurrent(row *State) bool {
	return row.Version == d.Number && (row.Override == nil || row.Override.Version == d.Base().Number)
}

// endDue lowers the lows before each reservation that has fallen due at now.
func (l *Lows) endDue(now int64, rs []Record) {
	var due []*Record
	for i := range rs {
		if rs[i].Slack >= 0 && rs[i].Due <= now {
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
}

// retire removes records that have ended, and cancelled ones whose withheld units
// can no longer be given back. If no live record is left, retire clears the lows. others
// is as in giveBack.
func (l *Lows) retire(now int64, rs []Record, others, unit int64) []Record {
	live, waits := others > 0, int64(0)
	for i := range rs {
		if r := &rs[i]; r.Mark == l.Mark && !r.Rest && (r.Ends > now || r.Slack >= 0) {
			live = true
			if r.Slack >= 0 {
				waits = max(waits, r.Number)
			}
		}
	}
	if !live {
		*l = Lows{}
	}
	// Newer withheld rests are given back before older ones. If the newer rests of a
	// low cover all of its units, nothing of an older one can come back any more.
	low, newer := -1, int64(0)
	for i := len(rs) - 1; i >= 0; i-- {
		if r := &rs[i]; r.Rest && r.Mark == l.Mark {
			if at := l.covers(r.Number); at != low {
				low, newer = at, 0
			}
			if low < 0 || newer >= l.Entries[low].Used {
				r.Units = 0
			}
			newer += r.in(unit)
		}
	}
	return slices.DeleteFunc(rs, func(r Record) bool {
		if r.Rest {
			return r.Mark != l.Mark || r.Units == 0 || r.Number >= waits
		}
		return r.Ends <= now && r.Slack < 0
	})
}

// GiveBack calls Advance, and cancels the record with number and mark at now, in µs. The row
// gets back what the record took and time has not returned yet. What would delay a waiting
// reservation is kept in the record, and each later cancellation of the key tries to give it
// back. GiveBack returns the row to store, which may be full, and the records to store. If the
// row has no such record, because it was cancelled, has ended or was reset, nothing is given
// back, and that is no error.
func (d *Definition) GiveBack(row State, key string, now int64, rs []Record, number, mark int64) (State, []Record, error) {
	row, rs, err := d.Advance(row, key, now, rs)
	if err != nil {
		return row, rs, err
	}
	i := slices.IndexFunc(rs, func(r Record) bool { return r.Number == number && r.Mark == mark && !r.Rest })
	row, rs = d.giveBack(row, key, now, rs, 0, i, 1, 1)
	return row, rs, nil
}

// giveBack gives back num/den of what record i took, and leaves the rest taken. others is how
// many live records of the row's lows are not in rs; none of these waits.
func (d *Definition) giveBack(row State, key string, now int64, rs []Record, others int64, i int, num, den int64) (State, []Record) {
	if d.Algorithm == Concurrency { // a concurrency limit has no lows: all of the units come back
		if i >= 0 {
			row.Used -= min(rs[i].Units, row.Used)
			rs = slices.Delete(rs, i, i+1)
		}
		return row, rs
	}
	var scratch Rule
	if row.Used, row.TS = d.RuleFor(key, &scratch).stepped(&row, max(now, row.TS)); row.Used == 0 {
		row.Lows = nil
	}
	if i < 0 {
		return row, rs
	}
	if row.Lows == nil || row.Lows.Mark != rs[i].Mark {
		return row, slices.Delete(rs, i, i+1)
	}
	var room [4]Low // in common calls no entry is left, and no memory is needed
	l := *row.Lows
	l.Entries = append(room[:0], l.Entries...)
	rs[i].Units = algebra.MulDiv(rs[i].Units, num, den, false)
	row.Used, rs = l.cancel(row.Used, now, rs, others, i, d.Rule.Unit)
	if row.Lows = nil; len(l.Entries) > 0 {
		row.Lows = l.clone()
	}
	return row, rs
}

// cancel gives back record i at now, and units that other records withhold, and returns
// the used units after that.
func (l *Lows) cancel(used, now int64, rs []Record, others int64, i int, unit int64) (int64, []Record) {
	l.touch(used)
	if l.Live--; rs[i].Hold != "" {
		l.Holds--
	}
	rs[i].Rest, rs[i].Slack = true, -1
	used -= l.giveBack(rs, i, unit)
	used -= l.giveWithheld(rs, i, unit)
	if used == 0 { // the row is full: a store may delete it, and the list with it
		*l = Lows{}
	}
	return used, l.retire(now, rs, others, unit)
}

// withholds reports whether a record waits, or withholds units from one that does. If
// so, holds have to end one after the other.
func withholds(rs []Record) bool {
	return slices.ContainsFunc(rs, func(r Record) bool { return r.Rest || r.Slack >= 0 })
}

// expired returns the records of holds that have expired at t, in the order in which they
// expired.
func expired(rs []Record, t int64) (old []Record) {
	for i := range rs {
		if rs[i].expired(t) {
			old = append(old, rs[i])
		}
	}
	slices.SortStableFunc(old, func(a, b Record) int { return cmp.Compare(a.Expires, b.Expires) })
	return old
}

// endHolds is cancel for expired holds, of which a key may have thousands, if no record
// withholds units.
func (l *Lows) endHolds(used, now int64, rs, old []Record, unit int64) (int64, []Record) {
	for _, r := range old {
		if r.Mark == l.Mark && used != 0 {
			l.touch(used)
			used -= l.lower(r.Number, r.in(unit))
		}
	}
	if used == 0 {
		*l = Lows{}
	}
	return used, l.retire(now, slices.DeleteFunc(rs, func(r Record) bool { return r.expired(now) }), 0, unit)
}

// giveBack returns the units that record i gives back now. Units that must be withheld
// stay in the record.
func (l *Lows) giveBack(rs []Record, i int, unit int64) int64 {
	free := int64(MaxInt)
	for j := i + 1; j < len(rs); j++ {
		if w := &rs[j]; w.Slack >= 0 && w.Mark == l.Mark {
			free = min(free, w.Slack)
		}
	}
	units := l.give(&rs[i], free, unit)
	for j := i + 1; j < len(rs); j++ {
		if w := &rs[j]; w.Slack >= 0 && w.Mark == l.Mark {
			w.Slack -= units
		}
	}
	return units
}

// giveWithheld tries to give back the units that records other than i withhold, newest
// first. giveWithheld makes one pass, because a key may have thousands of records.
func (l *Lows) giveWithheld(rs []Record, i int, unit int64) (units int64) {
	free := int64(MaxInt) // smallest slack of the waiting records after record j
	for j := len(rs) - 1; j >= 0; j-- {
		switch r := &rs[j]; {
		case r.Mark != l.Mark || j == i:
		case r.Slack >= 0:
			free = min(free, r.Slack)
			r.Slack += units // units that newer records gave back; subtracted below
		case r.Rest:
			n := l.give(r, free, unit)
			units, free = units+n, free-n
		}
	}
	for j := range rs {
		if w := &rs[j]; w.Slack >= 0 && w.Mark == l.Mark {
			w.Slack -= units
		}
	}
	return units
}

// give takes at most free units off record r, and returns how many of these are
// really given back. A token has unit of these units, also of those that stay in r.
func (l *Lows) give(r *Record, free, unit int64) int64 {
	units := r.in(unit)
	if free = min(units, free); free > 0 {
		r.Units, r.Unit = units-free, unit
	}
	return l.lower(r.Number, free)
}

// lower takes units off every low from that of a record to the last. If a low is smaller
// than units, only the low is passed on. lower returns what the last low passed on.
func (l *Lows) lower(number, units int64) int64 {
	i := l.covers(number)
	if i < 0 {
		return 0
	}
	for ; i < len(l.Entries); i++ {
		e := &l.Entries[i]
		units = min(units, e.Used)
		e.Used -= units
	}
	l.normalize()
	return units
}

// LoweredTo returns the lows after a write of their row with the given used units.
func (l *Lows) LoweredTo(used int64) *Lows {
	if l.Entries[len(l.Entries)-1].Used <= used {
		return l
	}
	c := l.clone()
	c.touch(used)
	return c
}

// touch lowers the last low to the units used now, if these are fewer.
func (l *Lows) touch(used int64) {
	if last := &l.Entries[len(l.Entries)-1]; used < last.Used {
		last.Used = used
		l.normalize()
	}
}

// limit lowers the low of a record to used, if that is less.
func (l *Lows) limit(number, used int64) {
	if i := l.covers(number); i >= 0 && used < l.Entries[i].Used {
		l.Entries[i].Used = used
		l.normalize()
	}
}

// clear sets the lows so that nothing that was taken before can be given back.
func (l *Lows) clear() {
	l.Entries = []Low{{l.Entries[0].Number, 0}}
}

// covers returns the index of the entry that covers a record, or -1 if none does.
func (l *Lows) covers(number int64) int {
	for i := len(l.Entries) - 1; i >= 0; i-- {
		if l.Entries[i].Number <= number {
			return i
		}
	}
	return -1
}

// normalize joins neighbours if the first is not below the next: the result has the
// earlier number and the later low.
func (l *Lows) normalize() {
	n := 0
	for _, e := range l.Entries {
		for ; n > 0 && l.Entries[n-1].Used >= e.Used; n-- {
			e.Number = l.Entries[n-1].Number
		}
		l.Entries[n] = e
		n++
	}
	l.Entries = l.Entries[:n]
}

// shorten joins neighbours until there are at most MaxLows entries. shorten
// chooses the two neighbours whose lows are closest, the oldest of equals and
// never the last entry, and keeps the smaller low.
func (l *Lows) shorten() {
	for e := l.Entries; int64(len(e)) > MaxLows; e = l.Entries {
		at := 1
		for i := 2; i < len(e)-1; i++ {
			if e[i].Used-e[i-1].Used < e[at].Used-e[at-1].Used {
				at = i
			}
		}
		l.Entries = slices.Delete(l.Entries, at, at+1)
	}
}

// clone returns a copy whose first entries are in the same piece of memory.
func (l *Lows) clone() *Lows {
	c := new(struct {
		Lows
		room [2]Low
	})
	c.Lows = Lows{Mark: l.Mark, Next: l.Next, Due: l.Due, Live: l.Live, Holds: l.Holds, Waits: l.Waits, Entries: append(c.room[:0], l.Entries...)}
	return &c.Lows
}

// convert returns the lows in units of another rule, rounded down.
func (l *Lows) convert(from, to int64) *Lows {
	c := l.clone()
	for i := range c.Entries {
		c.Entries[i].Used = algebra.MulDiv(c.Entries[i].Used, to, from, false)
	}
	c.normalize()
	return c
}
