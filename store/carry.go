package store

import (
	"cmp"
	"slices"

	"github.com/dipwell/dipwell/internal/terms"
)

// This file converts rows and records from the definition that they name to another
// one of the same limit: to a later version, to or from a plan or an override.

// Base returns the base definition of the limit, which is d unless d is a plan or an override.
func (d *Definition) Base() *Definition {
	if d.base != nil {
		return d.base
	}
	return d
}

// ForChild returns the definition that decides a call of a child limit that names a plan:
// the limit's own plan of this name, if it is for Children, otherwise the base.
func (d *Definition) ForChild(plan string) *Definition {
	if plan != "" && d.Plans != (Plans{}) {
		if p := d.WithPlan(plan); p != nil && p.Children {
			return p
		}
	}
	return d
}

// WithPlan returns the definition of a plan of the limit, or nil if the limit has no plan of
// this name; "" is the base. d may be the base or any of its plans. The caller must check
// OverrideOnly.
func (d *Definition) WithPlan(name string) *Definition {
	base := d.Base()
	if name == "" {
		return base
	}
	defs := base.planDefs()
	if i, found := slices.BinarySearchFunc(defs, name, func(p *Definition, name string) int { return cmp.Compare(p.Plan, name) }); found {
		return defs[i]
	}
	return nil
}

// planDefs returns the definitions of the plans of a base.
func (d *Definition) planDefs() []*Definition {
	if d.Plans == (Plans{}) {
		return nil
	}
	if d.plans == nil || d.plans.number != d.Number { // d was not published by a Registry: tests make such definitions by hand
		return d.compilePlans()
	}
	d.plans.once.Do(func() { d.plans.defs = d.compilePlans() })
	return d.plans.defs
}

// publish prepares a base definition for concurrent use. A Registry calls it before others see
// d.
func (d *Definition) publish() {
	if d.plans == nil || d.plans.number != d.Number {
		d.plans = &planSet{number: d.Number}
	}
}

// compilePlans compiles the plans of a base, with their numbers: index 1
// for the first plan, and so on. Plans that do not compile at this version are left out.
func (d *Definition) compilePlans() (out []*Definition) {
	plans := d.Plans.All()
	for i := range plans {
		if v := d.variant(&plans[i], ""); v != nil {
			v.Number = terms.PlanNumber(i+1, d.Number)
			out = append(out, v)
		}
	}
	return out
}

// variant returns the definition of a plan, still without its number. start replaces the
// limit's Start, unless it is "". variant returns nil if the plan does not compile.
func (d *Definition) variant(p *Plan, start string) *Definition {
	l, r, err := d.compileVariant(p, start, d.Rule.Every)
	if err != nil {
		return nil
	}
	l.Plans = Plans{}
	return &Definition{Limit: l, Plan: p.Name, Owner: d.Owner, Overridden: d.Overridden, Since: d.Since, Rule: r, Policy: d.Policy, OverrideOnly: p.OverrideOnly, Children: p.Children, base: d}
}

// A place is a definition that a row may be under: the base, a plan or an override of the
// key, at a version. i is an index of Base().Past; len(Past) is the present version.
type place struct {
	plan     string
	override *Override
	i        int
}

// sameKind reports whether two places are both the base, the same plan or the override of
// the same kind.
func (p place) sameKind(q place) bool {
	if p.override == nil || q.override == nil {
		return p.plan == q.plan && p.override == q.override
	}
	return p.override.Kind() == q.override.Kind()
}

// placeOf returns the place of a definition of the limit.
func (d *Definition) placeOf(of *Definition) place {
	if of.Override != nil {
		return place{override: of.Override, i: len(d.Past)}
	}
	return place{plan: of.Plan, i: len(d.Past)}
}

// place returns the place of rows with number n. place returns false if that is not known: the
// version is older than Past, or the override is gone. A row under such a definition is full.
func (d *Definition) place(n uint32, o *Override) (place, bool) {
	version, index := terms.VersionOf(n), terms.IndexOf(n)
	at := place{i: len(d.Past)}
	if terms.IsOverride(n) {
		if at.override = o.named(terms.OverrideOf(n)); at.override == nil {
			return place{}, false
		}
		version, index = at.override.Version, 0
	}
	limit := &d.Limit
	if version != d.Number {
		if at.i = d.past(version); at.i < 0 {
			return place{}, false
		}
		limit = &d.Past[at.i].Limit
	}
	if index > 0 {
		plans := limit.Plans.All()
		if index > len(plans) {
			return place{}, false
		}
		at.plan = plans[index-1].Name
	}
	return at, true
}

// ruleAt returns the rule of a place, or nil if the version has no such plan.
func (d *Definition) ruleAt(at place) *Rule {
	if at.i == len(d.Past) {
		switch {
		case at.override != nil:
			return &d.withOverride(at.override).Rule
		case at.plan != "":
			if v := d.WithPlan(at.plan); v != nil {
				return &v.Rule
			}
			return nil
		}
		return &d.Rule
	}
	past := d.Past[at.i]
	if at.plan == "" && at.override == nil {
		return &past.Rule
	}
	old := Definition{Limit: past.Limit, Number: past.Number, Rule: past.Rule}
	if at.override != nil {
		return &old.withOverride(at.override).Rule
	}
	if known := past.plan.Load(); known != nil && known.name == at.plan { // cached, because compiling it takes a hundred times as long as a step
		return known.rule
	}
	known := &planRule{name: at.plan}
	if p, ok := past.Limit.Plans.named(at.plan); ok {
		if v := old.variant(&p, ""); v != nil {
			known.rule = &v.Rule
		}
	}
	past.plan.Store(known)
	return known.rule
}

// A step is one conversion of a row on its way to another definition: at the time at,
// from the units of one rule to those of the next.
type step struct {
	from, to *Rule
	policy   ChangePolicy
	at       int64 // µs
}

// walk leads a row from a place to the present version, and at the time now, in µs, to the
// definition target. If target is nil, the row stays in its plan or override; if that has
// ended, it goes to the override under it or to the base. walk calls each for every
// conversion, and returns the rule that the row is under at the end. s is the row; each may
// move its TS.
func (d *Definition) walk(s *State, at place, now int64, target *Definition, each func(*step)) *Rule {
	rule, t := d.ruleAt(at), d.instant(s, now)
	var one step // one variable for all steps, because each may make it escape
	move := func(to place, policy ChangePolicy, when int64) {
		next := d.ruleAt(to)
		if next == nil { // the version has no such plan
			to.plan, policy = "", Keep
			next = d.ruleAt(to)
		}
		if !sameRule(rule, next) {
			one = step{rule, next, policy, max(s.TS, when)}
			each(&one)
		}
		rule, at = next, to
	}
	ends := func() bool { return at.override != nil && at.override.Until != 0 && at.override.Until <= now }
	for at.i < len(d.Past) {
		policy, since := d.Policy, d.Since // of the next version
		if at.i+1 < len(d.Past) {
			policy, since = d.Past[at.i+1].Policy, d.Past[at.i+1].Since
		}
		if ends() && at.override.Until <= since {
			move(place{override: at.override.Under, i: at.i}, Keep, at.override.Until)
			continue
		}
		to := at
		to.i++
		move(to, policy, since)
	}
	if ends() {
		move(place{override: at.override.Under, i: at.i}, Keep, at.override.Until)
	}
	if target != nil && !at.sameKind(d.placeOf(target)) {
		move(d.placeOf(target), Keep, t)
	}
	return rule
}

// stamp returns the TS of a row that v converts, of which the given units are used at v.at.
// If windows begin with a call before and after the conversion, and are as long, the present
// window goes on.
func (v *step) stamp(s *State, used int64) int64 {
	if used == 0 || !v.from.BeginsWithCall() || !v.to.BeginsWithCall() || v.from.Every != v.to.Every {
		return v.at
	}
	return v.at - (v.at-s.TS)%v.from.Every
}

// sameRule reports whether two rules count in the same way, so that nothing has to be
// converted between them.
func sameRule(a, b *Rule) bool {
	switch {
	case a == b:
		return true
	case a.Add != b.Add, a.Unit != b.Unit, a.Cap != b.Cap: // most often
		return false
	}
	ra, rb := *a, *b
	ra.Calendar, rb.Calendar = nil, nil
	return ra == rb && (a.Calendar == nil) == (b.Calendar == nil) && (a.Calendar == nil || a.Calendar.Spec() == b.Calendar.Spec())
}

// Carry converts a row to d at the time now, in µs. For each version of the limit since
// the row's own, it steps the row under the old rule to the end of that version, and
// converts it by the policy of the next. Between plans and overrides it converts at the
// time at which the override ended, or else now. A row of an unknown older version, or of an
// override that is gone, becomes a full bucket. Carry returns false if the row is of a later
// version than d: the store must then read the limit again.
func (d *Definition) Carry(s State, key string, now int64) (carried State, ok bool) {
	var phase int64
	return d.carry(s, key, &phase, now, nil)
}

// carry is Carry with the key's phase: if the phase is needed and 0, carry sets it. If phase
// is nil the key is unknown: carry then assumes the windows in which least comes back. b has
// the records of the row if they are known: those that had ended by the time of a conversion
// are ended first.
func (d *Definition) carry(s State, key string, phase *int64, now int64, b *books) (carried State, ok bool) {
	base, o := d.Base(), s.Override
	if s.Version == d.Number && (o == nil || o.Version == base.Number) {
		return s, true
	}
	if terms.IsOverride(s.Version) {
		if o != nil && o.Version > base.Number {
			return s, false
		}
	} else if terms.VersionOf(s.Version) > base.Number {
		return s, false
	}
	at, known := base.place(s.Version, o)
	if !known {
		return State{Version: d.Number, Override: base.renewed(o)}, true
	}
	var scratch Rule
	if b == nil {
		b = new(books)
	}
	base.walk(&s, at, now, d, func(v *step) {
		from := v.from
		if from.Spread && phase != nil {
			from = from.spreadTo(phaseOf(phase, d.Name, key), &scratch)
		}
		used, t := from.usedAt(&s, v.at), v.at
		if phase == nil {
			used, t = from.mostUsedAt(&s, t), from.earliest(t)
		}
		if s.Lows != nil && b.records != nil {
			used, s.Lows = b.end(s.Lows, used, min(v.at, now), v.from.Unit)
		}
		b.convert(&s, used, t, from, v)
	})
	s.Version, s.Override = d.Number, base.renewed(o)
	return s, true
}

// Renew converts a row without records and without an override to the present version of
// its limit at the time now, in µs, as its next call would. If neither the key nor its phase
// is known, pass "" and 0. If they are needed, Renew then returns false; but if the limit has
// hundreds of versions, it assumes for each of them the least that can have come back, so that
// no idle row keeps them all.
func (d *Definition) Renew(s State, key string, phase, now int64) (renewed State, ok bool) {
	base := d.Base()
	version := terms.VersionOf(s.Version)
	if key == "" && phase == 0 && slices.ContainsFunc(base.Past, func(v *Version) bool { return v.Number >= version && v.Rule.Spread }) {
		if len(base.Past) < maxVersions/2 {
			return s, false
		}
		return base.Own(s, now).carry(s, "", nil, now, nil)
	}
	return base.Own(s, now).carry(s, key, &phase, now, nil)
}

// instant returns the time to which a call at now, in µs, steps a row. If the store's clock
// stepped back, that time is not before the row's TS, nor before the present version of the
// limit if the row is of an older one. The ends of overrides are compared with now: an
// override set after the step back lasts its full time.
func (d *Definition) instant(s *State, now int64) int64 {
	base := d.Base()
	version, t := terms.VersionOf(s.Version), max(now, s.TS)
	if terms.IsOverride(s.Version) && s.Override != nil {
		version = s.Override.Version
	}
	if s.Version != 0 && version < base.Number {
		t = max(t, base.Since)
	}
	return t
}

// Own returns the definition that a row is under at the time now, in µs, after conversion
// to the present version: its plan, its override, or the base if these have ended.
func (d *Definition) Own(s State, now int64) *Definition {
	base := d.Base()
	switch {
	case terms.IsOverride(s.Version):
		if o := s.Override.named(terms.OverrideOf(s.Version)).At(now); o != nil {
			return base.WithOverride(o)
		}
	case terms.IndexOf(s.Version) > 0:
		at, known := base.place(s.Version, nil)
		for i := at.i + 1; known && i < len(base.Past); i++ { // a version without the plan ended it
			if plans := base.Past[i].Limit.Plans; plans != base.Past[i-1].Limit.Plans {
				_, known = plans.named(at.plan)
			}
		}
		if v := base.WithPlan(at.plan); known && v != nil {
			return v
		}
	}
	return base
}
