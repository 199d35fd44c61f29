package replay

import (
	"math"
	"strconv"
	"time"
)

// clfTimes reads the time of combined logs, 17/May/2015:10:05:03 +0000. Lines
// of one day and zone share a prefix and a suffix, so those are read once.
type clfTimes struct {
	day  [12]byte // "17/May/2015:"
	zone [6]byte  // " +0000"
	base int64    // µs at that day's beginning, in that zone
}

const clfLen = len("17/May/2015:10:05:03 +0000")

// parse reads the time that b begins with, and returns how long it is.
func (c *clfTimes) parse(b []byte) (t int64, n int, ok bool) {
	if len(b) < clfLen {
		return 0, 0, false
	}
	b = b[:len(b):len(b)]
	if string(b[:12]) != string(c.day[:]) || string(b[20:26]) != string(c.zone[:]) {
		return c.slow(b)
	}
	s, ok := clock(b[12:20])
	return c.base + s*1e6, clfLen, ok
}

// slow reads a new day or zone, or a time with a fraction of a second.
func (c *clfTimes) slow(b []byte) (t int64, n int, ok bool) {
	s, ok := clock(b[12:20])
	if !ok {
		return 0, 0, false
	}
	var us int64
	if at := 20; b[at] == '.' || b[at] == ',' {
		scale := int64(1e5)
		for at++; at < len(b) && at < 30 && b[at] >= '0' && b[at] <= '9'; at++ {
			us += int64(b[at]-'0') * scale
			scale /= 10
		}
		n = at
	} else {
		n = at
	}
	if len(b) < n+6 || b[n] != ' ' || b[11] != ':' {
		return 0, 0, false
	}
	d, err := time.Parse("02/Jan/2006 -0700", string(b[:11])+string(b[n:n+6]))
	if err != nil {
		return 0, 0, false
	}
	base := d.UnixMicro()
	if n == 20 {
		copy(c.day[:], b)
		copy(c.zone[:], b[20:26])
		c.base = base
	}
	return base + s*1e6 + us, n + 6, true
}

// clock reads 15:04:05 as seconds; 60 is a leap second, which is the next one.
func clock(b []byte) (int64, bool) {
	_ = b[7]
	h1, h0, m1, m0, s1, s0 := b[0]-'0', b[1]-'0', b[3]-'0', b[4]-'0', b[6]-'0', b[7]-'0'
	if h1|h0|m1|m0|s1|s0 > 15 || h0 > 9 || m0 > 9 || s0 > 9 || b[2] != ':' || b[5] != ':' {
		return 0, false
	}
	h, m, s := int64(h1)*10+int64(h0), int64(m1)*10+int64(m0), int64(s1)*10+int64(s0)
	return h*3600 + m*60 + s, h < 24 && m < 60 && s <= 60
}

// layouts are the times that programs write, besides those of combined logs.
// Without a zone they are UTC.
var layouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999 -0700",
	"2006-01-02T15:04:05.999999999-0700", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999",
	"2006/01/02 15:04:05.999999999", time.RFC1123Z, time.RFC1123}

// textTimes reads the times of JSON and CSV logs.
type textTimes struct {
	clf    clfTimes
	layout string // that matched last
}

func (x *textTimes) parse(b []byte) (int64, error) {
	if len(b) == 0 {
		return 0, errNoTime
	}
	if len(b) > 64 {
		return 0, errBadTime
	}
	if t, ok := number(b); ok {
		return t, nil
	}
	s := string(b)
	if x.layout != "" {
		if t, err := time.Parse(x.layout, s); err == nil {
			return micros(t)
		}
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, s); err == nil {
			x.layout = layout
			return micros(t)
		}
	}
	if b[0] == '[' && b[len(b)-1] == ']' {
		b = b[1 : len(b)-1]
	}
	if t, n, ok := x.clf.parse(b); ok && n == len(b) {
		return t, nil
	}
	return 0, errBadTime
}

func micros(t time.Time) (int64, error) {
	if y := t.Year(); y < 1969 || y > 2256 { // UnixMicro is undefined far out
		return 0, errEra
	}
	return t.UnixMicro(), nil
}

// number reads seconds, milliseconds, microseconds or nanoseconds since the
// Unix epoch, told apart by their size; digits are kept to the microsecond.
func number(b []byte) (int64, bool) {
	var whole, frac, scale int64 = 0, 0, 1e6
	i := 0
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		if whole > (math.MaxInt64-9)/10 {
			return 0, false
		}
		whole = whole*10 + int64(b[i]-'0')
	}
	if i == 0 {
		return 0, false
	}
	if i < len(b) && b[i] == '.' {
		for i++; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
			if scale > 1 {
				scale /= 10
				frac += int64(b[i]-'0') * scale
			}
		}
	}
	if i < len(b) {
		return scientific(b)
	}
	switch {
	case whole < 1e11:
		return whole*1e6 + frac, true
	case whole < 1e14:
		return whole*1e3 + frac/1e3, true
	case whole < 1e17:
		return whole, true
	}
	return whole / 1e3, true
}

// scientific reads seconds such as 1.4318571e9, as some programs print them.
func scientific(b []byte) (int64, bool) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f < 0 || f >= 1e11 || b[0] < '0' || b[0] > '9' {
		return 0, false
	}
	return int64(f * 1e6), true
}
