package storetest

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// This file is the model's implementation of "Giving back" in the contract.

// list has the lows of a row with live records: a low is how many of the tokens
// that a record took are still in use. Record numbers and lows rise from entry to entry.
type list struct {
	next int64
	lows []low
}

type low struct {
	number int64
	used   *big.Rat
}

// record has the tokens that one call took from one row.
type record struct {
	list      *list // the list that the row had when the record was made
	number    int64
	tokens    *big.Rat // tokens that may still be given back
	slack     *big.Rat // nil if the reservation had no delay, or is due
	due, ends int64    // when this part is due, and when the whole call is
	cancelled bool
}

// record adds a record of a part of a reservation, whose row was just written.
func (m *model) record(v *reservation, p *part, now, delay int64) {
	if p.rule.sliding { // nothing can be given back to a sliding window
		p.record = &record{list: new(list), tokens: p.tokens}
		return
	}
	row := m.rows[p.key]
	if row.list == nil {
		row.list = &list{next: 1}
	}
	l := row.list
	r := &record{list: l, number: l.next, tokens: p.tokens, due: now + delay, ends: v.due}
	if delay > 0 {
		r.slack = new(big.Rat).Sub(rat(p.rule.burst), p.tokens)
		if r.slack.Sign() < 0 {
			r.slack = rat(0)
		}
	}
	l.next++
	l.lows = append(l.lows, low{r.number, row.used})
	l.join()
	l.shorten()
	p.record = r
	m.records[p.key] = append(m.records[p.key], r)
}

// A view is a copy of a row, stepped to a time. The view's list and records are copies
// too, so that looking changes nothing. The view has the records only if a change of the
// limit may have ended some.
type view struct {
	used    *big.Rat
	ts      int64
	list    *list // nil: the row has no live record
	records []*record
	reset   bool // a change of the limit ended the records
}

// look returns a row at now. Records that end before the end of a version end before the
// row is converted to the next.
func (m *model) look(k rowKey, now int64) (v view) {
	r := m.rows[k]
	if r == nil {
		return view{used: rat(0), ts: now}
	}
	v = view{used: r.used, ts: r.ts}
	if r.list != nil {
		v.list = &list{r.list.next, slices.Clone(r.list.lows)}
	}
	rule := r.rule
	if rule.next != nil {
		v.records = m.copies(k, v.list)
	}
	for ; rule.next != nil; rule = rule.next {
		end, begin := max(v.ts, rule.next.since), int64(0)
		v.used, begin = rule.stepTo(v.used, v.ts, end, k)
		v.ts = rule.goesOn(end, begin)
		v.end(min(end, now))
		v.convert(rule, end, k)
	}
	v.used, v.ts = rule.stepTo(v.used, v.ts, max(now, v.ts), k)
	return v
}

// copies returns copies of a key's records. The copies of records that belong to the row's
// list refer to the copied list.
func (m *model) copies(k rowKey, list *list) []*record {
	own := m.rows[k].list
	all, records := make([]record, len(m.records[k])), make([]*record, len(m.records[k]))
	for i, c := range m.records[k] {
		records[i], all[i] = &all[i], *c
		if c.list == own {
			all[i].list = list
		}
	}
	return records
}

// convert converts a row to the version after rule, which begins at t: beside live records
// the tokens are kept, or all is forgotten.
func (v *view) convert(rule *rule, t int64, k rowKey) {
	to := rule.next
	switch {
	case v.list == nil:
		v.used = rule.change(v.used, t, k, to.policy)
		return
	case to.policy == store.StartOver:
		v.used, v.list, v.records, v.reset = rat(0), nil, nil, true
		return
	}
	v.used = rule.change(v.used, t, k, store.Keep)
	for i := range v.list.lows {
		l := &v.list.lows[i]
		if l.used = to.roundDown(l.used); v.used.Cmp(to.most) == 0 {
			l.used = rat(0)
		}
	}
	v.list.join()
	for _, c := range v.records {
		if c.list == v.list && c.slack != nil {
			c.slack = to.roundDown(c.slack)
		}
	}
	if to.sliding { // a sliding window has no list
		v.list = nil
	}
}

// end ends the records that are due by t. Each ended record lowers the low that covers the
// record before it. The record due first ends first, so that one late call has the same
// result as a call at each due time.
func (v *view) end(t int64) {
	l := v.list
	if l == nil {
		return
	}
	var due []*record
	for _, c := range v.records {
		if c.list == l && c.slack != nil && c.due <= t {
			due = append(due, c)
		}
	}
	slices.SortStableFunc(due, func(a, b *record) int { return cmp.Compare(a.due, b.due) })
	for _, c := range due {
		for i := range l.lows {
			e := &l.lows[i]
			covers := e.number < c.number && (i == len(l.lows)-1 || l.lows[i+1].number >= c.number)
			if covers && c.slack.Cmp(e.used) < 0 {
				e.used = c.slack
			}
		}
		c.slack = nil
		l.join()
	}
	live := slices.ContainsFunc(v.records, func(c *record) bool { return c.list == l && !c.cancelled && c.ends > t })
	if !live || v.used.Sign() == 0 || l.lows[len(l.lows)-1].used.Sign() == 0 { // a full row is the same as a missing one, and nothing is given back through a low of 0
		v.list = nil
	}
}

// touch returns the list of a row, advanced to now, for the write that follows.
// It is nil if the row is full or has no live record.
func (m *model) touch(k rowKey, now int64) *list {
	r := m.rows[k]
	if r == nil || r.list == nil {
		return nil
	}
	v := m.look(k, now)
	if v.reset {
		m.forgetRecords(func(other rowKey) bool { return other == k })
		return nil
	}
	stepped := v.list
	if r.rule.next == nil {
		v.records = m.copies(k, stepped)
	}
	if v.end(now); stepped != nil {
		*r.list = *stepped
	}
	for i, c := range v.records {
		c.list = m.records[k][i].list
		*m.records[k][i] = *c
	}
	if v.list == nil {
		return nil
	}
	l := r.list
	if last := &l.lows[len(l.lows)-1]; v.used.Cmp(last.used) < 0 {
		last.used = v.used
	}
	l.join()
	return l
}

func (m *model) live(l *list, k rowKey, now int64) bool {
	return slices.ContainsFunc(m.records[k], func(c *record) bool { return c.list == l && !c.cancelled && c.ends > now })
}

// giveBack cancels a record, and also gives back what was withheld for other
// cancelled records. A row whose list is not the record's list is only stepped to now.
func (m *model) giveBack(k rowKey, c *record, now int64) {
	if m.rows[k] == nil {
		c.cancelled, c.slack = true, nil
		return
	}
	next := &row{used: m.usedAt(k, now), ts: m.instant(k, now), rule: m.rule(k.limit)} // made before touch, which may end the list
	l := m.touch(k, now)
	next.list = l
	c.cancelled, c.slack = true, nil
	if l != nil && c.list == l {
		next.used = new(big.Rat).Sub(next.used, m.give(k, c))
		for _, other := range slices.Backward(m.records[k]) {
			if other != c && other.list == l && other.cancelled && other.tokens.Sign() > 0 {
				next.used.Sub(next.used, m.give(k, other))
			}
		}
	}
	if l != nil && !m.live(l, k, now) {
		next.list = nil
	}
	m.rows[k] = next
}

// give returns the tokens that a record gives back now, and takes them off the
// record, the lows and the slacks of later records.
func (m *model) give(k rowKey, c *record) *big.Rat {
	var later []*record // later records that have a slack
	tokens := m.rule(k.limit).roundDown(c.tokens)
	most := tokens
	for _, w := range m.records[k] {
		if w.list == c.list && w.number > c.number && w.slack != nil {
			later = append(later, w)
			most = least(most, w.slack)
		}
	}
	if most.Sign() > 0 {
		c.tokens = new(big.Rat).Sub(tokens, most)
	}
	back := c.list.giveBack(c.number, most)
	for _, w := range later {
		w.slack = new(big.Rat).Sub(w.slack, back)
	}
	return back
}

// giveBack lowers each low from the one that covers a record on, by at most
// tokens, and returns by how much all of them could be lowered.
func (l *list) giveBack(number int64, tokens *big.Rat) *big.Rat {
	for i := range l.lows {
		if i < len(l.lows)-1 && l.lows[i+1].number <= number {
			continue
		}
		tokens = least(tokens, l.lows[i].used)
		l.lows[i].used = new(big.Rat).Sub(l.lows[i].used, tokens)
	}
	l.join()
	return tokens
}

// join replaces two neighbouring lows that do not rise by one entry with
// the number of the first and the low of the second.
func (l *list) join() {
	for i := 0; i+1 < len(l.lows); {
		if l.lows[i].used.Cmp(l.lows[i+1].used) < 0 {
			i++
			continue
		}
		l.lows[i].used = l.lows[i+1].used
		l.lows = slices.Delete(l.lows, i+1, i+2)
		i = max(0, i-1)
	}
}

// shorten merges the neighbours whose lows differ least, the oldest of equals
// and never the last, keeping the smaller low, until at most 32 entries are left.
func (l *list) shorten() {
	for len(l.lows) > 32 {
		var at int
		var gap *big.Rat
		for i := 1; i < len(l.lows)-1; i++ {
			if g := new(big.Rat).Sub(l.lows[i].used, l.lows[i-1].used); gap == nil || g.Cmp(gap) < 0 {
				at, gap = i, g
			}
		}
		l.lows = slices.Delete(l.lows, at, at+1)
	}
}

func least(a, b *big.Rat) *big.Rat {
	if b.Cmp(a) < 0 {
		return b
	}
	return a
}

// forgetRecords deletes the records of some keys and the reservations that have
// a part in them. Records of these reservations on other keys stay, but can no
// longer be cancelled.
func (m *model) forgetRecords(of func(rowKey) bool) {
	for k := range m.records {
		if of(k) {
			delete(m.records, k)
		}
	}
	for id, v := range m.reservations {
		if slices.ContainsFunc(v.parts, func(p part) bool { return of(p.key) }) {
			delete(m.reservations, id)
		}
	}
}
