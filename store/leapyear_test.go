package store_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Windows around the 366th day of a year are right beyond the last change that
// a zone's table lists.
func TestLeapYearEnd(t *testing.T) {
	for _, zone := range []string{"Europe/Rome", "America/New_York", "Pacific/Auckland"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := compile(store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 1, Period: 24 * time.Hour, Start: "06:00 " + zone})
		if err != nil {
			t.Fatal(err)
		}
		for day := range 5 {
			noon := time.Date(2040, 12, 29+day, 12, 0, 0, 0, loc)
			start, end := r.Window(noon.UnixMicro())
			if want := noon.Add(-6 * time.Hour).UnixMicro(); start != want || end != want+86400e6 {
				t.Errorf("%s: the window of %v is %v to %v", zone, noon, time.UnixMicro(start).In(loc), time.UnixMicro(end).In(loc))
			}
		}
	}
}
