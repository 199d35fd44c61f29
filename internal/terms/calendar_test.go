package terms

import (
	"archive/zip"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // where the machine has no zones
)

// zones returns the names in Go's time zone data.
func zones(t *testing.T) (out []string) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip")
	z, err := zip.OpenReader(data)
	if os.IsNotExist(err) {
		t.Fatalf("%s, the list of all zones, is missing", data)
	} else if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, f := range z.File {
		if !f.FileInfo().IsDir() {
			out = append(out, f.Name)
		}
	}
	if len(out) < 500 {
		t.Fatalf("only %d zones", len(out))
	}
	return out
}

var (
	from2020 = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	to2041   = time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
)

// changes returns the times at which a zone's offset changes, from 2020 to
// 2040.
func changes(loc *time.Location) (out []int64) {
	for x := from2020; ; {
		_, end := time.Unix(x, 0).In(loc).ZoneBounds()
		if end.IsZero() || end.Unix() >= to2041 {
			return out
		}
		if end.Unix() <= x { // on the 366th day of a year ZoneBounds may answer with the past
			x += 86400
			continue
		}
		x = end.Unix()
		out = append(out, x)
	}
}

// firstByMinute searches the first time at or after the wall-clock time wall,
// minute by minute.
func firstByMinute(loc *time.Location, wall int64) int64 {
	for x := wall - 27*3600; ; x += 60 {
		if _, offset := time.Unix(x, 0).In(loc).Zone(); x+int64(offset) >= wall {
			return x
		}
	}
}

// In every zone, the days with a change of the offset and the days around them
// begin at the first minute at or after the wall-clock time.
func TestBoundaryInEveryZone(t *testing.T) {
	for i, name := range zones(t) {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		at := changes(loc)
		if testing.Short() && len(at) > 6 {
			at = at[:6]
		}
		for j, change := range at {
			if j > 3 && (i+j)%8 > 0 { // later years follow the same rules, so test an eighth of them
				continue
			}
			_, offset := time.Unix(change, 0).In(loc).Zone()
			local := (change + int64(offset)) % 86400
			for _, clock := range []int64{0, local / 60 * 60, (local + 86400 - 1800) % 86400 / 60 * 60} {
				c := &Calendar{Location: loc, Days: 1, Clock: clock}
				k := floorDiv(change, 86400)
				for d := k - 1; d <= k+1; d++ {
					if got, want := c.Boundary(d), firstByMinute(loc, d*86400+clock)*1e6; got != want {
						t.Fatalf("%s, day %d from %d s: %v, want %v", name, d, clock, time.UnixMicro(got).UTC(), time.UnixMicro(want).UTC())
					}
				}
			}
		}
	}
}

// tick is the inverse of boundary, in every zone and unit.
func TestTickIsTheInverseOfBoundary(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, name := range zones(t) {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, unit := range [][2]int64{{1, 0}, {7, 0}, {14, 0}, {0, 1}, {0, 3}, {0, 12}} {
			c := func() *Calendar {
				return &Calendar{Location: loc, Days: unit[0], Months: unit[1], Clock: rnd.Int64N(max(1, 31*unit[1]))*86400 + int64(rnd.IntN(1440))*60}
			}
			kept := c() // a calendar that caches the last window
			for range 12 {
				x := (from2020+rnd.Int64N(to2041-from2020))*1e6 + rnd.Int64N(1e6)
				fresh := &Calendar{Location: loc, Days: kept.Days, Months: kept.Months, Clock: kept.Clock}
				k := kept.Tick(x)
				start, end := fresh.Boundary(k), fresh.Boundary(k+1)
				if fresh.Tick(x) != k || x < start || x >= end {
					t.Fatalf("%s %v: instant %d is in window %d, which is [%d, %d)", name, unit, x, k, start, end)
				}
				again := &Calendar{Location: loc, Days: kept.Days, Months: kept.Months, Clock: kept.Clock}
				if again.Tick(start) != k || again.Tick(end-1) != k || again.Tick(end) != k+1 {
					t.Fatalf("%s %v: the ends of window %d are in %d, %d, %d", name, unit, k, again.Tick(start), again.Tick(end-1), again.Tick(end))
				}
			}
		}
	}
}

// TestParseStart checks when windows begin that have a day or a date, and what is refused.
func TestParseStart(t *testing.T) {
	for _, c := range []struct {
		start        string
		days, months int64
		now, from    string // in UTC
	}{
		{"17 00:00 UTC", 0, 1, "2026-03-16T23:59:59Z", "2026-02-17T00:00:00Z"},
		{"17 00:00 UTC", 0, 1, "2026-03-17T00:00:00Z", "2026-03-17T00:00:00Z"},
		{"31 00:00 UTC", 0, 1, "2026-03-01T00:00:00Z", "2026-02-28T00:00:00Z"},
		{"31 00:00 UTC", 0, 1, "2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"31 02:30 Europe/Rome", 0, 1, "2026-05-01T00:00:00Z", "2026-04-30T00:30:00Z"},
		{"05-17 00:00 UTC", 0, 12, "2026-05-16T00:00:00Z", "2025-05-17T00:00:00Z"},
		{"05-17 00:00 UTC", 0, 3, "2026-03-01T00:00:00Z", "2026-02-17T00:00:00Z"},
		{"05-17 00:00 UTC", 0, 6, "2026-05-16T00:00:00Z", "2025-11-17T00:00:00Z"},
		{"02-29 00:00 UTC", 0, 12, "2026-03-01T00:00:00Z", "2026-02-28T00:00:00Z"},
		{"00:00 UTC", 14, 0, "2026-11-27T00:00:00Z", "2026-11-23T00:00:00Z"},
		{"00:00 UTC", 14, 0, "1970-01-18T23:59:59Z", "1970-01-05T00:00:00Z"},
	} {
		cal := &Calendar{Days: c.days, Months: c.months}
		if err := cal.ParseStart(c.start); err != nil {
			t.Errorf("%s: %v", c.start, err)
			continue
		}
		now, _ := time.Parse(time.RFC3339, c.now)
		if got := time.UnixMicro(cal.Boundary(cal.Tick(now.UnixMicro()))).UTC().Format(time.RFC3339); got != c.from {
			t.Errorf("%s per %d months: the window of %s begins at %s, want %s", c.start, c.months, c.now, got, c.from)
		}
	}
	for start, want := range map[string]string{
		"17th 00:00 UTC": `"17th" is not a day of the month such as 17`,
		"0 00:00 UTC":    `"0" is not a day of the month such as 17`,
		"2w":             `"2w" is a length of time; start is when windows begin, such as 0s or '00:00 UTC', and per how long they are`,
		"14 days":        `"14 days" is a length of time; start is when windows begin, such as 0s or '00:00 UTC', and per how long they are`,
	} {
		if err := (&Calendar{Months: 1}).ParseStart(start); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", start, err, want)
		}
	}
}

func TestCalendarLengths(t *testing.T) {
	rome, err := time.LoadLocation("Europe/Rome")
	if err != nil {
		t.Fatal(err)
	}
	length := func(c *Calendar, at time.Time) time.Duration {
		k := c.Tick(at.UnixMicro())
		return time.Duration(c.Boundary(k+1)-c.Boundary(k)) * time.Microsecond
	}
	for year := 2020; year <= 2040; year++ {
		short, long := 0, 0
		for x := time.Date(year, 1, 1, 12, 0, 0, 0, rome); x.Year() == year; x = x.AddDate(0, 0, 1) {
			switch length(&Calendar{Location: rome, Days: 1}, x) {
			case 23 * time.Hour:
				short++
			case 25 * time.Hour:
				long++
			case 24 * time.Hour:
			default:
				t.Fatalf("the day %v", x)
			}
		}
		if short != 1 || long != 1 {
			t.Errorf("%d: %d days of 23 hours, %d of 25", year, short, long)
		}
		february := length(&Calendar{Location: time.UTC, Months: 1}, time.Date(year, 2, 10, 0, 0, 0, 0, time.UTC))
		if want := time.Date(year, 3, 0, 0, 0, 0, 0, time.UTC).Day(); february != time.Duration(want)*24*time.Hour {
			t.Errorf("February %d: %v", year, february)
		}
		for name, c := range map[string]*Calendar{"week": {Location: rome, Days: 7}, "month": {Location: rome, Months: 1}, "year": {Location: rome, Months: 12}} {
			start := time.UnixMicro(c.Boundary(c.Tick(time.Date(year, 5, 17, 9, 0, 0, 0, rome).UnixMicro()))).In(rome)
			if start.Hour() != 0 || name == "week" && start.Weekday() != time.Monday || name == "month" && (start.Day() != 1 || start.Month() != 5) ||
				name == "year" && (start.YearDay() != 1 || start.Year() != year) {
				t.Errorf("the %s of May 17, %d begins at %v", name, year, start)
			}
		}
	}
}
