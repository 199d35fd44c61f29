package model

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"
)

// Periods by the calendar are negative numbers of months.
const month = int64(-1)

// A grid has the ticks at which tokens come back.
type grid interface {
	between(from, to int64) int64 // ticks after from, up to and including to
	after(t, n int64) int64       // the nth tick after t, from 1
}

// even ticks are every µs apart.
type even struct{ every, origin int64 }

func (g even) between(from, to int64) int64 {
	return floorDiv(to-g.origin, g.every) - floorDiv(from-g.origin, g.every)
}

func (g even) after(t, n int64) int64 {
	return exact(floorDiv(t-g.origin, g.every)+n, g.every) + g.origin
}

// fromCall has ticks every µs from the beginning of a window, which is the ts of the row.
type fromCall struct{ every int64 }

func (g fromCall) between(from, to int64) int64 { return (to - from) / g.every }

func (g fromCall) after(t, n int64) int64 { return t + exact(n, g.every) }

// dates are the ticks of a calendar, in order.
type dates []int64

// upTo returns how many ticks are at or before t.
func (g dates) upTo(t int64) int64 {
	return int64(sort.Search(len(g), func(i int) bool { return g[i] > t }))
}

func (g dates) between(from, to int64) int64 { return g.upTo(to) - g.upTo(from) }

func (g dates) after(t, n int64) int64 { return g[g.upTo(t)+n-1] }

// A start says where windows begin: spread by key, at an offset from the epoch, or at a time
// of day in a zone.
type start struct {
	kind  startKind
	off   int64 // µs
	zone  string
	clock int64 // minutes after midnight
	day   int   // of the month, 0: the 1st
	month int   // 1 to 12, if per is more than one month and a day is given
}

type startKind int

const (
	spread startKind = iota
	offset
	wall
	firstCall
)

// text is the start as configuration files have it.
func (s start) text() string {
	switch s.kind {
	case spread:
		return ""
	case offset:
		return fmt.Sprintf("%dus", s.off)
	case firstCall:
		return "first_call"
	}
	text := fmt.Sprintf("%02d:%02d %s", s.clock/60, s.clock%60, s.zone)
	if s.month != 0 {
		return fmt.Sprintf("%02d-%02d %s", s.month, s.day, text)
	}
	if s.day != 0 {
		return fmt.Sprintf("%02d %s", s.day, text)
	}
	return text
}

func (s start) grid(name, key string, per int64) grid {
	switch s.kind {
	case spread:
		return even{per, phase(name, key, per)}
	case offset:
		return even{per, s.off}
	case firstCall:
		return fromCall{per}
	}
	return s.dates(per)
}

// most is the largest use from which a bucket is full again within 2^53 µs. No history comes
// near it with a calendar.
func (s start) most(rate, per int64) int64 {
	if s.kind == wall {
		return maxInt
	}
	return scaleDown(maxInt/per, rate, 1)
}

// calendars are those that were computed, by start and period.
var calendars struct {
	sync.Mutex
	dates map[string]dates
}

// Calendars of days and weeks have these years, and those of months go on to lastOfMonths.
const firstYear, lastYear, lastOfMonths = 2018, 2075, 2400

// dates computes the ticks of a calendar.
func (s start) dates(per int64) dates {
	id := fmt.Sprint(s, per)
	calendars.Lock()
	defer calendars.Unlock()
	if g, ok := calendars.dates[id]; ok {
		return g
	}
	loc, err := time.LoadLocation(s.zone)
	if err != nil {
		panic(err)
	}
	var g dates
	for _, d := range s.days(per) {
		g = append(g, firstAt(d, s.clock, loc))
	}
	if !slices.IsSorted(g) {
		panic("a calendar is not in order: " + id)
	}
	if calendars.dates == nil {
		calendars.dates = map[string]dates{}
	}
	calendars.dates[id] = g
	return g
}

// days returns the dates on which windows begin, as midnights in UTC.
func (s start) days(per int64) (days []time.Time) {
	from, to := time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(lastYear, 1, 1, 0, 0, 0, 0, time.UTC)
	if per > 0 { // days or weeks; those of two weeks count from the Monday 1970-01-05
		step := int(per / (24 * 3600e6))
		if step == 0 {
			panic("a calendar of less than a day, in a shortened history")
		}
		day := time.Date(1970, 1, 5, 0, 0, 0, 0, time.UTC)
		for ; day.Before(to); day = day.AddDate(0, 0, step) {
			if !day.Before(from) {
				days = append(days, day)
			}
		}
		return days
	}
	months, first := int(-per), 1
	if s.month != 0 {
		first = (s.month-1)%months + 1
	}
	for y := firstYear; y < lastOfMonths; y++ {
		for m := first; m <= 12; m += months {
			length := time.Date(y, time.Month(m)+1, 0, 0, 0, 0, 0, time.UTC).Day()
			days = append(days, time.Date(y, time.Month(m), min(max(s.day, 1), length), 0, 0, 0, 0, time.UTC))
		}
	}
	return days
}

// firstAt is the first instant at which the clocks of a place show a time of a date or later.
func firstAt(day time.Time, minutes int64, loc *time.Location) int64 {
	want := day.Add(time.Duration(minutes) * time.Minute)
	shows := func(t time.Time) time.Time {
		_, off := t.In(loc).Zone()
		return t.Add(time.Duration(off) * time.Second)
	}
	var first time.Time
	for h := -30 * time.Hour; h <= 30*time.Hour; h += time.Hour {
		_, off := want.Add(h).In(loc).Zone()
		t := want.Add(-time.Duration(off) * time.Second)
		if shows(t).Equal(want) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	for t := want.Add(-15 * time.Hour); first.IsZero(); t = t.Add(time.Minute) { // the clocks leave it out
		if !shows(t).Before(want) {
			first = t
		}
	}
	return first.UnixMicro()
}
