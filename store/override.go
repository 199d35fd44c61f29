package store

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
)

// An Override decides the calls of one key of a limit, in place of the base and of
// the plan that callers name, until a time on the store's clock.
//
// For example: a higher rate for an hour, or a ban until tomorrow. It is in force from
// the next call of any program on, and ends exactly at Until, without a call. Used tokens
// stay used: when it begins and ends, the row is converted to the same number of tokens.
// It overrides only its own limit, not the limit's parents. A Reset of the key does not
// end it.
//
//	store.Override{Key: "user:7", Rate: 600, Until: now + 3600e6, Note: "import, ticket 81"}
//	store.Override{Key: "user:8", Plan: "blocked"} // "blocked" is a plan of the limit
type Override struct {
	// Key is at most MaxKey bytes, without *: it is one key, never a pattern. "" is the
	// bucket of a shared limit.
	Key string
	// Plan is a plan of the limit, also one that is OverrideOnly. An override has either a
	// Plan or the numbers below; with both, or neither, setting it is an error. If a
	// later definition of the limit has no such plan, the base decides.
	Plan string

	// Rate is as in Limit; 0 is the rate of the base. With the two numbers below it must
	// compile with the other settings of the limit.
	Rate int64
	// Period is as in Limit; 0 is that of the base. Windows and intervals keep theirs.
	Period time.Duration
	// Burst is as in Limit, with NoBurst for none; 0 is the setting of the base: if the base
	// has none either, the burst is Rate.
	Burst int64

	// Until is in µs since the Unix epoch on the store's clock: when the override ends. It
	// must be in the future. 0 means no end.
	Until int64
	// Note says why, for people: at most 1024 bytes of UTF-8 without NUL.
	Note string

	// ID is set by the store: 1 to 2^31-1. Rows under the override have a number that is made
	// from it. When the limit has a new version, the next call gives the override the next ID.
	ID uint32
	// Version is set by the store: the limit's version for which the rule of the rows was
	// made.
	Version uint32

	compiled *atomic.Pointer[Definition] // set by WithOverride, for the present base
}

// decides reports whether an override decides calls at t, in µs.
func (o *Override) decides(t int64) bool { return o != nil && (o.Until == 0 || t < o.Until) }

// Prepare makes WithOverride remember the definition that it compiles for o. A store
// calls it for an override that it keeps in memory, before others use o.
func (o *Override) Prepare() { o.compiled = new(atomic.Pointer[Definition]) }

// WithOverride returns the definition that an override makes of the present version
// of the limit. If o is of an older version, the definition has the next ID. o must have
// passed checkOverride; whether it has ended is not looked at. Op.Step calls it, so that a
// store needs it only to compute an answer itself.
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
// the next ID if o is of an older version. It returns nil if o is nil.
func (d *Definition) renewed(o *Override) *Override {
	base := d.Base()
	if o == nil || o.Version == base.Number {
		return o
	}
	c := *o
	c.Version, c.compiled = base.Number, nil
	if c.ID++; terms.IsOverride(c.ID) {
		c.ID = 1
	}
	if o.compiled != nil {
		c.Prepare()
	}
	return &c
}

// withOverride is WithOverride without the number. If the override no longer compiles,
// because its plan is gone or the limit has changed, the base decides.
func (d *Definition) withOverride(o *Override) *Definition {
	p := Plan{Name: o.Plan, Rate: o.Rate, Period: o.Period, Burst: o.Burst}
	if o.Plan != "" {
		found := false
		for _, named := range d.Plans.All() {
			if named.Name == o.Plan {
				p, found = named, true
			}
		}
		if !found {
			p = Plan{}
		}
	}
	v := d.variant(&p)
	if v == nil {
		v = d.variant(&Plan{})
	}
	return v
}

// CheckOverride checks an override of the limit that is set at the time now, in µs: its
// key has at most MaxKey bytes and no *, its note at most 1024 bytes of UTF-8 without NUL, Until
// is later, and it has either a plan of the limit or numbers that compile with the
// limit's other settings. Pass 0 as now if only the store's server knows the time. The
// error is a *FieldError of the field "key", "until", "note" or "plan", or of the number
// that is wrong. It wraps ErrUnknownPlan if the limit has no such plan.
func (d *Definition) CheckOverride(o *Override, now int64) error {
	base := d.Base()
	most := MaxKey
	if base.Shards > 1 {
		most += terms.ShardSuffix // o.Key is that of a row
	}
	switch {
	case len(o.Key) > most:
		return badField("key", "has %d bytes; at most %d", len(o.Key), MaxKey)
	case strings.Contains(o.Key, "*"):
		return badField("key", "has a *, but an override is for one key: there are no patterns; a plan is for many")
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
	case o.Plan == "" && o.Rate == 0 && o.Period == 0 && o.Burst == 0:
		return badField("plan", "is missing; an override has a plan, or rate, per or burst")
	}
	if o.Plan == "" {
		p := Plan{Rate: o.Rate, Period: o.Period, Burst: o.Burst} // without a name, because errors would mention it
		if _, _, err := base.compileVariant(&p, base.Rule.Every); err != nil {
			if le, ok := err.(*FieldError); ok { //nolint:errorlint // compileVariant returns it as it is
				le.Limit = ""
			}
			return err
		}
	}
	return nil
}

// newOverrideID returns the ID of an override that is set at the time now, in µs. It
// differs from before, which is the ID of the key's last override, or 0 if there was
// none.
func newOverrideID(now int64, before uint32) uint32 {
	id := uint32(now) &^ (1 << 31)
	if id == 0 || id == before {
		id++
	}
	if terms.IsOverride(id) {
		id = 1
	}
	return id
}
