package catalog

import (
	"slices"
	"strconv"
	"time"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// Sites are the definitions that call sites have made of a limit, in a store that several
// programs use and that keeps them with the limit.
type Sites struct {
	Text  string `json:"sites,omitempty"`          // plans that have their index as name; one that is not callable has ended
	Ended int64  `json:"sites_ended_us,omitempty"` // when the last of them ended
}

// Plans returns the definitions as plans, whose names are their indexes. The error is one
// of the text.
func (s *Sites) Plans() ([]store.Plan, error) {
	if s.Text == "" {
		return nil, nil
	}
	var l store.Limit
	err := l.Set("plans", s.Text)
	return l.Plans.All(), err
}

// Install sets them as the call sites of a definition that nobody uses yet.
func (s *Sites) Install(d *store.Definition) error {
	plans, err := s.Plans()
	if err != nil {
		return err
	}
	return d.SetCallSites(store.NewPlans(plans...))
}

// Set sets Text.
func (s *Sites) Set(plans []store.Plan) { s.Text = store.NewPlans(plans...).String() }

// Add adds a definition, unless it is one of them, and returns its index and how it is
// kept. If there are too many, it ends those whose index named does not have, the indexes
// that the rows of the limit name at the time now, in µs. Those that have ended it deletes
// in a later call, when all of them have rested: by then every program knows that it must
// not use them. The error is store.ErrFull if rows name too many.
func (s *Sites) Add(site store.Plan, rest time.Duration, named func() (now int64, indexes map[int]bool, err error)) (index int, kept store.Plan, err error) {
	plans, err := s.Plans()
	if err != nil {
		return 0, site, err
	}
	for _, p := range plans {
		if site.Name = p.Name; p == site {
			index, err = strconv.Atoi(p.Name)
			return index, p, err
		}
	}
	if isFull(plans) {
		now, indexes, err := named()
		if err != nil {
			return 0, site, err
		}
		if plans = s.end(plans, now, rest, indexes); isFull(plans) {
			return 0, site, store.ErrFull
		}
	}
	for index = 0; slices.ContainsFunc(plans, func(p store.Plan) bool { return p.Name == strconv.Itoa(index) }); index++ {
	}
	site.Name = strconv.Itoa(index)
	s.Set(append(plans, site))
	return index, site, nil
}

// end ends the definitions that are not named, and deletes those that ended before, if
// rest has passed since.
func (s *Sites) end(plans []store.Plan, now int64, rest time.Duration, named map[int]bool) []store.Plan {
	isNamed := func(p store.Plan) bool {
		index, err := strconv.Atoi(p.Name)
		return err != nil || named[index]
	}
	if now-s.Ended > rest.Microseconds() {
		plans = slices.DeleteFunc(plans, func(p store.Plan) bool { return p.OverrideOnly && !isNamed(p) })
	}
	for i := range plans {
		if p := &plans[i]; !p.OverrideOnly && !isNamed(*p) {
			p.OverrideOnly, s.Ended = true, now
		}
	}
	return plans
}

// isFull reports whether no definition may be added to plans.
func isFull(plans []store.Plan) bool {
	live := 0
	for _, p := range plans {
		if !p.OverrideOnly {
			live++
		}
	}
	return live >= number.MaxCallSites || len(plans) > number.MaxIndex-number.FirstCallSite
}
