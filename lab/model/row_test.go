package model

import "slices"

// A place is what a row is under: the base, a plan, or the numbers of overrides, the
// temporary one first.
type place struct {
	plan   string
	layers [2]*override
	start  *start // of the standing override, nil: that of the limit
}

// An override decides the calls of a key.
type override struct {
	plan    string // or
	numbers        // of its own
	start   *start // when the windows of the key begin, nil: as those of the limit
	text    string // of start, in what a store says
	until   int64  // 0: it stands until it is ended
	block   bool   // began by a refusal
}

// A version of a limit, from its start on.
type version struct {
	since  int64
	prefix string
	settings
	every int64 // of the base, 0 for windows
	rules map[ruleID]*rule
}

type limit struct {
	versions []*version
	rows     map[string]*row
}

func (l *limit) now() *version { return l.versions[len(l.versions)-1] }

// A row is all that is kept for a key.
type row struct {
	used, ts int64
	prev     int64 // of a sliding window, what was taken in the window before
	place    place
	version  int // index
	rule     *rule

	records []*record // in the order of their numbers
	lows    []low
	next    int64 // number of the next record
	mark    int64 // of the list of lows: another after the row was full

	standing, temporary *override

	stepped int64 // in a copy: what was used before the call

	resets []*part // parts that ended by a reset; marked once the row is kept
}

// A record is what a reservation or a hold took.
type record struct {
	number int64
	mark   int64
	units  int64
	unit   int64 // in which they are counted
	part   *part

	delayed bool  // waits for its tokens until due
	slack   int64 // if it is delayed
	due     int64
	ends    int64 // of a reservation: when all of it is due

	rest bool // given back, but for units that were withheld
	kept bool // of a hold with on_expire: keep that has expired
}

// A low says that since the record with a number was made at least so much has been used.
type low struct{ number, used int64 }

func (r *row) clone() *row {
	c := *r
	c.records = make([]*record, len(r.records))
	for i, x := range r.records {
		y := *x
		c.records[i] = &y
	}
	c.lows = slices.Clone(r.lows)
	return &c
}

func (r *row) record(number int64) *record {
	for _, x := range r.records {
		if x.number == number {
			return x
		}
	}
	return nil
}

// full reports whether a row counts as missing.
func (r *row) full() bool { return r.used == 0 && r.prev == 0 }

// time is the time of a decision at now: ts never moves back.
func (r *row) time(now int64) int64 {
	if r.full() {
		return now
	}
	return max(now, r.ts)
}

// step brings a row to the time at.
func (r *row) step(at int64) {
	if r.full() || r.rule.grid == nil {
		return
	}
	t := max(at, r.ts)
	n := r.rule.grid.between(r.ts, t)
	if r.rule.sliding {
		r.slide(n)
		r.ts = t
		return
	}
	if back := mul(n, r.rule.add); !back.IsInt64() || back.Int64() >= r.used {
		r.used = 0
	} else {
		r.used -= back.Int64()
	}
	if g, begins := r.rule.grid.(fromCall); begins { // ts is the beginning of the window
		t = g.after(r.ts, n)
	}
	r.ts = t
}

// touch lowers the low to what is used. Converting does not, so that less is rounded.
func (r *row) touch() {
	if n := len(r.lows); n > 0 {
		r.lows[n-1].used = min(r.lows[n-1].used, r.used)
		r.merge()
	}
}

// merge makes lows rise from entry to entry, at most 32 of them.
func (r *row) merge() {
	var out []low
	for _, e := range r.lows {
		for len(out) > 0 && out[len(out)-1].used >= e.used {
			e.number = out[len(out)-1].number
			out = out[:len(out)-1]
		}
		out = append(out, e)
	}
	for len(out) > 32 {
		closest := 0
		for i := 1; i+2 < len(out); i++ { // never the last
			if out[i+1].used-out[i].used < out[closest+1].used-out[closest].used {
				closest = i
			}
		}
		out = slices.Delete(out, closest+1, closest+2)
	}
	r.lows = out
}

// add keeps a record of what was just taken.
func (r *row) add(x *record) {
	if r.next == 0 {
		r.next = 1
	}
	x.number, x.unit, x.mark = r.next, r.rule.unit, r.mark
	r.next++
	r.records = append(r.records, x)
	if r.rule.sliding { // nothing is given back to it
		x.mark = -1
	} else if r.rule.grid != nil {
		r.lows = append(r.lows, low{x.number, r.used})
		r.merge()
	}
}

// live reports whether something of a record may be there.
func (r *row) live() bool {
	return slices.ContainsFunc(r.records, func(x *record) bool { return x.mark == r.mark })
}

// drop removes a record. The lows go with the last.
func (r *row) drop(x *record) {
	r.records = slices.DeleteFunc(r.records, func(y *record) bool { return y == x })
	if !r.live() {
		r.lows = nil
	}
}

// covering is the index of the entry that covers a number, or -1.
func (r *row) covering(number int64) int {
	at := -1
	for i, e := range r.lows {
		if e.number <= number {
			at = i
		}
	}
	return at
}

// giveBack gives back what a record still has, and drops it unless something was withheld
// for reservations that wait.
func (r *row) giveBack(x *record, units int64) {
	if x.mark != r.mark || r.used == 0 {
		r.drop(x)
		return
	}
	r.touch()
	b := scaleDown(units, r.rule.unit, x.unit)
	room := b
	for _, y := range r.records {
		if y.delayed && y.mark == r.mark && y.number > x.number {
			room = min(room, y.slack)
		}
	}
	at := max(r.covering(x.number), 0)
	there, m := b, room
	for i := at; i < len(r.lows); i++ {
		there = min(there, r.lows[i].used)
		m = min(m, r.lows[i].used)
		r.lows[i].used -= m
	}
	m = min(m, r.used)
	there = min(there, r.used)
	r.used -= m
	for _, y := range r.records {
		if y.delayed && y.mark == r.mark && y.number > x.number {
			y.slack -= m
		}
	}
	r.merge()
	if there > m {
		x.units, x.unit, x.rest, x.delayed, x.part, x.ends = there-m, r.rule.unit, true, false, nil, maxInt
		return
	}
	r.drop(x)
}

// dropRests drops what was withheld for reservations that have fallen due: their slacks have
// lowered the lows for good.
func (r *row) dropRests() {
	last := int64(0)
	for _, x := range r.records {
		if x.delayed && x.mark == r.mark {
			last = max(last, x.number)
		}
	}
	for _, x := range slices.Clone(r.records) {
		if x.rest && x.number >= last {
			r.drop(x)
		}
	}
}

// giveRests tries again to give back what was withheld, newest record first.
func (r *row) giveRests() {
	for _, x := range slices.Backward(slices.Clone(r.records)) {
		if x.rest {
			r.giveBack(x, x.units)
		}
	}
}

// take uses units, up to the most that can be counted. What was given to records of a row
// that has been full since has all come back.
func (r *row) take(units, now int64) {
	_, begins := r.rule.grid.(fromCall)
	if r.full() || !begins {
		r.ts = r.time(now)
	}
	if r.full() {
		r.mark++
		r.lows = nil
	}
	r.touch()
	r.used += units
	r.clip()
}

func (r *row) clip() {
	if r.rule.sliding {
		r.used = min(r.used, mostSliding)
		return
	}
	if r.used > r.rule.maxUsed {
		r.used = r.rule.maxUsed
		for i := range r.lows {
			r.lows[i].used = 0
		}
		r.merge()
	}
}

// end ends the records of a row that becomes full.
func (r *row) end() {
	for _, x := range r.records {
		if x.part != nil {
			r.resets = append(r.resets, x.part)
		}
	}
	r.used, r.prev, r.records, r.lows = 0, 0, nil, nil
}

// convert brings a row under another rule at an instant.
func (r *row) convert(to *rule, how policy, at int64) {
	from := r.rule
	r.rule = to
	if to.grid == nil || r.full() {
		return
	}
	if _, begins := from.grid.(fromCall); begins && from.grid != to.grid {
		r.ts = max(at, r.ts)
	}
	switch {
	case how == reset && r.live(): // ends the records, as a reset does
		r.end()
		return
	case from.sliding || to.sliding:
		r.convertSliding(from, how)
		return
	case how == reset:
		r.used = 0
		return
	case how == proportional && !r.live() && from.cap > 0:
		r.used = scaleUp(r.used, to.cap, from.cap)
	default:
		r.used = scaleUp(r.used, to.unit, from.unit)
		for i := range r.lows {
			r.lows[i].used = scaleDown(r.lows[i].used, to.unit, from.unit)
		}
		r.merge()
		for _, x := range r.records {
			if x.delayed {
				x.slack = scaleDown(x.slack, to.unit, from.unit)
			}
		}
	}
	r.clip()
}
