package store

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// A calendar numbers the days, weeks or months of a time zone. Each begins at
// the first instant at or after a wall-clock time on its date, so that a day is
// 23 or 25 hours long where the clocks change.
type calendar struct {
	loc    *time.Location
	days   int64 // 1 or 7 when the unit is days, else 0
	months int64 // months in the unit, else 0
	clock  int64 // seconds after local midnight
	last   atomic.Pointer[window]
}

// A window is cached, because most calls of a limit are in the same window.
type window struct{ tick, start, end int64 }

// tick returns the number of the window that holds the time x, in µs.
func (c *calendar) tick(x int64) int64 {
	if w := c.last.Load(); w != nil && w.start <= x && x < w.end {
		return w.tick
	}
	k := c.guess(time.UnixMicro(x).In(c.loc))
	for c.boundary(k) > x {
		k--
	}
	for c.boundary(k+1) <= x {
		k++
	}
	if w := c.last.Load(); w == nil || k > w.tick { // do not replace it by the window of an old row
		c.last.Store(&window{k, c.boundary(k), c.boundary(k + 1)})
	}
	return k
}

// guess returns the number of the unit that has t's date.
func (c *calendar) guess(t time.Time) int64 {
	y, m, d := t.Date()
	if c.months > 0 {
		return floorDiv(int64(y-1970)*12+int64(m-1), c.months)
	}
	day := floorDiv(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix(), 86400)
	return floorDiv(day-c.firstDay(), c.days)
}

// firstDay returns the day on which unit 0 begins, counted from 1970-01-01, which was
// a Thursday. Weeks begin on Monday.
func (c *calendar) firstDay() int64 {
	if c.days == 7 {
		return 4
	}
	return 0
}

// boundary returns the time, in µs, at which unit k begins.
func (c *calendar) boundary(k int64) int64 {
	if w := c.last.Load(); w != nil && w.tick == k {
		return w.start
	}
	var midnight int64
	if c.months > 0 {
		midnight = time.Date(1970, time.Month(1+k*c.months), 1, 0, 0, 0, 0, time.UTC).Unix()
	} else {
		midnight = (k*c.days + c.firstDay()) * 86400
	}
	return firstAtOrAfter(c.loc, midnight+c.clock) * 1e6
}

// firstAtOrAfter returns the first Unix second at which the wall clock of loc shows
// wall or later; wall is in seconds, as if the clock were UTC. It goes through the
// zone's offsets from 26 hours before, because no offset is larger.
func firstAtOrAfter(loc *time.Location, wall int64) int64 {
	if loc == time.UTC {
		return wall
	}
	x := wall - 26*3600
	for {
		t := time.Unix(x, 0).In(loc)
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		at := max(x, wall-int64(offset))
		until := end.Unix()
		if !end.IsZero() && until <= x {
			// Beyond a zone's table ZoneBounds ends a year after 365 days, and
			// stands still on the 366th. No clocks change on that day.
			until = (x/86400 + 1) * 86400
		}
		if end.IsZero() || at < until {
			return at
		}
		x = until
	}
}

// longest returns an upper bound of the length of a unit, in µs.
func (c *calendar) longest() int64 {
	const day = 86400 * 1e6
	if c.months > 0 {
		return (c.months*31 + 1) * day
	}
	return c.days*day + 24*3600*1e6
}

// shortest returns the length, in µs, over which the origins of keys are spread.
func (c *calendar) shortest() int64 {
	const day = 86400 * 1e6
	switch {
	case c.months == 0: // no zone moves its clocks by more than two hours
		return c.days*day - 2*3600*1e6
	case c.months%12 == 0:
		return c.months / 12 * 365 * day
	}
	return c.months * 28 * day
}

// parseWallClock reads "06:00 Europe/Rome" or "06:00:30 UTC".
func parseWallClock(s string) (clock int64, loc *time.Location, err error) {
	hm, zone, ok := strings.Cut(s, " ")
	if !ok {
		return 0, nil, fmt.Errorf("%q is neither an offset such as 0s nor a wall clock with a zone such as '06:00 Europe/Rome'", s)
	}
	var t time.Time
	if t, err = time.Parse("15:04:05", hm); err != nil {
		if t, err = time.Parse("15:04", hm); err != nil {
			return 0, nil, fmt.Errorf("%q is not a time of day such as 06:00", hm)
		}
	}
	zone = strings.TrimSpace(zone)
	if zone == "" || zone == "Local" {
		return 0, nil, fmt.Errorf("%q is not an IANA time zone such as Europe/Rome", zone)
	}
	if loc, err = time.LoadLocation(zone); err != nil {
		return 0, nil, fmt.Errorf("%q is not an IANA time zone such as Europe/Rome", zone)
	}
	return int64(t.Hour()*3600 + t.Minute()*60 + t.Second()), loc, nil
}

// A Calendar describes the ticks of a rule, for stores whose statements compute them.
// Without a calendar, Zone is "" and the ticks are Rule.Every apart.
type Calendar struct {
	Months, Days int64  // in a unit; one of them is 0
	Clock        int64  // seconds after local midnight
	Zone         string // IANA name
}

// Calendar returns the calendar of the rule's ticks.
func (r *Rule) Calendar() Calendar {
	if r.cal == nil {
		return Calendar{}
	}
	return Calendar{r.cal.months, r.cal.days, r.cal.clock, r.cal.loc.String()}
}
