package store

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
)

// An Override decides the calls of one key of a limit, in place of the base and of the plan
// that callers name: a plan by contract, a higher rate for an hour, or a ban until tomorrow. An
// override is in force from the next call of any program on. Used tokens stay used: when an
// override begins and ends, the row is converted to the same number of tokens. An override does
// not affect the limit's parents, and a Reset of the key does not end it.
//
// A key has at most one standing override, which lasts until it is ended, and one temporary
// override, which ends exactly at Until, on the store's clock, without a call. The temporary
// override lies over the standing one: its numbers replace those of the standing one, or
// else of the base, and a plan in it replaces everything. When the temporary override ends
// the key is under the standing one again.
//
//	store.Override{Key: "user:7", Rate: 600, Until: now + 3600e6, Note: "import, ticket 81"}
//	store.Override{Key: "user:8", Plan: "blocked"} // "blocked" is a plan of the limit
type Override struct {
	// Key is at most MaxKey bytes, without *: it is one key, never a pattern. "" is the
	// bucket of a shared limit.
	Key string `json:"-"`
	// Plan is a plan of the limit, also one that is OverrideOnly. An override has either a
	// Plan or the numbers below; with both, or neither and no Start, setting it is an error. A
	// later definition of the limit must have it too: see Registry.EachOverride. Only a block
	// has neither plan nor numbers: see Limit.Block. It refuses like a plan that is Blocked.
	Plan string `json:"plan,omitempty"`

	// Rate is as in Limit; 0 is the rate of the base. Rate, Period and Burst must
	// compile with the other settings of the limit.
	Rate int64 `json:"rate,omitempty"`
	// Period is as in Limit; 0 means that of the base. Overrides of windows and intervals keep
	// the base's Period.
	Period time.Duration `json:"per_ns,omitempty"`
	// Burst is as in Limit, with NoBurst for none; 0 means the setting of the base: if the
	// base has none either, the burst is Rate.
	Burst int64 `json:"burst,omitempty"`

	// Start is as in Limit: when the windows of the key begin, such as the billing day of a
	// customer, "17 00:00 Europe/Rome". Start is possible only in an override without Until,
	// also beside a Plan, and is kept under a temporary one; "" means that of the base.
	Start string `json:"start,omitempty"`

	// Until is in µs since the Unix epoch on the store's clock: when the override ends.
	// Until must be in the future. 0 means that the override stands until it is ended.
	Until int64 `json:"until_us,omitempty"`
	// Note is the reason, for people to read: at most 1024 bytes of UTF-8 without NUL.
	Note string `json:"note,omitempty"`

	// ID is set by the store: 1 to 2^31-1. Rows under the override have a number that is made
	// from ID. When the limit has a new version, the next call gives the override the next ID.
	ID uint32 `json:"id"`
	// Version is set by the store: the limit's version for which the rule of the rows was
	// made.
	Version uint32 `json:"version"`
	// Under is set by the store: the standing override under a temporary one, or nil.
	Under *Override `json:"under,omitempty"`
	// Replaced is the override of the same kind that this one has replaced, or nil. Only
	// SetOverride sets it, in its result.
	Replaced *Override `json:"-"`

	compiled *atomic.Pointer[Definition] // set by WithOverride: what it compiled for the present base
}

// An OverrideKind is one of the two overrides that a key may have.
type OverrideKind uint8

// Kinds of overrides.
const (
	AnyOverride       OverrideKind = iota // the temporary override if there is one, or else the standing one
	StandingOverride                      // without Until
	TemporaryOverride                     // an override with Until, also a block
	AutomaticOverride                     // a block that a refusal began: see Limit.Block
)

var overrideKinds = []string{"any", "standing", "temporary", "automatic"}

// String returns "any", "standing", "temporary" or "automatic". Any other value is "unknown".
func (k OverrideKind) String() string { return nameOf(overrideKinds, int(k)) }

// Kind returns StandingOverride, TemporaryOverride or AutomaticOverride.
func (o *Override) Kind() OverrideKind {
	switch {
	case o.Until == 0:
		return StandingOverride
	case o.Plan == "" && o.Rate == 0 && o.Period == 0 && o.Burst == 0:
		return AutomaticOverride
	}
	return TemporaryOverride
}

// unblocked returns o, or the override under it if o is a block, or nil.
func (o *Override) unblocked() *Override {
	if o != nil && o.Kind() == AutomaticOverride {
		return o.Under
	}
	return o
}

// BlockedUntil returns when the override that blocks the key ends, or 0. If it only leaves the
// key blocked by what lies below, that is 0: the key is blocked without an end. d may be nil.
func (d *Definition) BlockedUntil() int64 {
	if d == nil || d.Override == nil || d.Mode != Blocked || d.Override.Under != nil && d.WithOverride(d.Override.Under).Mode == Blocked {
		return 0
	}
	return d.Override.Until
}

// At returns the override that decides calls at t, in µs: o, the one under it if o has ended,
// or nil.
func (o *Override) At(t int64) *Override {
	if o == nil || o.Until == 0 || t < o.Until {
		return o
	}
	return o.Under
}

// Of returns o or the override under it, whichever is of the given kind, or nil.
func (o *Override) Of(kind OverrideKind) *Override {
	for o != nil && kind != AnyOverride && o.Kind() != kind && (kind != TemporaryOverride || o.Until == 0) {
		o = o.Under
	}
	return o
}

// WithKey returns a copy of o, of the override under it and of the one that it replaced, with
// another key, or nil if o is nil.
func (o *Override) WithKey(key string) *Override {
	if o == nil {
		return nil
	}
	c := *o
	c.Key, c.Under, c.Replaced = key, o.Under.WithKey(key), o.Replaced.WithKey(key)
	return &c
}

// named returns o or the override under it, whichever has an ID, or nil.
func (o *Override) named(id uint32) *Override {
	for o != nil && o.ID != id {
		o = o.Under
	}
	return o
}

// Prepare makes WithOverride remember the definition that it compiles for o. A store
// calls it for an override that it keeps in memory, before others use o.
func (o *Override) Prepare() {
	for ; o != nil; o = o.Under {
		o.compiled = new(atomic.Pointer[Definition])
	}
}

// WithOverride returns the definition that an override makes of the present version
// of the limit. If o is of an older version, the definition has the next ID. o must have
// passed checkOverride; it may have ended. Op.Step calls it, so that a store needs it only
// to compute an answer itself.
func (d *Definition) WithOverride(o *Override) *Definition {
	base := d.Base()
	if o.compiled != nil {
		if v := o.compiled.Load(); v != nil && v.base == base {
			return v
		}
	}
	v := base.withOverride(o)
	v.Number, v.Override = terms.OverrideNumber(base.renewed(o).ID), o
	if o.compiled != nil {
		o.compiled.Store(v)
	}
	return v
}

// renewed returns an override for the limit's present version: o itself, or a copy with
// another ID if o is of an older version, as the override under it. The IDs of two layers
// often follow each other, so the new ID is two more: a program that has not read the override
// again would take one more for the old ID of the other.
func (d *Definition) renewed(o *Override) *Override {
	base := d.Base()
	if o == nil || o.Version == base.Number {
		return o
	}
	c := *o
	c.Version, c.Under, c.compiled = base.Number, base.renewed(o.Under), nil
	if c.ID += 2; terms.IsOverride(c.ID) {
		c.ID -= 1<<31 - 1
	}
	if o.compiled != nil {
		c.Prepare()
	}
	return &c
}

// withOverride is WithOverride without setting the definition's Number. If the override no
// longer compiles, because its plan is gone or the limit has changed, the base decides.
func (d *Definition) withOverride(o *Override) *Definition {
	p := d.planOf(o)
	if o.Plan == "" || p.Name != "" {
		if v := d.variant(&p, o.start()); v != nil {
			return v
		}
	}
	return d.variant(&Plan{Mode: o.mode()}, "")
}

// mode returns Blocked if o is a block, and otherwise 0.
func (o *Override) mode() Mode {
	if o.Kind() == AutomaticOverride {
		return Blocked
	}
	return Enforce
}

// start returns the Start of o or of the override under it, or "".
func (o *Override) start() string {
	if o.Start == "" && o.Under != nil {
		return o.Under.Start
	}
	return o.Start
}

// planOf returns the settings of the base that an override changes, except Start.
func (d *Definition) planOf(o *Override) (p Plan) {
	if o.Plan != "" {
		p, _ = d.Plans.named(o.Plan)
		return p
	}
	if o.Under != nil {
		p = d.planOf(o.Under)
		p.Name = "" // an answer says "override" in its place, and an error names nothing
	}
	p.Mode = cmp.Or(o.mode(), p.Mode)
	p.Rate, p.Period, p.Burst = cmp.Or(o.Rate, p.Rate), cmp.Or(o.Period, p.Period), cmp.Or(o.Burst, p.Burst)
	return p
}

// CheckOverride checks an override of the limit that is set at the time now, in µs, or 0 if
// only the store's server knows the time: its key has at most MaxKey bytes and no *, its note
// at most 1024 bytes of UTF-8 without NUL, Until is later, and it has either a plan of the
// limit or numbers, and with a start they compile with the limit's other settings. The error
// is a *FieldError of the field "key", "until", "note" or "plan", or of the number that is
// wrong. It wraps ErrUnknownPlan if the limit has no such plan.
func (d *Definition) CheckOverride(o *Override, now int64) error {
	base := d.Base()
	most := MaxKey
	if base.Shards > 1 {
		most += terms.ShardSuffix // o.Key is the key of a row, with a suffix for its shard
	}
	switch {
	case len(o.Key) > most:
		return badField("key", "has %d bytes; at most %d", len(o.Key), MaxKey)
	case strings.Contains(o.Key, "*"):
		return badField("key", terms.OneKey)
	case o.Until != 0 && o.Until <= now:
		return badField("until", "is not in the future")
	case o.Until < 0 || o.Until > MaxInt:
		return badField("until", "is not between now and the year 2255")
	case terms.WrongNote(o.Note) != "":
		return badField("note", "%s", terms.WrongNote(o.Note))
	case o.Plan != "" && (o.Rate != 0 || o.Period != 0 || o.Burst != 0):
		return badField("plan", "stands beside rate, per or burst; an override has either a plan or numbers")
	case o.Plan != "" && base.WithPlan(o.Plan) == nil:
		return &FieldError{Field: "plan", Reason: fmt.Sprintf("limit %s has no plan %q", base.Name, o.Plan), Err: ErrUnknownPlan}
	case o.Start != "" && o.Until != 0:
		return badField("start", "stands only in an override without an end")
	case o.Plan == "" && o.Rate == 0 && o.Period == 0 && o.Burst == 0 && o.Start == "" && o.ID == 0:
		return badField("plan", "is missing; an override has a plan, or rate, per, burst or start")
	}
	if o.Plan == "" || o.start() != "" {
		p := base.planOf(o)
		p.Name = ""
		if _, _, err := base.compileVariant(&p, o.start(), base.Rule.Every); err != nil {
			if le, ok := err.(*FieldError); ok { //nolint:errorlint // compileVariant returns this error unchanged
				le.Limit = ""
			}
			return err
		}
	}
	return nil
}

// newID returns the ID of an override that is set at the time now, in µs. The ID differs
// from those of earlier overrides of the key.
func (o *Override) newID(now int64) uint32 {
	for id := uint32(now) &^ (1 << 31); ; id = (id + 1) &^ (1 << 31) {
		if id != 0 && o.named(id) == nil {
			return id
		}
	}
}
