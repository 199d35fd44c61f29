package replay

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// layouts are the forms of a time, with a space in place of the T of RFC 3339. In each,
// time.Parse also takes a fraction of a second. A time without a zone is UTC.
var layouts = []string{
	"2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05Z0700", "2006-01-02 15:04:05Z07", "2006-01-02 15:04:05", "2006-01-02 15:04:05 -0700",
	"2006-01-02 15:04:05 -07:00", "2006/01/02 15:04:05", clf, "02/Jan/2006:15:04:05", "02/Jan/2006 15:04:05",
	"Mon, 02 Jan 2006 15:04:05 -0700", "Mon, 02 Jan 2006 15:04:05", time.ANSIC,
}

const clf = "02/Jan/2006:15:04:05 -0700" // the time format of the Common Log Format

// wordLayouts are the forms of times in the logs of words that replay knows by name.
var wordLayouts = []string{clf, time.RFC3339, "02/Jan/2006:15:04:05"}

// timeForms names layouts in an error.
const timeForms = "2026-03-14T09:00:00Z, 2026-03-14 09:00:00+00 (without a zone: UTC), 14/Mar/2026:09:00:00 +0000, Sat, 14 Mar 2026 09:00:00 GMT, and seconds, ms, µs or ns since 1970"

// firstTime is the earliest time of a request, in µs: the beginning of 2000. Smaller numbers
// are usually durations, or days of a spreadsheet.
const firstTime = 946_684_800 * second

// times parses times. It keeps the last one, because most lines have the time of the line
// before.
type times struct {
	latest int64 // latest valid time: the end of tomorrow
	words  bool  // only wordLayouts
	layout string
	text   []byte
	us     int64
}

func newTimes(words bool) times {
	return times{latest: (time.Now().UnixMicro()/day + 2) * day, words: words}
}

// parse returns µs since the Unix epoch.
func (x *times) parse(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, errNoTime
	}
	if bytes.Equal(b, x.text) {
		return x.us, nil
	}
	us, ok := x.read(b)
	switch {
	case !ok:
		return 0, errBadTime
	case us < firstTime || us >= x.latest:
		return 0, errEra
	}
	x.text, x.us = append(x.text[:0], b...), us
	return us, nil
}

func (x *times) read(b []byte) (us int64, ok bool) {
	if len(b) > 64 {
		return 0, false
	}
	list := wordLayouts
	if !x.words {
		list = layouts
		b = bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(b), []byte("[")), []byte("]"))
		if us, ok = number(string(b)); ok {
			return us, true
		}
		for _, utc := range []string{" UTC", " GMT", " Z"} {
			b = bytes.TrimSuffix(b, []byte(utc))
		}
		if len(b) > 10 && b[10] == 'T' {
			b = append(append(append(make([]byte, 0, 64), b[:10]...), ' '), b[11:]...)
		}
	}
	t, err := time.Parse(x.layout, string(b))
	for i := 0; (err != nil || x.layout == "") && i < len(list); i++ {
		if t, err = time.Parse(list[i], string(b)); err == nil {
			x.layout = list[i]
		}
	}
	if y := t.Year(); err != nil || x.layout == "" || y > 9999 { // UnixMicro would overflow
		return 0, false
	}
	return t.UnixMicro(), true
}

// number parses seconds, milliseconds, microseconds or nanoseconds since the Unix epoch,
// which it distinguishes by their size.
func number(s string) (us int64, ok bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 1e17 {
		return n / 1e3, true
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || s[0] > '9' || math.IsNaN(f) || f < 0 || f >= 1e17:
		return 0, false
	case f < 1e11:
		f *= 1e6
	case f < 1e14:
		f *= 1e3
	}
	return int64(math.Round(f)), true
}
