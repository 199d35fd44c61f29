package model

import (
	"slices"
	"strings"
)

// A world is the model: limits, holds and reservations, and a clock.
type world struct {
	now          int64
	prefix       string // of the names of limits in the store: they say where windows begin
	limits       map[string]*limit
	names        []string // of limits, in the order in which they were defined
	holds        map[string]*hold
	floor        int64 // the clock does not step back beyond it
	reservations map[string]*reservation
}

func newWorld() *world {
	return &world{limits: map[string]*limit{}, holds: map[string]*hold{}, reservations: map[string]*reservation{}}
}

// define adds or changes a limit.
func (w *world) define(s settings) {
	v := &version{since: w.now, settings: s, prefix: w.prefix}
	if a := s.algorithm; a == tokenBucket || a == leakyBucket {
		v.every = s.compile(s.numbers, "", "", 0).grid.(even).every
	}
	l := w.limits[s.name]
	if l == nil {
		l = &limit{rows: map[string]*row{}}
		w.limits[s.name] = l
		if !slices.Contains(w.names, s.name) {
			w.names = append(w.names, s.name)
		}
	}
	l.versions = append(l.versions, v)
}

// drop drops a limit, which ends what its rows have. The clock does not step back beyond it.
func (w *world) drop(name string) {
	l := w.limits[name]
	for key := range l.rows {
		r := w.row(l, key)
		r.end()
		w.keepRow(l, key, r)
	}
	delete(w.limits, name)
	w.floor = w.now
}

// droppable are the limits, children after their parents.
func (w *world) droppable() (names []string) {
	for len(names) < len(w.limits) {
		for _, name := range w.names {
			if l := w.limits[name]; l != nil && !slices.Contains(names, name) && (w.limits[l.now().parent] == nil || slices.Contains(names, l.now().parent)) {
				names = append(names, name)
			}
		}
	}
	return names
}

// row is the row of a key, brought to now, as a copy.
func (w *world) row(l *limit, key string) *row {
	r := &row{version: len(l.versions) - 1}
	if old := l.rows[key]; old != nil {
		r = old.clone()
	}
	if r.rule == nil {
		r.rule = l.now().rule(r.place, key)
	}
	w.advance(l, key, r)
	r.stepped = r.used
	return r
}

// keepRow stores a row.
func (w *world) keepRow(l *limit, key string, r *row) {
	for _, p := range r.resets {
		if p.reset = true; p.hold != nil && p.hold.gone() {
			p.hold.ended = min(w.now, p.hold.expires)
		}
	}
	r.resets = nil
	if r.used == r.stepped || r.full() { // a store may have written the time of this, or not
		w.floor = w.now
	}
	l.rows[key] = r
}

// rule is the rule of a place.
func (v *version) rule(p place, key string) *rule {
	id := ruleID{p, key}
	if v.rules == nil {
		v.rules = map[ruleID]*rule{}
	}
	if v.rules[id] == nil {
		s := v.settings
		if p.start != nil {
			s.start = *p.start
		}
		v.rules[id] = s.compile(v.at(p), v.prefix, key, v.every)
	}
	return v.rules[id]
}

type ruleID struct {
	place
	key string
}

// at is the numbers of a place, without modes that take nothing.
func (v *version) at(p place) numbers {
	n := v.numbers
	if q := v.plan(p.plan); q != nil {
		n = n.over(q.numbers)
	}
	for _, o := range slices.Backward(p.layers[:]) {
		if o == nil {
			continue
		}
		if q := v.plan(o.plan); q != nil {
			n = n.over(q.numbers)
		} else {
			n = n.over(o.numbers)
		}
	}
	return n
}

// A choice is what decides a call.
type choice struct {
	place     place
	mode      mode
	name      string // of the plan, "override" for numbers
	temporary *override
}

// choose says what decides the calls of a key that name a plan.
func (v *version) choose(r *row, name string, now int64) choice {
	c := v.layered(r, name, now)
	if r.standing != nil {
		c.place.start = r.standing.start
	}
	return c
}

func (v *version) layered(r *row, name string, now int64) choice {
	c := v.lower(r.standing, name)
	o := r.temporary
	if o == nil || o.until <= now {
		return c
	}
	switch {
	case o.block:
		c = v.lower(r.standing, "")
		c.mode, c.name = blocked, "override"
	case o.plan != "":
		c = v.named(o.plan)
	default:
		c = v.lower(r.standing, "")
		c.place.layers[0] = o
		if r.standing != nil && r.standing.plan != "" && !v.modeOf(r.standing.plan).takesNothing() {
			c.place.layers[1] = r.standing
			c.place.plan = ""
		}
		c.name = "override"
	}
	c.temporary = o
	return c
}

func (v *version) modeOf(plan string) mode {
	if p := v.plan(plan); p != nil {
		return p.mode
	}
	return v.mode
}

// lower is what decides without a temporary override.
func (v *version) lower(standing *override, name string) choice {
	switch {
	case standing == nil:
		return v.named(name)
	case standing.plan != "":
		return v.named(standing.plan)
	}
	return choice{place: place{layers: [2]*override{nil, standing}}, mode: v.mode, name: "override"}
}

// named is what decides a call that names a plan.
func (v *version) named(name string) choice {
	p := v.plan(name)
	if p == nil {
		return choice{mode: v.mode}
	}
	c := choice{place: place{plan: name}, mode: v.mode, name: name}
	if p.moded {
		c.mode = p.mode
	}
	if c.mode.takesNothing() {
		c.place = place{} // rows stay under the base
	}
	return c
}

// advance works off what has happened to a row up to now: records that have ended or fallen
// due, the end of an override, and new versions, in the order of their instants.
func (w *world) advance(l *limit, key string, r *row) {
	for {
		at, do := w.event(l, key, r)
		if do == nil {
			break
		}
		r.step(at)
		do()
	}
	r.step(w.now)
	if r.full() {
		r.version = len(l.versions) - 1
		r.place = place{}
		r.rule = l.now().rule(r.place, key)
	}
}

// event returns what happens to a row next, and up to when the row is stepped before. What
// records give back is given back at the next change of the rule, which comes to the same.
func (w *world) event(l *limit, key string, r *row) (at int64, do func()) {
	at, do = w.change(l, key, r)
	first := w.now
	if do != nil {
		first = at
	}
	var ended func()
	for _, x := range r.records {
		w.recordEvents(r, x, func(when int64, then func()) {
			if when < first || when == first && ended == nil {
				first, ended = when, then
			}
		})
	}
	switch {
	case ended == nil:
		return at, do
	case do == nil:
		return w.now, ended
	}
	return at, ended
}

// change returns what changes the rule of a row next.
func (w *world) change(l *limit, key string, r *row) (at int64, do func()) {
	if r.version+1 < len(l.versions) {
		v := l.versions[r.version+1]
		at, do = min(v.since, w.now), func() { w.renew(l, key, r) }
	}
	if o := r.temporary; o != nil && o.until <= w.now && (do == nil || o.until <= at) {
		at, do = o.until, func() {
			r.temporary = nil
			w.settle(l, key, r, r.version, o.until)
		}
	}
	return at, do
}

func (w *world) recordEvents(r *row, x *record, consider func(int64, func())) {
	if x.delayed {
		consider(x.due, func() {
			x.delayed = false
			if x.mark != r.mark {
				return
			}
			if i := r.covering(x.number - 1); i >= 0 {
				r.lows[i].used = min(r.lows[i].used, x.slack)
				r.merge()
			}
			r.dropRests()
		})
	}
	if x.part == nil {
		return
	}
	h := x.part.hold
	switch {
	case h == nil:
		if !x.delayed {
			consider(x.ends, func() { r.drop(x) })
		}
	case x.kept:
		consider(h.forget(), func() { r.drop(x) })
	default:
		consider(h.expires, func() {
			switch {
			case x.part.keeps:
				x.kept = true
			case r.rule.grid == nil:
				r.drop(x)
			default:
				r.giveBack(x, x.units)
			}
		})
	}
}

// renew brings a row to the next version.
func (w *world) renew(l *limit, key string, r *row) {
	r.version++
	v := l.versions[r.version]
	how := v.onChange
	if r.place.plan != "" && v.plan(r.place.plan) == nil { // a dropped plan
		r.place, how = v.choose(r, "", v.since).place, keep
	}
	if next := v.rule(r.place, key); !next.counts(r.rule) {
		r.convert(next, how, min(v.since, w.now))
	} else {
		r.rule = next
	}
}

// settle brings a row under what decides calls that name no plan, after an override.
func (w *world) settle(l *limit, key string, r *row, version int, at int64) {
	v := l.versions[version]
	c := v.choose(r, "", w.now)
	r.move(v, c.place, key, at)
}

// move brings a row under another place of a version.
func (r *row) move(v *version, p place, key string, at int64) {
	if r.place == p {
		return
	}
	r.place = p
	r.convert(v.rule(p, key), keep, at)
}

// setOverride sets an override of a key.
func (w *world) setOverride(name, key string, o *override) {
	l := w.limits[name]
	r := w.row(l, key)
	if o.until != 0 {
		r.temporary = o
	} else {
		r.standing = o
	}
	w.settle(l, key, r, len(l.versions)-1, w.now)
	w.keepRow(l, key, r)
}

// endOverride ends one, by default the one on top. Of a block alone it ends no other one.
func (w *world) endOverride(name, key string, temporary, standing, block bool) *override {
	l := w.limits[name]
	r := w.row(l, key)
	var ended *override
	switch {
	case (temporary || block && r.temporary != nil && r.temporary.block) && r.temporary != nil:
		ended, r.temporary = r.temporary, nil
	case standing && r.standing != nil:
		ended, r.standing = r.standing, nil
	}
	if ended != nil {
		w.settle(l, key, r, len(l.versions)-1, w.now)
		w.keepRow(l, key, r)
	}
	return ended
}

// ahead is how long to wait until the clock, which stepped back, has reached the last time of
// every full row, or of all rows. Until then stores that have deleted such a row differ from others.
func (w *world) ahead(all bool) (by int64) {
	for _, l := range w.limits {
		for key, r := range l.rows {
			if r.ts > w.now && (all || w.row(l, key).full()) {
				by = max(by, r.ts-w.now)
			}
		}
	}
	return by
}

// calm reports whether the clock may step back by some µs without a difference between stores
// that have forgotten what has ended and those that have not yet.
func (w *world) calm(by int64) bool {
	back := func(at int64) bool { return at <= w.now && at > w.now-by }
	if w.now-by < w.floor {
		return false
	}
	for _, l := range w.limits {
		if l.now().since > w.now-by {
			return false
		}
		for key, r := range l.rows {
			if _, do := w.event(l, key, r); do != nil && (!r.full() || len(r.records) > 0 || r.temporary != nil) {
				return false
			}
			if (r.rule.sliding || l.now().block > 0 && r.ts > w.now-by) && !r.full() {
				return false
			}
			if r.used > 0 && r.rule.grid != nil && back(r.rule.grid.after(r.ts, ceilDiv(r.used, r.rule.add))) {
				return false
			}
		}
	}
	for _, v := range w.reservations {
		if back(v.due) {
			return false
		}
	}
	for _, h := range w.holds {
		if back(h.expires) || back(h.forget()) {
			return false
		}
	}
	return true
}

// A take is a cost for a key of a limit.
type take struct {
	limit, key string
	cost       int64
	plan       string
	floor      int64
}

// A level is a limit and a key that a call asks: of a take, or of a parent of its limit.
type level struct {
	take
	takes []int // which takes of the call it belongs to
	l     *limit
}

// levels are those of a call: in the order of the takes, then parents.
func (w *world) levels(takes []take, parents bool) []*level {
	var out []*level
	find := func(t take, i int) {
		for _, x := range out {
			if x.limit == t.limit && x.key == t.key {
				x.cost += t.cost
				x.floor = max(x.floor, t.floor)
				x.takes = append(x.takes, i)
				return
			}
		}
		out = append(out, &level{take: t, takes: []int{i}, l: w.limits[t.limit]})
	}
	for i, t := range takes {
		find(t, i)
	}
	if parents {
		for i, t := range takes {
			for v := w.limits[t.limit].now(); v.parent != ""; v = w.limits[t.limit].now() {
				t.limit, t.key, t.floor = v.parent, t.key[:max(strings.LastIndexByte(t.key, '/'), 0)], 0
				up := t
				if p := w.limits[t.limit].now().plan(t.plan); p == nil || p.callable != children {
					up.plan = ""
				}
				find(up, i)
			}
		}
	}
	return out
}

// caps is the largest charge of a key.
func (w *world) maxCharge(l *limit, key string, r *row) int64 {
	v := l.now()
	most := v.rule(place{}, key).maxCharge
	for _, p := range v.plans {
		if !p.mode.takesNothing() {
			most = max(most, v.rule(place{plan: p.name}, key).maxCharge)
		}
	}
	c := v.choose(r, "", w.now)
	return max(most, v.rule(c.place, key).maxCharge)
}
