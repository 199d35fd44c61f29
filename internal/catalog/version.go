package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A Version is a rule of a limit as stores keep it. A Version has the rule's numbers as
// they were compiled, so that rows keep their meaning even if a newer program would
// compile the limit differently, and the definition of its calendar. Redis keeps it as
// JSON, which contains the calendar. Tables have a column for each field, and the
// limit's per and start in place of the calendar.
type Version struct {
	Number uint32 `json:"number"`
	Since  int64  `json:"since"`
	Policy string `json:"policy"`
	store.Rule
	terms.CalendarSpec // if it has no zone, the ticks are every µs apart

	Per   string `json:"-"`
	Start string `json:"-"`

	// Settings are the settings of the limit as formatSettings writes them, from which
	// plans and overrides of the version are compiled; "" if they are not known.
	Settings string `json:"settings,omitempty"`
}

// NewVersion returns the stored form of a version. l is the limit that its rule was
// compiled from; tables keep l's per and start.
func NewVersion(v *store.Version, l *store.Limit) Version {
	r := v.Rule
	r.Calendar, r.Enough = nil, 0
	return Version{v.Number, v.Since, v.Policy.String(), r, v.Rule.Calendar.Spec(), periodText(l.Period), l.Start, settingsOf(&v.Limit)}
}

// settingsOf returns the settings of a limit, or "" for the zero Limit.
func settingsOf(l *store.Limit) string {
	if l.Name == "" {
		return ""
	}
	return formatSettings(l)
}

// Version returns a version as definitions have it.
func (v *Version) Version() (*store.Version, error) {
	var l store.Limit
	if err := l.Set("on_change", v.Policy); err != nil {
		return nil, err
	}
	out := &store.Version{Number: v.Number, Since: v.Since, Policy: l.OnChange}
	var err error
	if v.Settings != "" {
		if out.Limit, err = parseSettings(v.Settings); err != nil {
			return out, err
		}
	}
	out.Rule, err = v.rule()
	return out, err
}

// rule returns a rule with the stored numbers. Numbers that no limit could compile to are
// an error. Only the calendar of the rule is compiled again.
func (v *Version) rule() (r store.Rule, err error) {
	for _, n := range []int64{v.Every, v.Cap, v.Burst, v.Debt, v.Most, v.MaxCharge, v.MaxUsed} {
		if n < 0 || n > store.MaxInt {
			return r, fmt.Errorf("%d is not between 0 and 2^53-1", n)
		}
	}
	if v.Unit < 1 || v.Unit > store.MaxInt || v.Add < 1 || v.Add > store.MaxInt {
		return r, fmt.Errorf("a unit of %d, of which %d come back", v.Unit, v.Add)
	}
	r = v.Rule
	r.Enough = algebra.QuoUp(r.MaxUsed, r.Add)
	r.Calendar, err = v.calendar()
	return r, err
}

// calendar returns the calendar of the version's windows, or nil if they follow none.
func (v *Version) calendar() (cal *terms.Calendar, err error) {
	l := store.Limit{Name: "calendar", Algorithm: store.FixedWindow, Rate: 1, Start: v.Start}
	if v.Per != "" {
		if l.Period, err = period.Parse(v.Per); err != nil {
			return nil, err
		}
	}
	switch {
	case v.Every != 0:
		return nil, nil
	case v.Zone != "":
		loc, err := time.LoadLocation(v.Zone)
		if err == nil && (v.Months <= 0 && v.Days <= 0 || v.Clock < 0) {
			err = fmt.Errorf("windows of %d days and %d months from %d s", v.Days, v.Months, v.Clock)
		}
		return &terms.Calendar{Location: loc, Months: v.Months, Days: v.Days, Clock: v.Clock}, err
	}
	d, err := store.NewDefinition(l)
	if err == nil && d.Rule.Calendar == nil {
		err = fmt.Errorf("windows of %s do not follow a calendar", v.Per)
	}
	if err != nil {
		return nil, err
	}
	return d.Rule.Calendar, nil
}

// Present returns the present version of a definition.
func Present(d *store.Definition) *store.Version {
	return &store.Version{Number: d.Number, Since: d.Since, Rule: d.Rule, Policy: d.Policy, Limit: d.Limit}
}

// Known returns the version of a definition with a number that began at a time, or nil if
// there is none. d may be nil.
func Known(d *store.Definition, number uint32, since int64) *store.Version {
	if d == nil {
		return nil
	}
	v := &store.Version{Number: d.Number, Since: d.Since}
	i, past := slices.BinarySearchFunc(d.Past, number, func(v *store.Version, n uint32) int { return cmp.Compare(v.Number, n) })
	switch {
	case past:
		v = d.Past[i]
	case number == d.Number:
		v = Present(d)
	}
	if v.Number != number || v.Since != since {
		return nil
	}
	return v
}

// Before returns the versions of a definition from oldest on and before the version with
// a number, which began at a time. ok is false if d has another version of that number, or
// none. If d is nil there are no such versions.
func Before(d *store.Definition, number uint32, since int64, oldest uint32) (past []*store.Version, ok bool) {
	if d == nil {
		return nil, true
	}
	if Known(d, number, since) == nil {
		return nil, false
	}
	for _, v := range d.Past {
		if v.Number >= oldest && v.Number < number {
			past = append(past, v)
		}
	}
	return past, true
}

// Definition makes a definition of a limit and its stored versions. number is the present
// version's number. past has versions before these, which are in memory already.
func Definition(l store.Limit, owner string, number uint32, versions []Version, past []*store.Version) (*store.Definition, error) {
	d, err := store.NewDefinition(l)
	if err != nil {
		return nil, err
	}
	d = &store.Definition{Limit: l, Owner: owner, Warning: d.Warning, Number: number, Past: past}
	for i := range versions {
		v, err := versions[i].Version()
		switch {
		case err != nil:
			return nil, fmt.Errorf("version %d: %w", versions[i].Number, err)
		case v.Number < number:
			d.Past = append(d.Past, v)
		case v.Number == number:
			d.Since, d.Rule, d.Policy = v.Since, v.Rule, v.Policy
		}
	}
	if d.Rule.Unit == 0 {
		return nil, fmt.Errorf("its version %d is not there", number)
	}
	return d, nil
}
