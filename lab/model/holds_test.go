package model

import (
	"fmt"
	"slices"
)

// A part is what a hold or a reservation took from a key.
type part struct {
	limit, key string
	plan       string // that the call named
	number     int64  // of the record; 0: none
	cost       int64  // tokens
	takes      []int
	hold       *hold // nil of a reservation
	keeps      bool
	reset      bool
}

type hold struct {
	id      string
	call    string
	ttl     int64
	expires int64
	ended   int64 // when it was settled
	settled bool
	costs   []int64
	takes   int
	given   []int64 // costs of the takes
	parts   []*part
}

// forget is when the record of an ended hold goes.
func (h *hold) forget() int64 {
	stays := min(max(h.ttl, 60e6), 3600e6)
	if h.settled || h.gone() {
		return h.ended + stays
	}
	return h.expires + stays
}

// gone reports whether Reset has ended every part.
func (h *hold) gone() bool {
	for _, p := range h.parts {
		if !p.reset {
			return false
		}
	}
	return true
}

// goneNow is gone, with the parts of limits that are dropped.
func (h *hold) goneNow(w *world) bool {
	for _, p := range h.parts {
		if !p.reset && w.limits[p.limit] != nil {
			return false
		}
	}
	return true
}

type reservation struct {
	due   int64
	parts []*part
}

// reserve makes the records of a reservation.
func (w *world) reserve(steps []*step, id string, waits int64) {
	v := &reservation{due: w.now + waits}
	for _, s := range steps {
		if s.took == 0 {
			continue
		}
		p := &part{limit: s.level.limit, key: s.level.key, cost: s.took}
		x := &record{units: exact(s.took, s.c.rule.unit), part: p, ends: v.due}
		if s.delay > 0 {
			x.delayed, x.due = true, w.now+s.delay
			x.slack = max(0, s.c.rule.cap-x.units)
		}
		s.c.add(x)
		p.number = x.number
		v.parts = append(v.parts, p)
	}
	w.reservations[id] = v
}

// cancel gives a reservation back.
func (w *world) cancel(id string) answer {
	v := w.reservations[id]
	if v == nil || w.now >= v.due {
		return answer{err: "reservation"}
	}
	rows := make([]*row, len(v.parts))
	for i, p := range v.parts {
		if w.limits[p.limit] == nil {
			return answer{err: "reservation"}
		}
		rows[i] = w.row(w.limits[p.limit], p.key)
		if p.reset || slices.Contains(rows[i].resets, p) {
			return answer{err: "reservation"}
		}
	}
	delete(w.reservations, id)
	for i, p := range v.parts {
		r := rows[i]
		if x := r.record(p.number); x != nil {
			x.delayed = false
			r.giveBack(x, x.units)
			r.giveRests()
		}
		w.keepRow(w.limits[p.limit], p.key, r)
	}
	return answer{allowed: true}
}

// make makes a hold.
func (w *world) make(id string, ttl int64, takes []take) answer {
	call := fmt.Sprint(ttl, takes)
	if h := w.bring(id); h != nil && w.now < h.forget() {
		if h.settled || w.now >= h.expires || h.gone() || h.call != call {
			return answer{err: "conflict"}
		}
		return w.present(h, answer{allowed: true, repeated: true, expires: h.expires})
	}
	var steps []*step
	a := answer{allowed: true, expires: w.now + ttl}
	for _, x := range w.levels(takes, true) {
		s := w.open(x)
		if s.l.now().algorithm == concurrency {
			w.askSlots(s)
		} else {
			w.ask(s, vTake)
		}
		steps = append(steps, s)
	}
	w.block(steps, vTake)
	for _, s := range steps {
		a.allowed = a.allowed && s.allowed
	}
	if !a.allowed {
		a.expires = 0
		for _, s := range steps {
			s.granted = 0
			w.finish(s, false)
		}
		return a.with(steps)
	}
	h := &hold{id: id, call: call, ttl: ttl, expires: w.now + ttl, takes: len(takes)}
	for _, t := range takes {
		h.given = append(h.given, t.cost)
	}
	for _, s := range steps {
		w.hold(h, s)
		w.finish(s, true)
	}
	w.holds[id] = h
	return a.with(steps)
}

// bring is a hold whose rows are brought to now: a change may have ended its parts.
func (w *world) bring(id string) *hold {
	h := w.holds[id]
	if h != nil {
		for _, p := range h.parts {
			if w.limits[p.limit] == nil {
				continue
			}
			w.keepRow(w.limits[p.limit], p.key, w.row(w.limits[p.limit], p.key))
		}
	}
	return h
}

// hold takes what a hold takes of a level.
func (w *world) hold(h *hold, s *step) {
	p := &part{limit: s.level.limit, key: s.level.key, plan: s.level.plan, cost: s.took, takes: s.takes, hold: h, keeps: s.l.now().keeps}
	h.parts = append(h.parts, p)
	if s.took == 0 {
		return
	}
	if s.c.rule.grid != nil {
		w.charge(s, s.took)
	}
	x := &record{units: exact(s.took, s.c.rule.unit), part: p}
	s.c.add(x)
	p.number = x.number
	if s.c.rule.grid == nil {
		if w.slotState(s); s.mode == unlimited {
			s.remain = maxInt
		}
	} else {
		w.state(s)
	}
}

// present fills in the present state of a hold's parts.
func (w *world) present(h *hold, a answer) answer {
	for _, p := range h.parts {
		if w.limits[p.limit] != nil {
			a.levels = append(a.levels, w.tellPart(p))
		}
	}
	return a
}

func (w *world) tellPart(p *part) told {
	s := w.open(&level{take: take{limit: p.limit, key: p.key, plan: p.plan}, l: w.limits[p.limit]})
	s.told = told{limit: p.limit, key: p.key, allowed: true}
	if s.l.now().algorithm == concurrency {
		w.slotState(s)
		s.capacity = s.c.rule.burst
		if s.plan = s.name; s.mode == unlimited {
			s.capacity, s.remain = maxInt, maxInt
		}
		return s.said()
	}
	s.capacity, s.plan = s.c.rule.burst, s.name
	w.state(s)
	if s.mode == unlimited {
		s.capacity, s.remain, s.reset = maxInt, maxInt, 0
	}
	return s.said()
}

// settle ends a hold with what was used.
func (w *world) end(id string, costs []int64) answer {
	h := w.holds[id]
	if h == nil || w.now >= h.forget() {
		return answer{err: "unknown hold"}
	}
	if h.settled {
		if !slices.Equal(h.costs, costs) {
			return answer{err: "conflict"}
		}
		return w.present(h, answer{allowed: true, repeated: true})
	}
	late := w.now >= h.expires
	rows := make([]*row, len(h.parts))
	for i, p := range h.parts {
		if w.limits[p.limit] == nil {
			continue
		}
		rows[i] = w.row(w.limits[p.limit], p.key)
		if !w.settlePart(h, p, rows[i], h.costOf(p, costs), late) {
			return answer{err: "field cost"}
		}
	}
	for i, p := range h.parts {
		if p.reset = p.reset || rows[i] == nil; rows[i] != nil {
			w.keepRow(w.limits[p.limit], p.key, rows[i])
		}
	}
	h.settled, h.ended, h.costs = true, w.now, costs
	return w.present(h, answer{allowed: true})
}

// costOf is what a settle settles a part to. Takes of one key are one part.
func (h *hold) costOf(p *part, costs []int64) (sum int64) {
	for _, i := range p.takes {
		sum += costs[i]
	}
	return sum
}

// settlePart gives back or charges the difference of a part.
func (w *world) settlePart(h *hold, p *part, r *row, cost int64, late bool) bool {
	l := w.limits[p.limit]
	if p.cost == 0 || p.reset || slices.Contains(r.resets, p) {
		return true
	}
	x := r.record(p.number)
	if r.rule.grid == nil {
		if x != nil && x.part == p {
			r.drop(x)
		}
		return true
	}
	free := l.now().choose(r, p.plan, w.now).mode == unlimited // nothing is charged
	held := p.cost
	if late && !p.keeps {
		held = 0
	}
	switch {
	case cost > held:
		most := max(w.maxCharge(l, p.key, r), p.cost-held)
		if !free && cost-held > most {
			return false
		}
		if x != nil && x.part == p {
			r.drop(x)
		}
		w.chargePart(l, p, r, cost-held)
	case x != nil && x.part == p:
		if cost == held {
			r.drop(x)
			break
		}
		r.giveBack(x, x.units-scaleUp(x.units, cost, held))
	}
	return true
}

// chargePart charges tokens that were used beyond what is held.
func (w *world) chargePart(l *limit, p *part, r *row, tokens int64) {
	v := l.now()
	c := v.choose(r, p.plan, w.now)
	if c.mode == unlimited {
		return
	}
	if r.used == 0 {
		r.place, r.rule = c.place, v.rule(c.place, p.key)
		r.version = len(l.versions) - 1
	}
	r.take(exact(tokens, r.rule.unit), w.now)
}

// extend lets a hold expire ttl from now.
func (w *world) extend(id string, ttl int64) answer {
	h := w.bring(id) // what else has ended by now has ended before
	switch {
	case h == nil || w.now >= h.forget():
		return answer{err: "unknown hold"}
	case h.settled || w.now >= h.expires || h.goneNow(w):
		return answer{err: "conflict"}
	}
	for _, p := range h.parts {
		p.reset = p.reset || w.limits[p.limit] == nil
	}
	h.expires = w.now + ttl
	return w.present(h, answer{allowed: true, expires: h.expires})
}
