package model

import "math/big"

type verb int

const (
	vTake verb = iota
	vCheck
	vTakeUpTo
	vReserve
	vCharge
	vRefund
	vReset
)

// An answer is what a call is told.
type answer struct {
	err      string // the class of an error
	allowed  bool
	levels   []told
	reserved bool
	repeated bool
	expires  int64

	overrides []string // of an inspected key: the temporary one, and the standing one
}

// told is what an answer says of a limit and key.
type told struct {
	limit, key       string
	allowed          bool
	never, shadow    bool
	bound            bool
	granted          int64
	capacity, remain int64
	retry, reset     int64
	delay            int64
	blocked          int64 // until when the key is
	plan             string
	freed            bool // its live holds can give nothing back any more
}

// A step is a level with its row and what has been decided.
type step struct {
	*level
	r *row // brought to now, as it is
	c *row // under what decides
	choice
	told
	took  int64 // tokens
	alone bool  // it refuses by itself
	moves bool  // as a refusal that would be allowed later, which moves the row to a faster definition
}

// open reads the row of a level, under what decides a call of it.
func (w *world) open(x *level) *step { return w.openRow(x, w.row(x.l, x.key)) }

func (w *world) openRow(x *level, r *row) *step {
	s := &step{level: x, r: r}
	v := x.l.now()
	s.choice = v.choose(s.r, x.plan, w.now)
	s.c = s.r.clone()
	if s.c.full() {
		s.c.place, s.c.rule = s.place, v.rule(s.place, x.key)
	} else {
		s.c.move(v, s.place, x.key, w.now)
	}
	return s
}

// until is the time from now until at most so many units are used.
func (w *world) until(r *row, units int64) int64 {
	if r.used <= units {
		return 0
	}
	t := r.time(w.now)
	if _, begins := r.rule.grid.(fromCall); begins {
		t = r.ts
	}
	return r.rule.grid.after(t, ceilDiv(r.used-units, r.rule.add)) - w.now
}

// free is how many units a call may leave used, and whether it ever can.
func (s *step) most(v verb, rule *rule, floor int64) int64 {
	if v == vReserve || rule.leaky && (v == vTake || v == vCheck) {
		return rule.cap + rule.debt
	}
	return rule.cap - exact(floor, rule.unit)
}

// ask decides a level as if it were alone.
func (w *world) ask(s *step, v verb) {
	if s.cost == 0 {
		v = vCheck
	}
	s.told = told{limit: s.level.limit, key: s.level.key, plan: s.name, capacity: s.c.rule.burst}
	rule := s.c.rule
	if s.mode == unlimited {
		s.allowed, s.granted = true, s.cost
		if v == vCheck {
			s.granted = 0
		}
		s.capacity, s.remain = maxInt, maxInt
		return
	}
	if s.c.rule.sliding {
		w.askSliding(s, v)
		return
	}
	cost := s.cost
	if v == vTakeUpTo {
		whole := max(0, floorDiv(rule.cap-s.c.used, rule.unit))
		if cost = min(cost, whole); cost == 0 {
			cost = 1
		}
	}
	most := s.most(v, rule, s.floor)
	fits := mul(cost, rule.unit).IsInt64() && exact(cost, rule.unit) <= most
	s.allowed = s.mode != blocked && fits && s.c.used+exact(cost, rule.unit) <= most
	if s.allowed {
		s.took = cost
		if v == vCheck {
			s.took = 0
		}
		if v == vReserve || rule.leaky && v != vTakeUpTo {
			after := s.c.clone()
			after.used += exact(cost, rule.unit)
			if after.used > 0 && s.c.used == 0 {
				after.ts = w.now
			}
			s.delay = w.until(after, rule.cap)
		}
		s.granted = s.took
		w.state(s)
		return
	}
	s.alone = true
	w.refuse(s, v, cost, fits, most)
	w.state(s)
	if s.mode == shadow {
		s.allowed, s.shadow = true, true
	}
}

// refuse fills in when a refused call would be allowed.
func (w *world) refuse(s *step, v verb, cost int64, fits bool, most int64) {
	rule := s.c.rule
	if s.mode != blocked {
		if fits {
			s.retry = w.until(s.c, most-exact(cost, rule.unit))
			s.moves = cost > 0
			if !s.moves && s.r.used > 0 && !rule.sliding && s.r.place != s.place && rule.faster(s.r.rule) { // it stays, and refills more slowly
				may := mul(most, s.r.rule.unit)
				s.retry = w.until(s.r, may.Div(may, big.NewInt(rule.unit)).Int64())
			}
		} else {
			s.never = true
		}
		if !s.never && s.r.used > 0 && s.r.place != s.place && !rule.faster(s.r.rule) {
			s.bound = true
		}
	} else if s.never = s.temporary == nil; s.temporary != nil {
		w.refuseBlocked(s, v)
		return
	}
	if o := s.temporary; o != nil && s.never {
		w.refuseUntil(s, v, cost, o)
	} else if o != nil {
		s.retry = min(s.retry, o.until-w.now)
	}
	if !s.never && (w.held(s.r) || s.temporary != nil) {
		s.bound = true
	}
}

// refuseBlocked is what a call is told under a temporary override that blocks: what it will
// be told at the end, by time alone.
func (w *world) refuseBlocked(s *step, v verb) {
	later := *w
	left := s.temporary.until - w.now
	later.now = s.temporary.until
	r := s.r.clone()
	r.records, r.lows = nil, nil
	later.advance(s.l, s.level.key, r)
	x := later.openRow(s.level, r)
	later.ask(x, v)
	defer func() { s.bound = s.bound || s.retry > left && w.held(s.r) }()
	switch {
	case x.shadow || x.allowed:
		s.retry, s.bound = left, x.bound
	case x.never:
		s.never = true
	case x.moves && x.r.used > 0 && x.c.rule.faster(x.r.rule):
		s.retry, s.bound = left, true
	default:
		s.retry, s.bound = left+x.retry, x.bound
	}
}

// refuseUntil is what a call is told that can never be under a temporary override.
func (w *world) refuseUntil(s *step, v verb, cost int64, o *override) {
	under := s.l.now().lower(s.r.standing, s.level.plan)
	below := s.l.now().rule(under.place, s.level.key)
	most := s.most(v, below, s.floor)
	free := under.mode == unlimited || under.mode == shadow && s.mode != shadow
	if s.never = !free && (under.mode == blocked || mul(cost, below.unit).Cmp(big.NewInt(most)) > 0); s.never {
		s.retry, s.bound = 0, false
		return
	}
	s.retry, s.bound = o.until-w.now, true
}

// held reports whether a row has live holds, or those that have expired and are kept.
func (w *world) held(r *row) bool {
	for _, x := range r.records {
		if x.mark == r.mark && x.part != nil && x.part.hold != nil {
			return true
		}
	}
	return false
}

// state fills in what is left and when the bucket is full.
func (w *world) state(s *step) {
	if s.c.rule.sliding {
		w.slidingState(s)
		return
	}
	s.remain = max(0, floorDiv(s.c.rule.cap-s.c.used, s.c.rule.unit))
	s.reset = w.until(s.c, 0)
}

// charge uses units of a row that is under what it will be kept under.
func (w *world) charge(s *step, tokens int64) {
	s.c.take(exact(tokens, s.c.rule.unit), w.now)
}

// apply decides a call about tokens.
func (w *world) apply(v verb, takes []take, id string) answer {
	switch v {
	case vCharge:
		return w.applyCharge(takes)
	case vRefund:
		return w.applyRefund(takes)
	case vReset:
		return w.applyReset(takes)
	}
	steps := w.decide(v, takes)
	w.block(steps, v)
	a := answer{allowed: true}
	for _, s := range steps {
		a.allowed = a.allowed && s.allowed
	}
	for _, s := range steps {
		if !a.allowed { // nobody takes anything
			s.granted, s.delay = 0, 0
		}
	}
	if v == vCheck {
		return a.with(steps)
	}
	waits := int64(0)
	for _, s := range steps {
		if a.allowed && s.took > 0 {
			w.charge(s, s.took)
			w.state(s)
			waits = max(waits, s.delay)
		}
	}
	if a.allowed && waits > 0 && id != "" {
		a.reserved = true
		w.reserve(steps, id, waits)
	}
	for _, s := range steps {
		w.finish(s, a.allowed)
	}
	return a.with(steps)
}

func (w *world) decide(v verb, takes []take) (steps []*step) {
	for _, x := range w.levels(takes, true) {
		s := w.open(x)
		w.ask(s, v)
		steps = append(steps, s)
	}
	if v == vTakeUpTo {
		least := takes[0].cost
		for _, s := range steps {
			if !s.shadow && s.allowed {
				least = min(least, s.granted)
			}
		}
		for _, s := range steps {
			if s.took > 0 {
				s.took = least
			}
			if s.granted > 0 {
				s.granted = least
			}
		}
	}
	return steps
}

// block begins a block of each key that has run out of tokens, and tells the call what a blocked
// call is told.
func (w *world) block(steps []*step, v verb) {
	for _, s := range steps {
		if length := s.l.now().block; length > 0 && s.ranOut(v) {
			w.setOverride(s.level.limit, s.level.key, &override{numbers: unwritten, until: w.now + length, block: true})
			*s = *w.open(s.level)
			w.ask(s, v)
		}
	}
}

// ranOut reports whether a bucket refuses for want of tokens, and not because of a floor.
func (s *step) ranOut(v verb) bool {
	if !s.alone || s.never || s.mode != enforce || s.temporary != nil || s.cost == 0 || v == vCheck {
		return false
	}
	cost := s.cost
	if v == vTakeUpTo {
		cost = 1
	}
	return s.c.used+exact(cost, s.c.rule.unit) > s.most(v, s.c.rule, 0)
}

// said is what a level is told, with the end of a block by which the key is not blocked below.
func (s *step) said() told {
	if n := len(s.r.lows); n > 0 && s.r.lows[n-1].used == 0 {
		s.freed = true
	}
	if s.mode == blocked && s.temporary != nil && s.l.now().lower(s.r.standing, "").mode != blocked {
		s.blocked = s.temporary.until
	}
	return s.told
}

// finish stores the row of a level.
func (w *world) finish(s *step, allowed bool) {
	switch {
	case allowed && s.took > 0:
		if s.c.rule.sliding { // no plan moves it
			v := s.l.now()
			s.c.place = v.choose(s.r, "", w.now).place
			s.c.rule = v.rule(s.c.place, s.level.key)
		}
		s.c.version = len(s.l.versions) - 1
		w.keepRow(s.l, s.level.key, s.c)
	case s.alone && s.moves && s.r.used > 0 && s.c.rule.faster(s.r.rule):
		w.keepRow(s.l, s.level.key, s.c)
	}
}

func (a answer) with(steps []*step) answer {
	for _, s := range steps {
		a.levels = append(a.levels, s.said())
	}
	return a
}

// under makes a step under what the row of a level is under.
func (w *world) under(x *level) *step {
	s := &step{level: x, r: w.row(x.l, x.key)}
	v := x.l.now()
	s.choice = v.choose(s.r, "", w.now)
	s.c = s.r.clone()
	if s.c.full() {
		s.c.place, s.c.rule = s.place, v.rule(s.place, x.key)
	}
	s.told = told{limit: x.limit, key: x.key, allowed: true}
	return s
}

// tell fills in the answer of an act under the row's own definition.
func (w *world) tell(s *step) {
	s.capacity = s.c.rule.burst
	if s.plan = s.name; s.plan == "" {
		s.plan = s.c.place.plan
	}
	w.state(s)
	if s.mode == unlimited {
		s.capacity, s.remain = maxInt, maxInt
	}
}

func (w *world) applyCharge(takes []take) answer {
	var steps []*step
	for _, x := range w.levels(takes, true) {
		s := w.under(x)
		if s.mode != unlimited && s.cost > w.maxCharge(x.l, x.key, s.r) {
			return answer{err: "field cost"}
		}
		steps = append(steps, s)
	}
	for _, s := range steps {
		w.chargeOne(s)
	}
	return answer{allowed: true}.with(steps)
}

func (w *world) chargeOne(s *step) {
	s.granted = s.cost
	if s.mode == unlimited {
		s.capacity, s.remain, s.plan = maxInt, maxInt, s.name
		return
	}
	if s.cost > 0 {
		w.charge(s, s.cost)
		s.c.version = len(s.l.versions) - 1
		w.keepRow(s.l, s.level.key, s.c)
	}
	w.tell(s)
}

func (w *world) applyRefund(takes []take) answer {
	var steps []*step
	for _, x := range w.levels(takes, true) {
		s := w.under(x)
		if s.c.used > 0 && s.cost > 0 {
			units := atMost(mul(s.cost, s.c.rule.unit))
			s.c.touch()
			s.c.used = max(0, s.c.used-units)
			w.keepRow(s.l, s.level.key, s.c)
		}
		w.tell(s)
		steps = append(steps, s)
	}
	return answer{allowed: true}.with(steps)
}

func (w *world) applyReset(takes []take) answer {
	var steps []*step
	for _, x := range w.levels(takes, false) {
		w.endOverride(x.limit, x.key, false, false, true)
		s := w.under(x)
		s.c.end()
		s.c.place, s.c.rule = s.place, x.l.now().rule(s.place, x.key)
		w.keepRow(s.l, s.level.key, s.c)
		w.tell(s)
		steps = append(steps, s)
	}
	return answer{allowed: true}.with(steps)
}
