package redisstore

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// siteRest is for how long a definition that has ended stays: by then every program
// knows that it has.
const siteRest = time.Minute

// callSite returns the definition that a call site makes of a limit. It is stored with
// the limit, without a version of it. If there are too many, those that no bucket names
// end.
func (s *Store) callSite(ctx context.Context, d *store.Definition, limit store.Limit) (*store.Definition, error) {
	stored := false
	v, err := d.CallSite(limit, func(site store.Plan) (index int, kept store.Plan, err error) {
		stored = true
		err = s.limits.change(ctx, d.Name, func(old *store.Definition, text string) (string, error) {
			if old == nil {
				return "", s.limits.reg.Missing(d.Name)
			}
			sites := sitesOf(text)
			if index, kept, err = s.addSite(ctx, old, &sites, site); err != nil {
				return "", err
			}
			return encodeDefinition(old, sites), nil
		})
		return index, kept, changeError(err, true)
	})
	if err == nil && stored {
		err = s.cat.Load(ctx)
	}
	return v, err
}

// addSite adds a definition to those of call sites, unless it is one of them.
func (s *Store) addSite(ctx context.Context, d *store.Definition, sites *storedSites, site store.Plan) (index int, kept store.Plan, err error) {
	plans := sites.plans()
	live, taken := 0, map[int]bool{}
	for _, p := range plans {
		if index, err = strconv.Atoi(p.Name); err != nil {
			return 0, site, err
		}
		taken[index] = true
		if site.Name = p.Name; p == site {
			return index, p, nil
		}
		if !p.OverrideOnly {
			live++
		}
	}
	most := number.MaxIndex - number.FirstCallSite + 1
	if live == number.MaxCallSites || len(plans) == most {
		now, err := s.now(ctx)
		if err != nil {
			return 0, site, err
		}
		named, err := s.namedSites(ctx, d.Name)
		if err != nil {
			return 0, site, err
		}
		if now-sites.Ended > siteRest.Microseconds() {
			plans = slices.DeleteFunc(plans, func(p store.Plan) bool { return p.OverrideOnly && !named[p.Name] })
		}
		live, taken = 0, map[int]bool{}
		for i := range plans {
			p := &plans[i]
			index, _ = strconv.Atoi(p.Name)
			if taken[index] = true; !p.OverrideOnly && !named[p.Name] {
				p.OverrideOnly, sites.Ended = true, now
			}
			if !p.OverrideOnly {
				live++
			}
		}
	}
	if live == number.MaxCallSites || len(plans) == most {
		return 0, site, store.ErrFull
	}
	for index = 0; taken[index]; index++ {
	}
	site.Name = strconv.Itoa(index)
	sites.set(append(plans, site))
	return index, site, nil
}

// namedSites returns the indexes of definitions of call sites that buckets of a limit
// name.
func (s *Store) namedSites(ctx context.Context, limit string) (map[string]bool, error) {
	named := map[string]bool{}
	err := s.scan(ctx, limit, "", func(rows []bucket) error {
		for _, b := range rows {
			if i := number.Index(b.Version); !number.IsOverride(b.Version) && i >= number.FirstCallSite {
				named[strconv.Itoa(i-number.FirstCallSite)] = true
			}
		}
		return nil
	})
	return named, err
}

// site returns the entry of a definition that a call site has made, or nil if it is not
// known.
func (l *limits) site(e *entry, plan string) *entry {
	if v, ok := e.sites.Load(plan); ok {
		return v.(*entry)
	}
	d := e.def.WithPlan(plan)
	if d == nil {
		return nil
	}
	v, _ := e.sites.LoadOrStore(plan, l.newEntry(d))
	return v.(*entry)
}
