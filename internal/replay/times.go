package replay

import (
	"math"
	"strconv"
	"time"
)

// clfTimes parses the times of combined logs, 17/May/2015:10:05:03 +0000. It caches
// the last day and zone, which most lines share.
type clfTimes struct {
	day  [12]byte // "17/May/2015:"
	zone [6]byte  // " +0000"
	base int64    // start of that day in that zone, in µs
}

const clfLen = len("17/May/2015:10:05:03 +0000")

// parse parses the time at the beginning of b. n is its length.
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

// slow parses a time of a new day or zone, or with a fraction of a second.
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

// clock parses 15:04:05 as seconds. 60 seconds, a leap second, is the next minute.
func clock(b []byte) (int64, bool) {
	_ = b[7]
	h1, h0, m1, m0, s1, s0 := b[0]-'0', b[1]-'0', b[3]-'0', b[4]-'0', b[6]-'0', b[7]-'0'
	if h1|h0|m1|m0|s1|s0 > 15 || h0 > 9 || m0 > 9 || s0 > 9 || b[2] != ':' || b[5] != ':' {
		return 0, false
	}
	h, m, s := int64(h1)*10+int64(h0), int64(m1)*10+int64(m0), int64(s1)*10+int64(s0)
	return h*3600 + m*60 + s, h < 24 && m < 60 && s <= 60
}

// layouts are the time formats of other logs. A time without a zone is UTC.
var layouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999 -0700",
	"2006-01-02T15:04:05.999999999-0700", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999",
	"2006/01/02 15:04:05.999999999", time.RFC1123Z, time.RFC1123}

// textTimes parses the times of JSON and CSV logs.
type textTimes struct {
	clf    clfTimes
	layout string // the last that matched
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
	if y := t.Year(); y < 1969 || y > 2256 { // UnixMicro may overflow
		return 0, errEra
	}
	return t.UnixMicro(), nil
}

// number parses seconds, milliseconds, microseconds or nanoseconds since the Unix
// epoch, distinguished by their size, to the microsecond.
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

// scientific parses seconds such as 1.4318571e9.
func scientific(b []byte) (int64, bool) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f < 0 || f >= 1e11 || b[0] < '0' || b[0] > '9' {
		return 0, false
	}
	return int64(f * 1e6), true
}
