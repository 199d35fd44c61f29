package model

// mostSliding is the most that a window of a sliding window counts.
const mostSliding = 1<<26 - 1

// slide passes n boundaries of windows.
func (r *row) slide(n int64) {
	switch n {
	case 0:
	case 1:
		r.prev, r.used = r.used, 0
	default:
		r.prev, r.used = 0, 0
	}
}

// begin is the beginning of the window at t.
func (r *rule) begin(t int64) int64 {
	g := r.grid.(even)
	return exact(floorDiv(t-g.origin, g.every), g.every) + g.origin
}

// weight is how much of the previous window counts at t, in thousandths.
func (r *rule) weight(t int64) int64 {
	return 1000 - exact(1000, t-r.begin(t))/r.grid.(even).every
}

// convertSliding makes what is counted now what was taken in the present window, or what is
// used outside of sliding windows.
func (r *row) convertSliding(from *rule, how policy) {
	converted := func(n int64) int64 {
		switch {
		case how == reset:
			return 0
		case how == proportional && !r.live() && from.cap > 0:
			return scaleUp(n, r.rule.cap, from.cap)
		}
		return scaleUp(n, r.rule.unit, from.unit)
	}
	counted := r.used
	if from.sliding && r.rule.sliding && from.grid == r.rule.grid {
		r.used, r.prev = converted(r.used), converted(r.prev)
		r.clip()
		return
	}
	if from.sliding {
		counted += ceilDiv(r.prev*from.weight(r.ts), 1000)
	}
	r.prev, r.used = 0, converted(counted)
	r.clip()
}

// counted is what counts of a row at t, which is not before its ts.
func (r *row) counted(t int64) int64 {
	at := *r
	at.slide(r.rule.grid.between(r.ts, t))
	return at.prev*r.rule.weight(t)/1000 + at.used
}

// askSliding decides a call of a sliding window as if it were alone.
func (w *world) askSliding(s *step, v verb) {
	rate, t := s.c.rule.burst, s.c.time(w.now)
	if s.c.full() {
		s.c.ts = t
	}
	cost := s.cost
	if v == vTakeUpTo {
		cost = max(1, min(cost, rate-s.c.counted(t)))
	}
	fits := cost <= rate
	if s.allowed = s.mode != blocked && fits && s.c.counted(t)+cost <= rate; s.allowed {
		if v != vCheck {
			s.took = cost
		}
		s.granted = s.took
		w.state(s)
		return
	}
	s.alone = true
	switch {
	case s.mode == blocked && s.temporary == nil:
		s.never = true
	case s.mode == blocked:
		w.refuseBlocked(s, v)
	case !fits:
		if s.never = true; s.temporary != nil {
			w.refuseSlidingUntil(s, cost)
		}
	default:
		if s.retry = w.slidingRetry(s.c, t, rate-cost); s.temporary != nil {
			s.retry, s.bound = min(s.retry, s.temporary.until-w.now), true
		}
	}
	w.state(s)
	if s.mode == shadow {
		s.allowed, s.shadow = true, true
	}
}

// refuseSlidingUntil is refuseUntil of a sliding window.
func (w *world) refuseSlidingUntil(s *step, cost int64) {
	under := s.l.now().lower(s.r.standing, s.level.plan)
	below := s.l.now().rule(under.place, s.level.key)
	free := under.mode == unlimited || under.mode == shadow && s.mode != shadow
	if s.never = !free && (under.mode == blocked || cost > below.burst); !s.never {
		s.retry, s.bound = s.temporary.until-w.now, true
	}
}

// slidingRetry is the time from now until at most so many tokens count: a thousandth of a
// window, of the present one or one of the next two.
func (w *world) slidingRetry(r *row, t, most int64) int64 {
	every := r.rule.grid.(even).every
	for begin := r.rule.begin(t); ; begin += every {
		for k := range int64(1000) {
			at := begin + ceilDiv(k*every, 1000)
			if at > t && at < begin+every && r.counted(at) <= most {
				return at - w.now
			}
		}
	}
}

func (w *world) slidingState(s *step) {
	t := s.c.time(w.now)
	s.remain = s.c.rule.burst
	if s.reset = 0; s.c.full() {
		return
	}
	s.remain = max(0, s.c.rule.burst-s.c.counted(t))
	every, windows := s.c.rule.grid.(even).every, int64(1)
	if s.c.used > 0 {
		windows = 2
	}
	s.reset = s.c.rule.begin(t) + windows*every - w.now
}
