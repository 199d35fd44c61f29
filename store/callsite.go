package store

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/dipwell/dipwell/internal/number"
)

// maxCallSites bounds the definitions that call sites make of a limit.
const maxCallSites = 256

// sitePrefix begins the Plan of a definition that a call site has made. The name of a
// plan cannot begin with it.
const sitePrefix = "#"

// callSites are the definitions that call sites have made of a limit, as plans without
// a name. All versions of the limit share them, and none is ever removed, so that rows
// can be converted from them.
type callSites struct {
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
	if index >= len(c.plans) {
		return p, 0, false
	}
	return c.plans[index], index, true
}

// CallSite returns the definition that a call site makes of the limit: the limit
// itself if both count alike, or a plan without a name, with the rate, per, burst and
// max_debt of l, and its mode if that is Shadow. What else l says must be as in the
// limit. It is an ability of stores whose definitions live as long as their rows; see
// Abilities.CallSites. The error is a *LimitError.
func (d *Definition) CallSite(l Limit) (*Definition, error) {
	base := d.Base()
	if _, err := NewDefinition(l); err != nil {
		return nil, err
	}
	for i := range settings {
		s := &settings[i]
		switch s.Name {
		case "rate", "per", "burst", "max_debt", "mode":
			continue
		}
		if value, explicit := s.value(&l); explicit && value != s.inWords(&base.Limit) {
			return nil, &LimitError{l.Name, s.Name, fmt.Sprintf("%s here and %s in force; a call site may have another rate, per, burst, max_debt or mode", value, s.inWords(&base.Limit))}
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
	base.sites.mu.Lock()
	defer base.sites.mu.Unlock()
	for i := range base.sites.plans {
		if v := base.site(i); v != nil && v.Mode == compiled.Mode && sameRule(&v.Rule, &rule) {
			return v, nil
		}
	}
	if len(base.sites.plans) == maxCallSites {
		return nil, &LimitError{l.Name, "rate", fmt.Sprintf("call sites have made %d other definitions of it already, which is the most", maxCallSites)}
	}
	base.sites.plans = append(base.sites.plans, site)
	return base.site(len(base.sites.plans) - 1), nil
}

// sitePlan returns the plan that a call site's limit is of a base. A zero Burst or
// MaxDebt is the default of l, not the base's.
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

// site compiles a call site's definition at the present version. The lock of the sites
// is held.
func (d *Definition) site(i int) *Definition {
	v := d.variant(&d.sites.plans[i])
	if v != nil {
		v.Plan, v.Unnamed, v.Number = sitePrefix+strconv.Itoa(i), true, number.Of(number.FirstCallSite+i, d.Number)
	}
	return v
}

// siteNamed returns the definition with a Plan that begins with sitePrefix.
func (d *Definition) siteNamed(name string) *Definition {
	_, i, ok := d.sites.plan(name)
	if !ok {
		return nil
	}
	d.sites.mu.Lock()
	defer d.sites.mu.Unlock()
	return d.site(i)
}
