package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
)

// maxFits bounds the combinations of settings that a fitting remembers, in a few megabytes.
const maxFits = 1 << 14

// A fitting looks for the first override, in the order of keys, that would be invalid under a
// new definition of its limit. Overrides with the same settings are compiled once.
type fitting struct {
	def  *Definition
	now  int64
	fits map[fit]error
	key  string // of err
	err  error
}

// A fit is the settings of an override and of the one under it.
type fit struct{ over, under numbers }

type numbers struct {
	plan, start string
	rate, burst int64
	period      time.Duration
}

func numbersOf(o *Override) numbers {
	if o == nil {
		return numbers{}
	}
	return numbers{o.Plan, o.Start, o.Rate, o.Burst, o.Period}
}

// add checks an override that has not ended, and the one under it.
func (f *fitting) add(o *Override) {
	for o = o.At(f.now); o != nil; o = o.Under {
		if f.err != nil && o.Key >= f.key {
			return
		}
		id := fit{numbersOf(o), numbersOf(o.Under)}
		err, known := f.fits[id]
		if !known {
			if len(f.fits) >= maxFits {
				clear(f.fits)
			}
			err = f.def.unfit(o)
			f.fits[id] = err
		}
		if err != nil {
			f.key, f.err = o.Key, err
		}
	}
}

// unfit returns why an override does not fit the definition, or nil.
func (d *Definition) unfit(o *Override) error {
	if o.Plan != "" {
		if _, ok := d.Plans.named(o.Plan); !ok {
			return &FieldError{Field: "plans", Reason: fmt.Sprintf("plan %s is missing, and an override gives it", o.Plan)}
		}
		if o.start() == "" {
			return nil // NewDefinition has compiled these settings
		}
	}
	p := d.planOf(o)
	p.Name = ""
	_, _, err := d.compileVariant(&p, o.start(), d.Rule.Every)
	return err
}

// checkFit returns an error if an override of a limit does not fit its new definition. each
// is Registry.EachOverride.
func (d *Definition) checkFit(old *Definition, now int64, each func(limit string, check func(o *Override)) error) error {
	a, b := old.Limit, d.Limit
	a.OnChange, a.Auth, a.RetryJitter, a.OnStoreError, a.Timeout = b.OnChange, b.Auth, b.RetryJitter, b.OnStoreError, b.Timeout
	a.ListKeys, a.Usage, a.TTL, a.KeepExpired, a.Parent, a.Parts = b.ListKeys, b.Usage, b.TTL, b.KeepExpired, b.Parent, b.Parts
	if each == nil || a == b { // overrides depend on none of the settings above
		return nil
	}
	f := fitting{def: d, now: now, fits: map[fit]error{}}
	if err := each(d.Name, f.add); err != nil || f.err == nil {
		return err
	}
	key, _ := terms.KeyOfRow(d.Shards, f.key)
	unfit := &FieldError{Limit: d.Name, Reason: f.err.Error()}
	if why, ok := errors.AsType[*FieldError](f.err); ok {
		unfit.Field, unfit.Reason = why.Field, why.Reason
	}
	unfit.Reason += fmt.Sprintf(" (the override of key %q, which must be changed or ended before)", key)
	return unfit
}
