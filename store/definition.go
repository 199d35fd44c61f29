package store

import "github.com/dipwell/dipwell/internal/spread"

// A Version is a rule of a limit, valid from Since until the Since of the next
// version.
type Version struct {
	Number uint32 // from 1
	Since  int64  // µs on the store's clock
	Rule   Rule
	Policy ChangePolicy // how rows of the version before are converted to this one
}

// A Definition is a limit with its present version, and the older versions that
// rows may still name. It never changes, so it is safe for concurrent use.
type Definition struct {
	Limit
	Owner   string // who may change or drop the limit
	Warning string // a sentence when the limit cannot give all that it names

	Number uint32 // of the present version
	Since  int64  // µs on the store's clock
	Rule   Rule
	Policy ChangePolicy // how rows of the version before are converted to the present one
	Past   []Version    // older versions, oldest first; rows of a version before them are full
}

// NewDefinition compiles a limit as version 1, without a past. The error is a
// *LimitError.
func NewDefinition(l Limit) (*Definition, error) {
	r, warning, err := l.compile()
	if err != nil {
		return nil, err
	}
	return &Definition{Limit: l, Warning: warning, Number: 1, Rule: r, Policy: l.OnChange}, nil
}

// RuleFor returns the present rule for a key. It is d.Rule, or if windows are spread
// by key, a copy in scratch with the origin of the key.
func (d *Definition) RuleFor(key string, scratch *Rule) *Rule {
	var phase int64
	return d.ruleFor(key, &phase, scratch)
}

// ruleFor is RuleFor with the key's phase, which it sets if it is needed and 0.
func (d *Definition) ruleFor(key string, phase *int64, scratch *Rule) *Rule {
	if !d.Rule.Spread {
		return &d.Rule
	}
	return d.Rule.spreadTo(phaseOf(phase, d.Name, key), scratch)
}

func (r *Rule) spreadTo(phase int64, scratch *Rule) *Rule {
	*scratch = *r
	scratch.Origin = spread.Origin(phase, r.shortest())
	return scratch
}

// shortest returns the length of the shortest window in µs.
func (r *Rule) shortest() int64 {
	if r.Calendar != nil {
		return r.Calendar.Shortest()
	}
	return r.Every
}

// phaseOf sets the phase of a key if it is 0, and returns it.
func phaseOf(phase *int64, name, key string) int64 {
	if *phase == 0 {
		*phase = spread.PhaseOf(name, key)
	}
	return *phase
}

// Carry converts a row to the present version: for each version from the row's own
// on, it computes what is used when the version ends under its rule, and converts
// that by the policy of the next. It returns false if the row is of a later version
// than d; the store must then read the limit again.
func (d *Definition) Carry(s State, key string) (carried State, ok bool) {
	var phase int64
	return d.carry(s, key, &phase)
}

// carry is Carry with the key's phase, which it sets if it is needed and 0.
func (d *Definition) carry(s State, key string, phase *int64) (carried State, ok bool) {
	if s.Version == d.Number {
		return s, true
	}
	if s.Version > d.Number {
		return s, false
	}
	i := d.past(s.Version)
	if i < 0 { // older than Past, so the row is full
		return State{Version: d.Number}, true
	}
	var scratch Rule
	for ; i < len(d.Past); i++ {
		from := &d.Past[i].Rule
		policy, to, since := d.next(i)
		r := from
		if r.Spread {
			r = r.spreadTo(phaseOf(phase, d.Name, key), &scratch)
		}
		t := max(s.TS, since)
		s.Used, s.TS = policy.convert(r.usedAt(s, t), from, to, true), t
		if s.Lows != nil {
			s.Lows = s.Lows.carry(func(units int64) int64 { return policy.giveBack(units, from, to) })
			if s.Used == to.MaxUsed {
				s.Lows.clear() // it may have been clipped
			}
		}
	}
	s.Version = d.Number
	return s, true
}

// Full reports whether a row is a full bucket at now, in µs, so that a store may
// delete it. It does not need the key: if windows are spread by key, it may return
// true up to one window late, but never early.
func (d *Definition) Full(s State, now int64) bool {
	if s.Version != d.Number {
		i := d.past(s.Version)
		if i < 0 {
			return s.Version < d.Number
		}
		for ; i < len(d.Past); i++ {
			from := &d.Past[i].Rule
			policy, to, since := d.next(i)
			t := max(s.TS, since)
			s.Used, s.TS = policy.convert(from.mostUsedAt(s, t), from, to, true), t
		}
	}
	return d.Rule.mostUsedAt(s, max(now, s.TS)) == 0
}

// next returns the version that follows Past[i].
func (d *Definition) next(i int) (policy ChangePolicy, rule *Rule, since int64) {
	if i+1 < len(d.Past) {
		v := &d.Past[i+1]
		return v.Policy, &v.Rule, v.Since
	}
	return d.Policy, &d.Rule, d.Since
}

// CarryUnits converts units that a record took under an older version to the
// present one, rounded down. It returns 0 if that version is unknown.
func (d *Definition) CarryUnits(units int64, version uint32) int64 {
	if version == d.Number {
		return units
	}
	i := d.past(version)
	if i < 0 {
		return 0
	}
	for ; i < len(d.Past); i++ {
		policy, to, _ := d.next(i)
		units = policy.giveBack(units, &d.Past[i].Rule, to)
	}
	return units
}

func (d *Definition) past(version uint32) int {
	for i := len(d.Past) - 1; i >= 0; i-- {
		if d.Past[i].Number == version {
			return i
		}
	}
	return -1
}

// convert returns units used under one rule in units of the next.
func (p ChangePolicy) convert(used int64, from, to *Rule, up bool) int64 {
	return convertUsed(used, p == StartOver, p == Proportional, from.Unit, from.Cap, to.Unit, to.Cap, to.MaxUsed, up)
}

// giveBack returns units that can be given back under one rule in units of the next.
func (p ChangePolicy) giveBack(units int64, from, to *Rule) int64 {
	return convertBack(units, p == StartOver, p == Proportional, from.Unit, from.Cap, to.Unit, to.Cap, to.MaxUsed)
}
