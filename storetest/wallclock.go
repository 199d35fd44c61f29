package storetest

import (
	"sync"
	"time"
)

// wallClock numbers calendar windows in a simple and slow way: by searching
// each boundary minute by minute.
type wallClock struct {
	loc    *time.Location
	period time.Duration
	minute int64 // minute of the day at which a window begins
}

// boundaries caches the results of the method boundary.
var boundaries sync.Map

type boundaryKey struct {
	wallClock
	tick int64
}

// date returns the first day of window n, as midnight in UTC.
func (w *wallClock) date(tick int64) time.Time {
	switch {
	case w.period < 0: // months
		return time.Date(1970, time.Month(1+tick*int64(-w.period)), 1, 0, 0, 0, 0, time.UTC)
	case w.period == 7*24*time.Hour:
		return time.Date(1970, 1, 5+7*int(tick), 0, 0, 0, 0, time.UTC) // a Monday
	}
	return time.Date(1970, 1, 1+int(tick), 0, 0, 0, 0, time.UTC)
}

// boundary returns the first time in µs at or after the wall-clock time at which
// the window begins.
func (w *wallClock) boundary(tick int64) int64 {
	key := boundaryKey{*w, tick}
	if at, ok := boundaries.Load(key); ok {
		return at.(int64)
	}
	want := w.date(tick).Unix() + w.minute*60
	at := want - 27*3600
	for {
		t := time.Unix(at, 0).In(w.loc)
		_, offset := t.Zone()
		if at+int64(offset) >= want {
			break
		}
		at += 60
	}
	boundaries.Store(key, at*1e6)
	return at * 1e6
}

func (w *wallClock) tick(x int64) int64 {
	length := 24 * time.Hour
	switch {
	case w.period < 0:
		length *= -w.period * 30
	case w.period > 0:
		length = w.period
	}
	k := x / length.Microseconds()
	for w.boundary(k) > x {
		k--
	}
	for w.boundary(k+1) <= x {
		k++
	}
	return k
}
