package redisstore

import (
	"context"
	"time"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// siteRest is how long an ended definition stays stored. After this time every program
// knows that it has ended.
const siteRest = time.Minute

// callSite returns the definition of a limit for a call site. It is stored with the
// limit, whose version stays the same. If there are too many, definitions that no bucket
// refers to end.
func (s *Store) callSite(ctx context.Context, d *store.Definition, limit store.Limit) (*store.Definition, error) {
	stored := false
	v, err := d.CallSite(limit, func(site store.Plan) (index int, kept store.Plan, err error) {
		stored = true
		err = s.limits.change(ctx, d.Name, func(old *store.Definition, text string) (string, error) {
			if old == nil {
				return "", core.Missing(&s.limits.reg, d.Name)
			}
			sites := sitesOf(text)
			index, kept, err = sites.Add(site, siteRest, func() (now int64, named map[int]bool, err error) {
				if now, err = s.now(ctx); err == nil {
					named, err = s.limits.searches.Do(d.Name, now, func() (map[int]bool, error) { return s.namedSites(ctx, d.Name) })
				}
				return now, named, err
			})
			if err != nil {
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

// namedSites returns the indexes of the call sites' definitions that buckets of a limit
// refer to.
func (s *Store) namedSites(ctx context.Context, limit string) (map[int]bool, error) {
	named := map[int]bool{}
	err := s.scan(ctx, limit, "", func(rows []bucket) error {
		for _, b := range rows {
			if i := number.Index(b.Version); !number.IsOverride(b.Version) && i >= number.FirstCallSite {
				named[i-number.FirstCallSite] = true
			}
		}
		return nil
	})
	return named, err
}

// site returns the entry of a call site's definition, or nil if it is not known.
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
