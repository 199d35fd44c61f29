// Package period reads and writes lengths of time as configuration files spell them.
package period

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Calendar periods. Calendar periods are markers, not lengths: 3*Month is a quarter.
const (
	Month time.Duration = -1
	Year                = 12 * Month
)

// MaxMonths is the longest calendar period, in months.
const MaxMonths = 1200

var units = []struct {
	name string
	len  time.Duration
}{ // longest first, and before any that begins with the same letter
	{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour},
	{"ms", time.Millisecond}, {"us", time.Microsecond}, {"µs", time.Microsecond},
	{"m", time.Minute}, {"s", time.Second},
}

// Parse reads the period of a limit, such as 250ms, 1s, 1m, 1h, 1d, 1w or 1h30m,
// or a calendar period such as 1mo or 1y. It must be longer than 0.
func Parse(s string) (time.Duration, error) {
	for _, u := range []struct {
		name string
		len  time.Duration
	}{{"mo", Month}, {"y", Year}} {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			k, err := strconv.ParseInt(n, 10, 64)
			if err != nil || k < 1 || k > MaxMonths || -u.len*time.Duration(k) > MaxMonths {
				return 0, notLength(s, "period such as 1s, 1m, 1d, 1w, 1mo or 1y")
			}
			return u.len * time.Duration(k), nil
		}
	}
	d, err := ParseDuration(s)
	if err == nil && d == 0 {
		err = fmt.Errorf("a period of 0 is not a length of time")
	}
	return d, err
}

// ParseDuration reads a sum of whole numbers with units, such as 1d12h or 0s.
func ParseDuration(s string) (time.Duration, error) {
	var sum time.Duration
	for rest := s; rest != "" || s == ""; {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		rest = rest[digits:]
		unit := time.Duration(0)
		for _, u := range units {
			if strings.HasPrefix(rest, u.name) {
				rest, unit = rest[len(u.name):], u.len
				break
			}
		}
		if err != nil || unit == 0 {
			return 0, notLength(s, "length of time such as 250ms, 1s, 1m, 1h, 1d or 1w")
		}
		if n > int64((math.MaxInt64-sum)/unit) {
			return 0, fmt.Errorf("%q is too long: at most 292 years", s)
		}
		sum += time.Duration(n) * unit
	}
	return sum, nil
}

// notLength returns the error for a text that is not what, with what to write instead.
func notLength(s, what string) error {
	if text := Rewrite(s); text != "" {
		return fmt.Errorf("%q is not a %s: write %s", s, what, text)
	}
	return fmt.Errorf("%q is not a %s", s, what)
}

// ParseSetting reads a length of time as ParseDuration does, or one with a fraction, such as
// 1.5h, or 0.
func ParseSetting(s string) (time.Duration, error) {
	d, err := ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if d, e := time.ParseDuration(s); e == nil && d >= 0 {
		return d, nil
	}
	return 0, err
}

// Format writes a period as Parse reads it, in the largest unit that divides it.
func Format(d time.Duration) string {
	switch {
	case d < 0 && d%Year == 0:
		return strconv.FormatInt(int64(d/Year), 10) + "y"
	case d < 0:
		return strconv.FormatInt(int64(d/Month), 10) + "mo"
	}
	for _, u := range []struct {
		name string
		len  time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if d != 0 && d%u.len == 0 {
			return strconv.FormatInt(int64(d/u.len), 10) + u.name
		}
	}
	return strconv.FormatInt(d.Microseconds(), 10) + "us"
}
