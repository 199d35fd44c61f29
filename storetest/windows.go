package storetest

import (
	"strconv"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// windowCases test where windows begin and end.
var windowCases = []testCase{
	{"window-rollover", windowRollover},
	{"window-spread", windowSpread},
	{"window-remembered", windowRemembered},
	{"window-calendar", windowCalendar},
	{"window-first-call", windowFirstCall},
	{"window-first-call-changed", windowFirstCallChanged},
}

func windowRollover(e *env) {
	e.define(store.Limit{Name: "r", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Burst: 12, Start: "0s"})
	e.allowed("r", "k", 12, 0)
	for i, want := range []int64{5, 10, 12, 12} {
		e.at(time.Duration(i+1)*time.Minute - time.Microsecond)
		e.left("r", "k", []int64{0, 5, 10, 12}[i])
		e.at(time.Duration(i+1) * time.Minute)
		e.left("r", "k", want)
	}
	e.allowed("r", "k", 7, 5)
	e.refused("r", "k", 6, time.Minute)
	e.refused("r", "k", 11, 2*time.Minute)
}

// The windows of different keys begin at different times, computed from limit
// and key.
func windowSpread(e *env) {
	for _, l := range []store.Limit{
		{Name: "hour", Algorithm: store.FixedWindow, Rate: 5, Period: time.Hour},
		{Name: "odd", Algorithm: store.Interval, Rate: 2, Period: 7*time.Second + 1, Burst: 6},
		{Name: "month", Algorithm: store.FixedWindow, Rate: 3, Period: store.Month},
		{Name: "year", Algorithm: store.FixedWindow, Rate: 3, Period: 12 * store.Month},
	} {
		if l.Name == "odd" {
			l.Period = 7*time.Second + time.Microsecond
		}
		e.define(l)
		boundaries := map[time.Duration]bool{}
		for _, key := range []string{"a", "b", "user:7", "ключ", "ключ2", "k"} {
			e.at(0)
			d := e.take(l.Name, key, 5%l.Rate+l.Rate)
			for !d.Allowed && !d.Never {
				e.advance(d.RetryAfter)
				d = e.take(l.Name, key, 1)
			}
			d = e.do(store.VerbTakeUpTo, l.Name, key, 100)
			d = e.take(l.Name, key, 1)
			boundaries[d.RetryAfter] = true
			e.exact(store.VerbTake, l.Name, key, 1)
		}
		if len(boundaries) < 5 {
			e.Fatalf("%s: the windows of 6 keys begin at only %d different times", l.Name, len(boundaries))
		}
	}
}

// A store may cache when the windows of a row begin. The cached value must not
// be used for another limit, another period, or another key that reuses the
// row's memory.
func windowRemembered(e *env) {
	keys := func(from, n int) (keys []string) {
		for i := range n {
			keys = append(keys, "user:"+strconv.Itoa(from+i))
		}
		return keys
	}
	call := func(limit string, keys []string) {
		for _, k := range keys {
			e.do(store.VerbTakeUpTo, limit, k, 3)
			e.take(limit, k, 1)
			e.check(limit, k, 2)
		}
	}
	hour := store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 5, Period: time.Hour, OnChange: store.Keep}
	other, odd, bucket, month := hour, hour, hour, hour
	other.Name, odd.Period, month.Period = "other", 7*time.Minute+time.Microsecond, store.Month
	bucket.Algorithm = store.TokenBucket
	few, many := keys(0, 12/e.few), 40/e.few
	e.define(hour)
	e.define(other)
	call("w", few)
	call("other", few)
	for _, l := range []store.Limit{odd, bucket, odd, month, hour} {
		e.advance(31 * time.Second)
		e.define(l)
		call("w", few)
		e.advance(l.Period/3 + time.Second)
		call("w", few)
	}
	for round := range 1 + 4/e.part { // keys come and go in each round
		e.advance(90 * 24 * time.Hour)
		e.sweep()
		call("w", keys(1000*(round%2), many))
		call("other", keys(1000*(round%2)+many/2, many))
	}
	e.do(store.VerbReset, "w", few[0], 0)
	e.drop("other")
	other.Period = 13 * time.Minute
	e.define(other)
	for range 3 {
		call("w", few)
		call("other", few)
		e.advance(11 * time.Minute)
	}
}

// Windows of days with 23 and 25 hours, weeks that begin on Monday, months and
// years.
func windowCalendar(e *env) {
	day := 24 * time.Hour
	for i, c := range []struct {
		start  string
		period time.Duration
		from   time.Time
		step   time.Duration
		steps  int
	}{
		{"00:00 Europe/Rome", day, time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC), 7 * time.Hour, 20},
		{"02:30 Europe/Rome", day, time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC), 7 * time.Hour, 20},
		{"02:30 Europe/Rome", day, time.Date(2026, 10, 23, 12, 0, 0, 0, time.UTC), 7 * time.Hour, 20},
		{"06:00 America/New_York", 7 * day, time.Date(2026, 10, 20, 0, 0, 0, 0, time.UTC), 3 * day, 12},
		{"00:00 UTC", store.Month, time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC), 13 * day, 12},
		{"12:00 Asia/Kolkata", 3 * store.Month, time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC), 40 * day, 12},
		{"00:00 Australia/Lord_Howe", 12 * store.Month, time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC), 130 * day, 9},
		{"00:00 America/Sao_Paulo", day, time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC), 25 * time.Hour, 9},
	} {
		name := string(rune('a' + i))
		e.clock.Store(c.from.UnixMicro())
		e.define(store.Limit{Name: name, Algorithm: store.FixedWindow, Rate: 2, Period: c.period, Start: c.start})
		for range c.steps / e.part {
			e.do(store.VerbTakeUpTo, name, "k", 2)
			e.exact(store.VerbTake, name, "k", 1)
			e.advance(c.step)
		}
	}
	e.clock.Store(time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC).UnixMicro()) // midnight in Rome; the clock goes forward at 02:00
	e.allowed("a", "short", 2, 0)
	e.refused("a", "short", 1, 23*time.Hour)
	e.clock.Store(time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC).UnixMicro()) // midnight in Rome; the clock goes back at 03:00
	e.allowed("a", "long", 2, 0)
	e.refused("a", "long", 1, 25*time.Hour)
}

// A window that begins with a call: the call that takes from a full bucket begins it, and
// the next windows follow it until the bucket is full again.
func windowFirstCall(e *env) {
	e.define(store.Limit{Name: "f", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "first_call"})
	e.define(store.Limit{Name: "r", Algorithm: store.Interval, Rate: 2, Period: 10 * time.Second, Burst: 6, Start: "first_call"})
	e.at(17 * time.Second)
	e.check("f", "k", 5) // begins nothing
	e.at(20 * time.Second)
	e.allowed("f", "k", 2, 3)
	e.at(70 * time.Second)
	e.allowed("f", "k", 3, 0) // a take that does not move the window
	e.refused("f", "k", 1, 10*time.Second)
	e.exact(store.VerbTake, "f", "k", 1) // at 80 s, when all tokens have come back: the next window
	e.at(139 * time.Second)
	e.refused("f", "k", 5, time.Second)
	e.at(10 * time.Minute)
	e.do(store.VerbCharge, "f", "k", 1)
	e.at(10*time.Minute + 59*time.Second)
	e.left("f", "k", 4)
	e.do(store.VerbRefund, "f", "k", 1) // a refund of everything: the next call begins a window
	e.allowed("f", "k", 5, 0)
	e.refused("f", "k", 1, time.Minute)
	e.clock.Add(-(30 * time.Second).Microseconds()) // nobody waits longer than these 30 s
	e.refused("f", "k", 1, 90*time.Second)
	e.advance(90 * time.Second)
	e.left("f", "k", 5)

	e.at(0)
	e.allowed("r", "k", 6, 0)
	e.at(9 * time.Second)
	d := e.reserve("r", "k", 3) // the reservation is due with the second interval
	e.at(25 * time.Second)
	e.refused("r", "k", 2, 5*time.Second)
	if err := e.cancel(d.Reservation); err == nil {
		e.Fatalf("a reservation was cancelled after it was due")
	}
	e.at(41 * time.Second)
	e.left("r", "k", 5)
	e.do(store.VerbTakeUpTo, "r", "k", 9)
	for range 12 {
		e.exact(store.VerbTake, "r", "k", 2)
		e.advance(7 * time.Second)
	}
	e.sweep()
	e.doAll(store.VerbTake, dipwell.Take{Limit: "r", Key: "k", Cost: 1}, dipwell.Take{Limit: "f", Key: "k", Cost: 2})
	e.exact(store.VerbTake, "f", "k", 5)
}

// A change begins a window only if it changes period or start.
func windowFirstCallChanged(e *env) {
	l := store.Limit{Name: "f", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "first_call"}
	other, mode, grid, longer := l, l, l, l
	other.Rate, other.Burst, mode.Mode, grid.Start, longer.Period = 4, 6, store.Shadow, "0s", 2*time.Minute
	for i, c := range []struct {
		to    store.Limit
		after time.Duration // time until the taken tokens are back
	}{{other, 40 * time.Second}, {mode, 40 * time.Second}, {grid, 35 * time.Second}, {longer, 2 * time.Minute}} {
		e.at(time.Hour*time.Duration(i) + 5*time.Second)
		e.define(l)
		e.allowed("f", "k", 3, 2)
		e.advance(20 * time.Second)
		e.define(c.to)
		e.left("f", "k", max(c.to.Burst, c.to.Rate)-3)
		e.advance(c.after - time.Microsecond)
		e.left("f", "k", max(c.to.Burst, c.to.Rate)-3)
		e.advance(time.Microsecond)
		e.left("f", "k", max(c.to.Burst, c.to.Rate))
	}
	e.define(grid)
	e.at(5*time.Hour + 5*time.Second)
	e.allowed("f", "k", 3, 2)
	e.define(l) // this change begins a window
	e.advance(59 * time.Second)
	e.left("f", "k", 2)
	e.advance(time.Second)
	e.left("f", "k", 5)
}
