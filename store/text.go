package store

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var periodUnits = []struct {
	name string
	len  time.Duration
}{ // longest first, and before any that begins alike
	{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour},
	{"ms", time.Millisecond}, {"us", time.Microsecond}, {"µs", time.Microsecond},
	{"m", time.Minute}, {"s", time.Second},
}

// missingPeriod is the reason of an error about a limit without a period.
const missingPeriod = "is missing; it is a length of time such as 1s, 1m, 1h or 1d"

// ParsePeriod reads a period: 250ms, 1s, 1m, 1h, 1d, 1w, 1h30m, and the
// calendar's 1mo and 1y.
func ParsePeriod(s string) (time.Duration, error) {
	for _, u := range []struct {
		name string
		len  time.Duration
	}{{"mo", Month}, {"y", Year}} {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			k, err := strconv.ParseInt(n, 10, 64)
			if err != nil || k < 1 || k > maxMonths || -u.len*time.Duration(k) > maxMonths {
				return 0, fmt.Errorf("%q is not a period such as 1s, 1m, 1d, 1w, 1mo or 1y", s)
			}
			return u.len * time.Duration(k), nil
		}
	}
	d, err := parseDuration(s)
	if err == nil && d == 0 {
		err = fmt.Errorf("a period of 0 is not a length of time")
	}
	return d, err
}

// parseDuration reads a sum of whole numbers with units, such as 1d12h or 0s.
func parseDuration(s string) (time.Duration, error) {
	var sum time.Duration
	for rest := s; rest != "" || s == ""; {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		rest = rest[digits:]
		unit := time.Duration(0)
		for _, u := range periodUnits {
			if strings.HasPrefix(rest, u.name) {
				rest, unit = rest[len(u.name):], u.len
				break
			}
		}
		if err != nil || unit == 0 {
			return 0, fmt.Errorf("%q is not a length of time such as 250ms, 1s, 1m, 1h, 1d or 1w", s)
		}
		if n > int64((math.MaxInt64-sum)/unit) {
			return 0, fmt.Errorf("%q is too long: at most 292 years", s)
		}
		sum += time.Duration(n) * unit
	}
	return sum, nil
}

// FormatPeriod writes a period as ParsePeriod reads it, in its largest whole unit.
func FormatPeriod(d time.Duration) string {
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

// ParseLimit reads a limit as command lines write it: NAME=RATE/PER and more
// settings after commas, as in "login=5/1m,burst=20".
func ParseLimit(s string) (Limit, error) {
	var l Limit
	head, more, _ := strings.Cut(s, ",")
	name, rate, ok := strings.Cut(head, "=")
	count, per, ok2 := strings.Cut(rate, "/")
	if !ok || !ok2 {
		return l, &LimitError{"", "limit", fmt.Sprintf("%q is not NAME=RATE/PER, such as 'login=5/1m,burst=20'", s)}
	}
	if per != "" && (per[0] < '0' || per[0] > '9') { // 10/s
		per = "1" + per
	}
	seen := map[string]bool{"name": true, "rate": true, "per": true}
	for _, kv := range [][2]string{{"name", name}, {"rate", count}, {"per", per}} {
		if err := l.Set(kv[0], kv[1]); err != nil {
			return l, err
		}
	}
	for more != "" {
		var setting string
		setting, more, _ = strings.Cut(more, ",")
		k, v, ok := strings.Cut(setting, "=")
		switch {
		case !ok:
			return l, &LimitError{l.Name, setting, "is not SETTING=VALUE"}
		case seen[k]:
			return l, &LimitError{l.Name, k, "is given twice"}
		}
		seen[k] = true
		if err := l.Set(k, v); err != nil {
			return l, err
		}
	}
	_, _, err := l.Compile()
	return l, err
}

// String writes the limit as ParseLimit reads it.
func (l Limit) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s=%d/%s", l.Name, l.Rate, FormatPeriod(l.Period))
	for _, s := range l.Explicit() {
		if s[0] != "name" && s[0] != "rate" && s[0] != "per" {
			b.WriteString("," + s[0] + "=" + s[1])
		}
	}
	return b.String()
}
