package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/number"
)

// sitePrefix is the first character of Definition.Plan in a definition made by a call
// site. The name of a real plan cannot begin with it.
const sitePrefix = "#"

// callSites holds the definitions that call sites have made of a limit, as plans without
// a name, by index. All versions of the limit share them. The zero Plan is an unused
// index: a call site's plan has a rate, or a burst if the limit is a concurrency limit. A
// plan that is OverrideOnly has ended: no call may use it, but rows may still have to be
// converted from it.
type callSites struct {
	adding sync.Mutex    // locked before the other mutex
	looked int64         // µs: when the rows were last searched for the definitions they refer to; guarded by adding
	rest   int64         // µs: how long after looked they may be searched again; guarded by adding
	ended  map[int]int64 // µs: when each ended definition ended; guarded by adding

	mu    sync.Mutex
	plans []Plan
}

// plan returns the plan of a Definition.Plan that begins with sitePrefix.
func (c *callSites) plan(name string) (p Plan, index int, ok bool) {
	index, err := strconv.Atoi(strings.TrimPrefix(name, sitePrefix))
	if c == nil || err != nil || index < 0 {
		return p, 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if index >= len(c.plans) || c.plans[index] == (Plan{}) {
		return p, 0, false
	}
	return c.plans[index], index, true
}

func (c *callSites) set(index int, p Plan) {
	for len(c.plans) <= index {
		c.plans = append(c.plans, Plan{})
	}
	p.Name = ""
	c.plans[index] = p
}

// SetCallSites sets the definitions that call sites have made of the limit, for a store
// that keeps them. They are plans; the name of each is the index that CallSite returned
// for it. One that is OverrideOnly has ended: rows are converted from it, and CallSite
// does not return it. Call SetCallSites before others use d.
func (d *Definition) SetCallSites(sites Plans) error {
	d.sites = new(callSites)
	for _, p := range sites.All() {
		index, err := strconv.Atoi(p.Name)
		if err != nil || index < 0 || index > number.MaxIndex-number.FirstCallSite {
			return fmt.Errorf("definition %q of a call site", p.Name)
		}
		d.sites.set(index, p)
	}
	return nil
}

// knowsSite reports whether the definition of rows with number n is known. It is true
// unless n is that of an unknown call site.
func (d *Definition) knowsSite(n uint32) bool {
	if number.IsOverride(n) || number.Index(n) < number.FirstCallSite {
		return true
	}
	_, _, ok := d.sites.plan(siteName(number.Index(n) - number.FirstCallSite))
	return ok
}

// siteName returns the Definition.Plan of the call site's definition at an index.
func siteName(index int) string { return sitePrefix + strconv.Itoa(index) }

// CallSite returns the definition of the limit as a call site writes it, l. If both count
// alike, that is the limit itself. Otherwise it is a plan without a name, with the rate,
// per, burst and max_debt of l, and with its mode if that is Shadow. The other settings
// of l must be those of the limit. Stores offer it as Abilities.CallSite. The error is a
// *FieldError.
//
// If the definition is not known yet, CallSite calls keep to store it. keep returns the
// index of the definition, and the definition at that index: site, or another one that
// counts alike. It returns ErrFull if the limit has 256 definitions of call sites;
// CallSite turns that into a *FieldError. A store that keeps its limits in this process
// calls Registry.AddCallSite in keep.
func (d *Definition) CallSite(l Limit, keep func(site Plan) (index int, kept Plan, err error)) (*Definition, error) {
	base := d.Base()
	if _, err := NewDefinition(l); err != nil {
		return nil, err
	}
	for i := range settings {
		s := &settings[i]
		switch s.name {
		case "rate", "per", "burst", "max_debt", "mode":
			continue
		}
		if value, explicit := s.value(&l); explicit && value != s.inWords(&base.Limit) {
			return nil, &FieldError{Limit: l.Name, Field: s.name, Reason: fmt.Sprintf("%s here and %s in force; a call site may have another rate, per, burst, max_debt or mode", value, s.inWords(&base.Limit))}
		}
	}
	site := base.sitePlan(&l)
	compiled, rule, err := base.compileVariant(&site, base.Rule.Every)
	if err != nil {
		return nil, err
	}
	if base.Mode == compiled.Mode && sameRule(&base.Rule, &rule) {
		return base, nil
	}
	if base.sites == nil {
		return nil, fmt.Errorf("definitions of call sites: %w", ErrNotSupported)
	}
	if v := base.knownSite(compiled.Mode, &rule); v != nil {
		return v, nil
	}
	index, site, err := keep(site)
	if errors.Is(err, ErrFull) {
		return nil, tooManySites(d.Name)
	}
	if err != nil {
		return nil, err
	}
	return base.keptSite(index, site), nil
}

// knownSite returns the call site's definition with a mode and rule, or nil if there is
// none.
func (d *Definition) knownSite(mode Mode, rule *Rule) *Definition {
	d.sites.mu.Lock()
	defer d.sites.mu.Unlock()
	return d.sameSite(mode, rule)
}

// siteRest is how long, in µs, the index of an ended definition stays unused, so that
// calls made with that definition have finished when another one gets its index.
const siteRest = 60e6

// AddCallSite adds a definition to those that call sites have made of a limit, unless it
// is there already. It is for a store that keeps its limits in this process. If there are
// too many, the definitions that no row refers to end, and a minute later their indexes
// may be used again.
//
// named finds them: it searches the rows, and returns the indexes of the definitions
// under which a row is not full. It is called at most once a second and for at most a
// tenth of the time; while it may not be called, one definition too many is ErrFull.
// keep, if it is not nil, stores all definitions before calls may use them; those that
// have ended are OverrideOnly.
//
// The error is ErrFull if too many definitions are in use, wraps ErrUnknownLimit, or is
// that of named or keep.
func (r *Registry) AddCallSite(name string, site Plan, now int64, named func() (map[int]bool, error), keep func(all Plans) error) (index int, kept Plan, err error) {
	for {
		base := r.Lookup(name)
		if base == nil {
			return 0, site, r.missing(name)
		}
		c := base.sites
		c.adding.Lock()
		index = -1
		if cur := r.Lookup(name); cur != nil && cur.sites == c { // nobody replaced them while this call waited for the lock
			index, kept, err = c.add(site, now, named, keep, func(next *callSites) bool { return r.replaceSites(name, c, next) })
		}
		c.adding.Unlock()
		if index >= 0 || err != nil {
			return index, kept, err
		}
	}
}

// replaceSites publishes a limit with new definitions of call sites. It returns false if
// the present ones are no longer old.
func (r *Registry) replaceSites(name string, old, next *callSites) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	base := r.Lookup(name)
	if base == nil || base.sites != old {
		return false
	}
	d := *base // a new pointer, so that callers drop what they cached for the old definition
	d.sites = next
	r.store(name, &d)
	return true
}

// add is AddCallSite with adding locked. The index is -1 if replace returned false.
func (c *callSites) add(site Plan, now int64, named func() (map[int]bool, error), keep func(all Plans) error, replace func(next *callSites) bool) (int, Plan, error) {
	c.mu.Lock()
	plans := slices.Clone(c.plans)
	c.mu.Unlock()
	if index := slices.IndexFunc(plans, func(p Plan) bool { site.Name = p.Name; return p == site }); index >= 0 {
		return index, plans[index], nil
	}
	next := &callSites{plans: plans, looked: c.looked, rest: c.rest, ended: maps.Clone(c.ended)}
	index, full := next.free()
	search := full
	if search {
		if now >= c.looked && now-c.looked < c.rest {
			return 0, site, ErrFull
		}
		begun := time.Now()
		used, err := named()
		c.looked, c.rest = now, number.SearchRest(time.Since(begun))
		if err != nil {
			return 0, site, err
		}
		next.forget(now, used)
		if index, full = next.free(); full {
			return 0, site, ErrFull
		}
		next.looked, next.rest = c.looked, c.rest
	}
	next.set(index, site)
	site = next.plans[index]
	if keep != nil {
		if err := keep(next.all()); err != nil {
			return 0, site, err
		}
	}
	switch {
	case !search:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.set(index, site)
	case !replace(next):
		return -1, site, nil
	}
	return index, site, nil
}

// free returns an unused index, preferably one that was never used. full is true if there
// is none.
func (c *callSites) free() (index int, full bool) {
	live := 0
	for i := range c.plans {
		if p := &c.plans[i]; *p != (Plan{}) && !p.OverrideOnly {
			live++
		}
	}
	if live >= number.MaxCallSites {
		return 0, true
	}
	if n := len(c.plans); n <= number.MaxIndex-number.FirstCallSite {
		return n, false
	}
	index = slices.IndexFunc(c.plans, func(p Plan) bool { return p == Plan{} })
	return index, index < 0
}

// forget ends the definitions that no row refers to, and deletes those that ended at
// least siteRest ago.
func (c *callSites) forget(now int64, named map[int]bool) {
	if c.ended == nil {
		c.ended = map[int]int64{}
	}
	for i := range c.plans {
		switch p := &c.plans[i]; {
		case named[i] || *p == Plan{}:
		case !p.OverrideOnly:
			p.OverrideOnly, c.ended[i] = true, now
		case now-c.ended[i] > siteRest:
			*p = Plan{}
			delete(c.ended, i)
		}
	}
}

// all returns the definitions in the form that SetCallSites takes.
func (c *callSites) all() Plans {
	var all []Plan
	for i, p := range c.plans {
		if p != (Plan{}) {
			p.Name = strconv.Itoa(i)
			all = append(all, p)
		}
	}
	return NewPlans(all...)
}

// keptSite returns the definition that the store keeps at an index.
func (d *Definition) keptSite(index int, site Plan) *Definition {
	d.sites.mu.Lock()
	defer d.sites.mu.Unlock()
	d.sites.set(index, site)
	return d.site(index)
}

// sameSite is knownSite under the lock of the sites.
func (d *Definition) sameSite(mode Mode, rule *Rule) *Definition {
	for i := range d.sites.plans {
		if v := d.site(i); v != nil && !v.OverrideOnly && v.Mode == mode && sameRule(&v.Rule, rule) {
			return v
		}
	}
	return nil
}

// isSite reports whether two definitions with the same index come from the same call
// site.
func (d *Definition) isSite(other *Definition) bool {
	p, _, _ := d.Base().sites.plan(d.Plan)
	q, _, _ := other.Base().sites.plan(other.Plan)
	p.OverrideOnly, q.OverrideOnly = false, false
	return p == q
}

// tooManySites returns the error of CallSite if the limit already has as many definitions
// of call sites as it may.
func tooManySites(limit string) error {
	return &FieldError{Limit: limit, Field: "rate", Reason: fmt.Sprintf("call sites have made %d other definitions of it already, which is the most", number.MaxCallSites)}
}

// sitePlan returns the plan that turns the base into a call site's limit l. If l.Burst or
// l.MaxDebt is zero, the default for l applies, not the base's value.
func (d *Definition) sitePlan(l *Limit) Plan {
	p := Plan{Rate: l.Rate, Period: l.Period, Burst: l.Burst, MaxDebt: l.MaxDebt}
	if l.Mode == Shadow {
		p.Mode = Shadow
	}
	if p.Burst == 0 && d.Burst != 0 && l.Algorithm != LeakyBucket {
		p.Burst = l.Rate
	}
	if p.MaxDebt == 0 && d.MaxDebt != 0 {
		if p.MaxDebt = max(p.Burst, l.Rate); p.Burst > 0 {
			p.MaxDebt = p.Burst
		}
	}
	return p
}

// site compiles the call site's definition at index i for the present version. The caller
// holds the lock of the sites.
func (d *Definition) site(i int) *Definition {
	v := d.variant(&d.sites.plans[i])
	if v != nil {
		v.Plan, v.Unnamed, v.Number = sitePrefix+strconv.Itoa(i), true, number.Of(number.FirstCallSite+i, d.Number)
	}
	return v
}

// siteNamed returns the definition for a Plan that begins with sitePrefix.
func (d *Definition) siteNamed(name string) *Definition {
	_, i, ok := d.sites.plan(name)
	if !ok {
		return nil
	}
	d.sites.mu.Lock()
	defer d.sites.mu.Unlock()
	return d.site(i)
}
