package model

import (
	"cmp"
	"slices"
)

// slots is how many of a concurrency limit's tokens are held.
func (w *world) slots(r *row) (n int64) {
	for _, x := range r.records {
		n += x.units
	}
	return n
}

// askSlots decides a check or a hold of a concurrency limit as if it were alone.
func (w *world) askSlots(s *step) {
	burst := s.c.rule.burst
	s.told = told{limit: s.level.limit, key: s.level.key, plan: s.name, capacity: burst}
	used := w.slots(s.r)
	if s.mode == unlimited {
		s.allowed, s.granted, s.took = true, s.cost, s.cost
		w.slotState(s)
		s.capacity, s.remain = maxInt, maxInt
		return
	}
	s.allowed = s.mode != blocked && used+s.cost <= burst
	w.slotState(s)
	if s.allowed {
		s.granted, s.took = s.cost, s.cost
		return
	}
	if s.mode == blocked {
		s.never = s.temporary == nil
		if s.temporary != nil {
			under := s.l.now().lower(s.r.standing, s.level.plan)
			below := s.l.now().rule(under.place, s.level.key).burst
			free := under.mode == unlimited || under.mode == shadow
			if s.never = under.mode == blocked || !free && s.cost > below; !s.never {
				left := s.temporary.until - w.now
				if s.retry = left; !free {
					s.retry = max(left, w.slotRetry(s.r, below-s.cost))
				}
				s.bound = s.retry > left
			}
		}
		return
	}
	if s.never = s.cost > burst; !s.never {
		s.retry, s.bound = w.slotRetry(s.r, burst-s.cost), true
	}
	if o := s.temporary; o != nil && !s.never {
		s.retry = min(s.retry, o.until-w.now)
	} else if o != nil {
		under := s.l.now().lower(s.r.standing, s.level.plan)
		below := s.l.now().rule(under.place, s.level.key)
		if s.never = under.mode == blocked || under.mode != unlimited && s.cost > below.burst; !s.never {
			s.retry, s.bound = o.until-w.now, true
		}
	}
	if s.mode == shadow {
		s.allowed, s.shadow = true, true
	}
}

// slotRetry is when at most so many tokens are held.
func (w *world) slotRetry(r *row, most int64) int64 {
	held := w.slots(r)
	byEnd := slices.Clone(r.records)
	slices.SortFunc(byEnd, func(a, b *record) int { return cmp.Compare(a.part.hold.expires, b.part.hold.expires) })
	for _, x := range byEnd {
		if held <= most {
			break
		}
		if held -= x.units; held <= most {
			return x.part.hold.expires - w.now
		}
	}
	return 0
}

func (w *world) slotState(s *step) {
	s.remain = max(0, s.c.rule.burst-w.slots(s.c))
	if s.reset = 0; len(s.c.records) > 0 {
		for _, x := range s.c.records {
			s.reset = max(s.reset, x.part.hold.expires-w.now)
		}
	}
}
