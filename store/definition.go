package store

import "github.com/dipwell/dipwell/internal/spread"

// A Version is one rule of a limit, in force from Since on the store's clock
// until the next version's Since.
type Version struct {
	Number uint32 // from 1
	Since  int64  // µs
	Rule   Rule
	Policy ChangePolicy // how used is converted on the way into this version
}

// A Definition is a limit as it stands: its present version, and the older ones
// that rows may still name. It is immutable and safe to share.
type Definition struct {
	Limit
	Owner   string
	Warning string // a sentence when the limit cannot give all that it names

	Number uint32 // of the present version
	Since  int64  // µs on the store's clock
	Rule   Rule
	Policy ChangePolicy // by which rows came into the present version
	Past   []Version    // older versions, oldest first; a row of a version before them is full
}

// Version returns the present version.
func (d *Definition) Version() Version { return Version{d.Number, d.Since, d.Rule, d.Policy} }

// NewDefinition compiles a limit as its first version, with no past.
func NewDefinition(l Limit) (*Definition, error) {
	r, warning, err := l.Compile()
	if err != nil {
		return nil, err
	}
	return &Definition{Limit: l, Warning: warning, Number: 1, Rule: r, Policy: l.OnChange}, nil
}

// MustDefinition is NewDefinition for limits written in code.
func MustDefinition(l Limit) *Definition {
	d, err := NewDefinition(l)
	if err != nil {
		panic(err)
	}
	return d
}

// RuleFor returns the rule for a key: where windows are spread, a copy with the key's origin.
func (d *Definition) RuleFor(key string, scratch *Rule) *Rule {
	var phase int64
	return d.ruleFor(key, &phase, scratch)
}

// ruleFor is RuleFor that sets phase where it is needed and not known.
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

// shortest is the length of the shortest window in µs.
func (r *Rule) shortest() int64 {
	if r.cal != nil {
		return r.cal.shortest()
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

// Carry brings a row to the present version: it is stepped under each rule up
// to that version's end, and what is used is converted by the policy of the
// next. Not ok: the row names a version that this definition does not know yet,
// so the definition must be read again.
func (d *Definition) Carry(s State, key string) (carried State, ok bool) {
	var phase int64
	return d.carry(s, key, &phase)
}

// carry is Carry that sets phase where it is needed and not known.
func (d *Definition) carry(s State, key string, phase *int64) (carried State, ok bool) {
	if s.Version == d.Number {
		return s, true
	}
	if s.Version > d.Number {
		return s, false
	}
	i := d.past(s.Version)
	if i < 0 { // older than any version that a row which is not full can name
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

// Full reports whether a row is a full bucket at now whatever its key, so that
// a store which does not know the key may delete it. Where windows are spread
// by key it may say so one window late, never early.
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

// next is the version that follows Past[i].
func (d *Definition) next(i int) (policy ChangePolicy, rule *Rule, since int64) {
	if i+1 < len(d.Past) {
		v := &d.Past[i+1]
		return v.Policy, &v.Rule, v.Since
	}
	return d.Policy, &d.Rule, d.Since
}

// CarryUnits converts units that a record took under an older version, rounded
// against the client. Units of a version that is gone are gone too.
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

// convert turns units used under one rule into units of the next.
func (p ChangePolicy) convert(used int64, from, to *Rule, up bool) int64 {
	return convertUsed(used, p == StartOver, p == Proportional, from.Unit, from.Cap, to.Unit, to.Cap, to.MaxUsed, up)
}

// giveBack turns units that can be given back under one rule into units of the next.
func (p ChangePolicy) giveBack(units int64, from, to *Rule) int64 {
	return convertBack(units, p == StartOver, p == Proportional, from.Unit, from.Cap, to.Unit, to.Cap, to.MaxUsed)
}
