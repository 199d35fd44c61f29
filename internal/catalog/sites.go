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
// programs share and that keeps them with the limit.
type Sites struct {
	Text  string `json:"sites,omitempty"`       // plans, whose names are the indexes; one that is not callable has ended
	Ended string `json:"sites_ended,omitempty"` // when each ended, in µs: "3=1700000000000000 7=1700000001000000"
}

// Plans returns the definitions as plans, whose names are the indexes. It returns an
// error if Text is invalid.
func (s *Sites) Plans() ([]store.Plan, error) {
	if s.Text == "" {
		return nil, nil
	}
	var l store.Limit
	err := l.Set("plans", s.Text)
	return l.Plans.All(), err
}

// Install sets the definitions as the call sites of d, which must not be in use yet.
func (s *Sites) Install(d *store.Definition) error {
	plans, err := s.Plans()
	if err != nil {
		return err
	}
	return d.SetCallSites(store.NewPlans(plans...))
}

// Set sets Text.
func (s *Sites) Set(plans []store.Plan) { s.Text = store.NewPlans(plans...).String() }

// Add adds a definition, unless it is there already, and returns its index and the
// definition as it is kept. If there are too many, Add ends those that no row refers to:
// named returns the indexes that rows refer to, and the present time in µs. An ended
// definition is deleted by a later Add, once rest has passed and every program knows that
// it must not be used. The error is store.ErrFull if rows refer to too many definitions,
// or if more than 768 ended within one rest.
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

// end ends the definitions that are not in named, and deletes those that ended at least
// rest ago.
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

// endTimes returns, by index, when each definition ended.
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

// Searches bounds how often a program searches the rows of limits for the call sites'
// definitions that they refer to. A search reads all rows of a limit, and each definition
// beyond the bound causes one. The zero Searches is ready for use.
type Searches struct {
	mu   sync.Mutex
	last map[string]search // by limit, until the rows may be searched again
}

type search struct{ at, rest int64 } // in µs; rest is store.MaxInt during the search

// Do calls find, which searches the rows of a limit at the time now, in µs. If another
// call is searching them, or has done so recently (see number.SearchRest), Do returns
// store.ErrFull.
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
