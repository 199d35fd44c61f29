package store

import (
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/terms"
)

// A Version is a rule of a limit, valid from Since until the Since of the next
// version. Only a change of how calls are counted begins a version; a change of
// Mode or Timeout, for example, does not.
type Version struct {
	// Number counts versions from 1, and is the lowest 20 bits of State.Version.
	Number uint32
	// Since is in µs on the store's clock: up to then, the rule of the version before
	// applies to rows of that version.
	Since int64
	// Rule decides calls, and steps rows of this version, from Since on.
	Rule Rule
	// Policy is how rows of the version before are converted to this one.
	Policy ChangePolicy
	// Limit is the limit as it was defined. Limit is zero if that is not known, which
	// is possible only if no plan had rows then.
	Limit Limit

	plan atomic.Pointer[planRule] // the rule of the plan that was asked for last
}

// A planRule is the rule of a plan at a version of its limit, nil if the version has no such
// plan.
type planRule struct {
	name string
	rule *Rule
}

// A Definition is a limit with its present version, and the older versions that
// rows may still name; or it is one of the limit's plans at the present
// version. A Definition never changes, so it is safe for concurrent use.
type Definition struct {
	// Limit is the limit as it was defined, without defaults; Rule has the defaults. In the
	// definition of a plan, Limit has the settings of the plan, and no Plans.
	Limit
	// Plan is the name of the plan; "" is the base limit.
	Plan string
	// Owner is who may change or drop the limit, such as OwnerCode.
	Owner string
	// Warning is a sentence to log if the limit grants less than it says, for example if its
	// burst is so small that fractions of tokens are lost; otherwise "".
	Warning string

	// Overridden is set if keys of the limit may have overrides: the store looks for
	// one before it makes the row of a key.
	Overridden bool

	// Number is the State.Version of rows under this definition. For a base definition it
	// is the limit's version, from 1 to 2^20-1. For plans and overrides the higher bits
	// say which plan or override it is, and Base().Number is the limit's version.
	Number uint32
	// Since is when the present version began, in µs on the store's clock.
	Since int64
	// Rule decides the calls: it is the Limit in whole numbers, with its defaults. If Rule is
	// Spread, the windows of each key begin at a time of their own: use Op.RuleFor.
	Rule Rule
	// Policy is how rows of the version before are converted to the present one.
	Policy ChangePolicy
	// Past has the older versions that rows may be under, oldest first, and the definitions
	// of a limit share them. A row of a version that is not in Past counts as full: see
	// Registry.Retire. A plan's definition has no Past: use that of Base().
	Past []*Version

	// Paths is set if the keys of the limit are paths: it has Parts or a Parent, or is
	// the Parent of another limit. A Registry sets Paths.
	Paths bool

	OverrideOnly bool // callers may not name the plan: only an override gives it to a key
	Children     bool // calls of the limit's children choose the plan; see ForChild

	// Override is the override that this definition was made from, or nil.
	Override *Override

	base  *Definition // the base; set in the definition of a plan or an override
	plans *planSet    // the plans; set in a base
}

// A planSet has the definitions of a limit's plans, and the definition of all rows of a
// key with shards together, made when first used.
type planSet struct {
	once, sums sync.Once
	number     uint32
	defs       []*Definition
	sum        *Definition
}

// NewDefinition compiles a limit as version 1, without a past. The error is a
// *FieldError, which names the setting as in configuration files. NewDefinition does not
// check that the Parent exists: Registry.Define does. Stores get definitions from a
// Registry; use NewDefinition to check a limit before it is stored, or to see its Rule.
func NewDefinition(l Limit) (*Definition, error) {
	r, warning, err := l.compile()
	if err != nil {
		return nil, err
	}
	return &Definition{Limit: l, Warning: warning, Number: 1, Rule: r, Policy: l.OnChange, Overridden: l.Block != 0}, nil
}

// RuleFor returns the rule of a key, which is written to scratch if it depends on
// the key. Op.RuleFor remembers the phase that this method computes.
func (d *Definition) RuleFor(key string, scratch *Rule) *Rule {
	var phase int64
	return d.ruleFor(key, &phase, scratch)
}

// ruleFor is RuleFor with the key's phase: if the phase is needed and 0, ruleFor sets it.
func (d *Definition) ruleFor(key string, phase *int64, scratch *Rule) *Rule {
	if !d.Rule.Spread {
		return &d.Rule
	}
	return d.Rule.spreadTo(phaseOf(phase, d.Name, key), scratch)
}

// spreadTo returns, in scratch, the rule with the origin of a key that has this phase.
func (r *Rule) spreadTo(phase int64, scratch *Rule) *Rule {
	*scratch = *r
	scratch.Origin = terms.Origin(phase, r.shortest())
	return scratch
}

// shortest returns the length of the shortest of a rule's windows in µs.
func (r *Rule) shortest() int64 {
	if r.Calendar != nil {
		return r.Calendar.Shortest()
	}
	return r.Every
}

// phaseOf returns the phase of a key, and computes it first if it is 0.
func phaseOf(phase *int64, name, key string) int64 {
	if *phase == 0 {
		*phase = terms.PhaseOf(name, key)
	}
	return *phase
}

// Even reports whether equal ticks return equal numbers of units, and Take takes what is free
// and has no other effect; a refusal begins no block. A store may decide calls of such a limit
// by its own statements, and leaves others to Op.Step and DecideIn.
func (d *Definition) Even() bool {
	return d.Rule.Every > 0 && !d.Rule.Leaky && !d.Rule.Sliding && !d.Rule.BeginsWithCall() && d.Algorithm != Concurrency && d.Block == 0
}

// MostCharge returns the largest possible Charge, in tokens, of a key that d decides. It is
// the largest Rule.MaxCharge of d, of the base and of its plans, because a Charge names no
// plan.
func (d *Definition) MostCharge() int64 {
	base := d.Base()
	most := max(d.Rule.MaxCharge, base.Rule.MaxCharge)
	for _, p := range base.planDefs() {
		most = max(most, p.Rule.MaxCharge)
	}
	return most
}

// Full reports whether a row is a full bucket at now, in µs, so that a store may delete
// it, under the lock under which it was read. Full ignores that holds may have expired:
// SweepRow gives such holds back first. If windows are spread by key, Full may return true up
// to one window late, but never early. A row that an override decides is never full, so that
// calls find the override.
func (d *Definition) Full(s State, now int64) bool {
	if s.Version == d.Number {
		return d.Rule.mostUsedAt(&s, max(now, s.TS)) == 0
	}
	if terms.IsOverride(s.Version) || s.Lows != nil {
		return false
	}
	base := d.Base()
	if terms.VersionOf(s.Version) > base.Number {
		return false
	}
	at, ok := base.place(s.Version, nil)
	if !ok {
		return true
	}
	r := base.walk(&s, at, now, nil, func(v *step) {
		used := v.from.mostUsedAt(&s, v.at)
		s.Used, s.TS = v.policy.convert(used, v.from.earliest(v.at), v.from, v.to), v.stamp(&s, used)
	})
	return r.mostUsedAt(&s, max(now, s.TS)) == 0
}

// past returns the index of a version in Past, or -1 if it is not there.
func (d *Definition) past(version uint32) int {
	for i := len(d.Past) - 1; i >= 0; i-- {
		if d.Past[i].Number == version {
			return i
		}
	}
	return -1
}

// convert converts units used at t from one rule to the next, rounded up. For two sliding
// windows with the same windows, convert keeps both numbers apart.
func (p ChangePolicy) convert(used, t int64, from, to *Rule) int64 {
	one := func(n int64) int64 {
		return algebra.ConvertUsed(n, p == StartOver, p == Proportional, from.Unit, from.Cap, to.Unit, to.Cap, to.MaxUsed)
	}
	if !from.Sliding {
		return one(used)
	}
	if to.Sliding && from.Every == to.Every && from.Spread == to.Spread && (from.Spread || from.Origin == to.Origin) {
		prev, cur := algebra.Halves(used)
		return algebra.OfHalves(one(prev), one(cur))
	}
	return one(algebra.Counted(used, algebra.Weight(t, from.Origin, from.Every), true))
}
