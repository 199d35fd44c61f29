package memory

import (
	"context"
	"math"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// CallSite returns the definition of a limit for a call site: see store.Abilities.
func (s *Store) CallSite(ctx context.Context, d *store.Definition, l store.Limit) (*store.Definition, error) {
	return d.CallSite(l, func(site store.Plan) (index int, kept store.Plan, err error) {
		named := func() (map[int]bool, error) { return s.NamedSites(ctx, d.Name) }
		if index, kept, err = s.reg.AddCallSite(d.Name, site, s.now(), named, nil); err == nil {
			s.Rebind(d.Name)
		}
		return index, kept, err
	})
}

// NamedSites returns the indexes of the call sites' definitions that rows and records of
// a limit refer to. It first deletes full rows, so that these do not count.
func (s *Store) NamedSites(ctx context.Context, name string) (map[int]bool, error) {
	if _, err := s.Sweep(ctx, math.MaxInt); err != nil {
		return nil, err
	}
	named := map[int]bool{}
	add := func(n uint32) {
		if i := number.Index(n); !number.IsOverride(n) && i >= number.FirstCallSite {
			named[i-number.FirstCallSite] = true
		}
	}
	for i := range s.shards {
		s.shards[i].scan(func(p *slot, _ int) {
			if h := s.limits.of(p.handle); h.limit.name == name {
				add(h.number)
			}
		})
	}
	s.eachExtras(func(_ *shard, k *keyExtras) {
		for i := range k.records {
			if k.name == name {
				add(k.records[i].Version)
			}
		}
	})
	return named, nil
}

// Rebind makes the bindings of a limit unusable if definitions of call sites have ended,
// so that calls look up their definitions again.
func (s *Store) Rebind(name string) {
	l := &s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	of, d := l.byName[name], s.reg.Lookup(name)
	if of == nil || d == nil {
		return
	}
	if cur := of.current.Load(); cur == nil || cur.def == d || cur.def.Number > d.Number {
		return
	}
	of.forgets = true
	l.end(of)
	of.current.Store(l.alive(of, d))
}
