package catalog

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// Sites are the definitions that call sites have made of a limit, in a store that several
// programs use and that keeps them with the limit.
type Sites struct {
	Text  string `json:"sites,omitempty"`       // plans that have their index as name; one that is not callable has ended
	Ended string `json:"sites_ended,omitempty"` // when each ended, in µs: "3=1700000000000000 7=1700000001000000"
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
// that the rows of the limit name at the time now, in µs. One that has ended it deletes in
// a later call, when it has rested: by then every program knows that it must not use it.
// The error is store.ErrFull if rows name too many, or if more than 768 end in a rest.
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
	ended := s.endTimes()
	plans = slices.DeleteFunc(plans, func(p store.Plan) bool {
		index, err := strconv.Atoi(p.Name)
		at, known := ended[p.Name]
		return p.OverrideOnly && known && now-at > rest.Microseconds() && err == nil && !named[index]
	})
	var times []string
	for i := range plans {
		p := &plans[i]
		if index, err := strconv.Atoi(p.Name); err == nil && !named[index] {
			p.OverrideOnly = true
		}
		if at, known := ended[p.Name]; p.OverrideOnly {
			if !known {
				at = now
			}
			times = append(times, p.Name+"="+strconv.FormatInt(at, 10))
		}
	}
	s.Ended = strings.Join(times, " ")
	return plans
}

// endTimes returns when each definition ended, by its index.
func (s *Sites) endTimes() map[string]int64 {
	times := map[string]int64{}
	for word := range strings.FieldsSeq(s.Ended) {
		index, text, _ := strings.Cut(word, "=")
		if at, err := strconv.ParseInt(text, 10, 64); err == nil {
			times[index] = at
		}
	}
	return times
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

// Searches bounds how often a program searches the rows of limits for the definitions of
// call sites that they name: a search reads all rows of a limit, and there is one for each
// definition that is too many. The zero Searches is ready.
type Searches struct {
	mu   sync.Mutex
	last map[string]search // by limit, until it may be searched again
}

type search struct{ at, rest int64 } // µs; rest is store.MaxInt while it runs

// Do calls find, which searches the rows of a limit at the time now, in µs. It returns
// store.ErrFull if another call searches them, or did so too lately: see number.SearchRest.
func (s *Searches) Do(limit string, now int64, find func() (map[int]bool, error)) (named map[int]bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.last, func(_ string, l search) bool { return l.rest != store.MaxInt && (now < l.at || now-l.at >= l.rest) })
	if _, rests := s.last[limit]; rests {
		return nil, store.ErrFull
	}
	if s.last == nil {
		s.last = map[string]search{}
	}
	s.last[limit] = search{now, store.MaxInt}
	begun := time.Now()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.last[limit] = search{now, number.SearchRest(time.Since(begun))}
	}()
	return find()
}
