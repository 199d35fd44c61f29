package terms

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// A Calendar numbers the windows of limits that follow a calendar: days, weeks,
// months or years of a time zone.
type Calendar struct {
	Location *time.Location
	Days     int64 // 1 or 7 when the unit is days, else 0
	Months   int64 // months in the unit, else 0
	Clock    int64 // seconds after local midnight

	last atomic.Pointer[window]
}

// A window is cached, because most calls of a limit are in the same window.
type window struct{ tick, start, end int64 }

// Tick returns the number of the window that holds the time x, in µs.
func (c *Calendar) Tick(x int64) int64 {
	if w := c.last.Load(); w != nil && w.start <= x && x < w.end {
		return w.tick
	}
	k := c.guess(time.UnixMicro(x).In(c.Location))
	for c.Boundary(k) > x {
		k--
	}
	for c.Boundary(k+1) <= x {
		k++
	}
	if w := c.last.Load(); w == nil || k > w.tick { // an old row's window must not replace it
		c.last.Store(&window{k, c.Boundary(k), c.Boundary(k + 1)})
	}
	return k
}

// guess returns the number of the unit that has t's date.
func (c *Calendar) guess(t time.Time) int64 {
	y, m, d := t.Date()
	if c.Months > 0 {
		return floorDiv(int64(y-1970)*12+int64(m-1), c.Months)
	}
	day := floorDiv(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix(), 86400)
	return floorDiv(day-c.firstDay(), c.Days)
}

// firstDay returns the day on which unit 0 begins, counted from 1970-01-01, which was
// a Thursday. Weeks begin on Monday.
func (c *Calendar) firstDay() int64 {
	if c.Days == 7 {
		return 4
	}
	return 0
}

// Boundary returns the time, in µs, at which unit k begins.
func (c *Calendar) Boundary(k int64) int64 {
	if w := c.last.Load(); w != nil && w.tick == k {
		return w.start
	}
	var midnight int64
	if c.Months > 0 {
		midnight = time.Date(1970, time.Month(1+k*c.Months), 1, 0, 0, 0, 0, time.UTC).Unix()
	} else {
		midnight = (k*c.Days + c.firstDay()) * 86400
	}
	return firstAtOrAfter(c.Location, midnight+c.Clock) * 1e6
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
			// ZoneBounds ends the last year of a zone's table after 365 days, and makes
			// no progress on the 366th. No clocks change on that day.
			until = (x/86400 + 1) * 86400
		}
		if end.IsZero() || at < until {
			return at
		}
		x = until
	}
}

// Longest returns an upper bound of the length of a unit, in µs.
func (c *Calendar) Longest() int64 {
	const day = 86400 * 1e6
	if c.Months > 0 {
		return (c.Months*31 + 1) * day
	}
	return c.Days*day + 24*3600*1e6
}

// Shortest returns the length, in µs, over which the origins of keys are spread.
func (c *Calendar) Shortest() int64 {
	const day = 86400 * 1e6
	switch {
	case c.Months == 0: // no zone moves its clocks by more than two hours
		return c.Days*day - 2*3600*1e6
	case c.Months%12 == 0:
		return c.Months / 12 * 365 * day
	}
	return c.Months * 28 * day
}

// ParseWallClock reads "06:00 Europe/Rome" or "06:00:30 UTC".
func ParseWallClock(s string) (clock int64, loc *time.Location, err error) {
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

// A Spec is the definition of a calendar, for stores whose statements compute windows.
type CalendarSpec struct {
	Months, Days int64  // in a unit; one of them is 0
	Clock        int64  // seconds after local midnight
	Zone         string // IANA name
}

// CalendarSpec returns the definition of c, or the zero Spec if c is nil.
func (c *Calendar) Spec() CalendarSpec {
	if c == nil {
		return CalendarSpec{}
	}
	return CalendarSpec{c.Months, c.Days, c.Clock, c.Location.String()}
}

// floorDiv returns a / b rounded toward minus infinity, for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
