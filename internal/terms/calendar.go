package terms

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Calendar numbers the windows of limits that follow a calendar: days, weeks,
// months or years of a time zone.
type Calendar struct {
	Location *time.Location
	Days     int64 // 1, 7 or 14 when the unit is days, else 0
	Months   int64 // months in the unit, else 0
	Clock    int64 // seconds after the beginning of the unit, as if each month had 31 days: in a shorter month, on its last day

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
	if w := c.last.Load(); w == nil || k > w.tick { // the window of an old row must not replace it
		c.last.Store(&window{k, c.Boundary(k), c.Boundary(k + 1)})
	}
	return k
}

// guess returns the number of the day, week or month in which t lies.
func (c *Calendar) guess(t time.Time) int64 {
	y, m, d := t.Date()
	if c.Months > 0 {
		return floorDiv(int64(y-1970)*12+int64(m-1)-c.Clock/86400/31, c.Months)
	}
	day := floorDiv(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix(), 86400)
	return floorDiv(day-c.firstDay(), c.Days)
}

// firstDay returns the day on which unit 0 begins, counted from 1970-01-01, which was
// a Thursday. Weeks begin on Monday, and two weeks on that of 1970-01-05.
func (c *Calendar) firstDay() int64 {
	if c.Days%7 == 0 {
		return 4
	}
	return 0
}

// Boundary returns the time, in µs, at which unit k begins.
func (c *Calendar) Boundary(k int64) int64 {
	if w := c.last.Load(); w != nil && w.tick == k {
		return w.start
	}
	midnight, day := (k*c.Days+c.firstDay())*86400, c.Clock/86400
	if c.Months > 0 {
		month := time.Month(1 + k*c.Months + day/31)
		last := time.Date(1970, month+1, 0, 0, 0, 0, 0, time.UTC)
		midnight = last.Unix() + (min(day%31+1, int64(last.Day()))-int64(last.Day()))*86400
	}
	return firstAtOrAfter(c.Location, midnight+c.Clock%86400) * 1e6
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

// Shortest returns a lower bound of the length of a unit, in µs, which is exact for days of
// UTC. The origins of keys are spread over it.
func (c *Calendar) Shortest() int64 {
	const day = 86400 * 1e6
	switch {
	case c.Months == 0 && c.Location == time.UTC:
		return c.Days * day
	case c.Months == 0: // zones move their clocks by at most two hours, but for a few days such as the one that Apia left out
		return c.Days*day - 2*3600*1e6
	case c.Months%12 == 0:
		return c.Months / 12 * 365 * day
	}
	return c.Months * 28 * day
}

// length is what people write for lengths of time.
var length = regexp.MustCompile(`^[0-9.]+ *(us|ms|s|m|h|d|w|mo|y|sec|second|min|minute|hr|hour|day|wk|week|mon|month|yr|year)s?$`)

// ParseStart reads when a calendar's units begin: "06:00 Europe/Rome" or "06:00:30 UTC", and
// for months with a day before it, "17 00:00 UTC", or for more than one month with a date,
// "05-17 00:00 UTC". ParseStart sets Location and Clock.
func (c *Calendar) ParseStart(s string) error {
	hm, zone, ok := strings.Cut(s, " ")
	var day string
	if !strings.Contains(hm, ":") && strings.Contains(zone, " ") {
		day = hm
		hm, zone, _ = strings.Cut(zone, " ")
	}
	switch {
	case length.MatchString(s):
		return fmt.Errorf("%q is a length of time; start is when windows begin, such as 0s or '00:00 UTC', and per how long they are", s)
	case !ok:
		return fmt.Errorf("%q is none of an offset such as 0s, a wall clock with a zone such as '06:00 Europe/Rome', and first_call", s)
	}
	t, err := time.Parse("15:04:05", hm)
	if err != nil {
		if t, err = time.Parse("15:04", hm); err != nil {
			return fmt.Errorf("%q is not a time of day such as 06:00", hm)
		}
	}
	zone = strings.TrimSpace(zone)
	if c.Location, err = location(zone); err != nil || zone == "" || zone == "Local" {
		return fmt.Errorf("%q is not an IANA time zone such as Europe/Rome", zone)
	}
	days, err := c.parseDay(day)
	c.Clock = days*86400 + int64(t.Hour()*3600+t.Minute()*60+t.Second())
	return err
}

// loaded has the zones that were loaded, by name. There are fewer than 2,000, but as many
// calendars as keys with a start of their own.
var loaded sync.Map

func location(zone string) (*time.Location, error) {
	if l, ok := loaded.Load(zone); ok {
		return l.(*time.Location), nil
	}
	l, err := time.LoadLocation(zone)
	if err == nil {
		loaded.Store(zone, l)
	}
	return l, err
}

// parseDay returns the days from the beginning of the unit to a day or a date, as if each
// month had 31.
func (c *Calendar) parseDay(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	switch t, err := time.Parse("2006-1-2", "2024-"+s); { // a leap year
	case c.Months == 0:
		return 0, fmt.Errorf("%q: a day stands before the time of day only if per is 1mo, and a date only if it is of more months", s)
	case c.Months == 1:
		day, err := strconv.ParseUint(s, 10, 5)
		if err != nil || day == 0 {
			return 0, fmt.Errorf("%q is not a day of the month such as 17", s)
		}
		return int64(day) - 1, nil
	case err != nil:
		return 0, fmt.Errorf("%q is not a date such as 05-17", s)
	case 12%c.Months != 0 && c.Months%12 != 0:
		return 0, fmt.Errorf("%q: windows of %dmo do not begin on the same dates each year", s, c.Months)
	default:
		return int64(t.Month()-1)%c.Months*31 + int64(t.Day()) - 1, nil
	}
}

// A CalendarSpec is the definition of a calendar, for stores whose statements compute windows,
// and as they keep it.
type CalendarSpec struct {
	Months int64  `json:"months,omitempty"` // in a unit, as Days; one of them is 0
	Days   int64  `json:"days,omitempty"`
	Clock  int64  `json:"clock,omitempty"` // as in Calendar
	Zone   string `json:"zone,omitempty"`  // IANA name
}

// Spec returns the definition of c, or the zero CalendarSpec if c is nil.
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
