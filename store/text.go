package store

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/suggest"
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

// settings are the names that Set knows, in the order of the documentation.
var settings = []string{"name", "algorithm", "rate", "per", "burst", "max_debt", "max_charge", "start",
	"on_change", "mode", "auth", "retry_jitter", "on_store_error", "timeout", "keys"}

// Set changes one setting, spelled as in a configuration file. The error is a
// *LimitError that names it; an unknown one comes with the nearest known name.
func (l *Limit) Set(setting, value string) error {
	err := l.set(setting, value)
	if err != nil {
		return &LimitError{l.Name, setting, err.Error()}
	}
	return nil
}

func (l *Limit) set(setting, value string) (err error) {
	switch setting {
	case "name":
		l.Name = value
	case "algorithm":
		err = oneOf(&l.Algorithm, value, algorithms)
	case "rate":
		l.Rate, err = parseCount(value)
		if err == nil && l.Rate == 0 {
			err = errors.New("0 is not between 1 and 2^53-1")
		}
	case "per":
		if value == "" {
			return errors.New(missingPeriod)
		}
		l.Period, err = ParsePeriod(value)
	case "burst":
		l.Burst, err = parseCountOr(value, NoBurst)
	case "max_debt":
		if value == "unlimited" {
			l.MaxDebt = UnlimitedDebt
		} else {
			l.MaxDebt, err = parseCountOr(value, NoDebt)
		}
	case "max_charge":
		l.MaxCharge, err = parseCount(value)
		if err == nil && l.MaxCharge == 0 {
			err = errors.New("0 is not between 1 and 2^53-1")
		}
	case "start":
		l.Start = value
	case "on_change":
		err = oneOf(&l.OnChange, value, policies)
	case "mode":
		err = oneOf(&l.Mode, value, modes)
	case "auth":
		switch value {
		case "true", "false":
			l.Auth = value == "true"
		default:
			err = fmt.Errorf("%q is neither true nor false", value)
		}
	case "retry_jitter":
		n, cut := strings.CutSuffix(value, "%")
		l.RetryJitter, err = strconv.Atoi(n)
		if err != nil || !cut || l.RetryJitter < 0 || l.RetryJitter > 100 {
			err = fmt.Errorf("%q is not a percentage from 0%% to 100%%", value)
		}
	case "on_store_error":
		err = oneOf(&l.OnStoreError, value, failures)
	case "timeout":
		l.Timeout, err = parseDuration(value)
	case "keys":
		switch value {
		case "list", "none":
			l.ListKeys = value == "list"
		default:
			err = fmt.Errorf("%q is neither list nor none", value)
		}
	default:
		err = errors.New("unknown setting" + suggest.Name(setting, settings))
	}
	return err
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
	set := func(setting, value string) error {
		if err := l.Set(setting, value); err != nil {
			return err
		}
		return nil
	}
	for _, kv := range [][2]string{{"name", name}, {"rate", count}, {"per", per}} {
		if err := set(kv[0], kv[1]); err != nil {
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
		if err := set(k, v); err != nil {
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

// Explicit lists the settings that differ from their defaults, and always name,
// algorithm, rate and per, as Set reads them.
func (l Limit) Explicit() [][2]string {
	count := func(n int64) string { return strconv.FormatInt(max(n, 0), 10) }
	out := [][2]string{{"name", l.Name}}
	add := func(set bool, name, value string) {
		if set {
			out = append(out, [2]string{name, value})
		}
	}
	add(l.Algorithm != TokenBucket, "algorithm", l.Algorithm.String())
	add(true, "rate", count(l.Rate))
	add(true, "per", FormatPeriod(l.Period))
	add(l.Burst != 0, "burst", count(l.Burst))
	if l.MaxDebt == UnlimitedDebt {
		add(true, "max_debt", "unlimited")
	} else {
		add(l.MaxDebt != 0, "max_debt", count(l.MaxDebt))
	}
	add(l.MaxCharge != 0, "max_charge", count(l.MaxCharge))
	add(l.Start != "", "start", l.Start)
	add(l.OnChange != Keep, "on_change", l.OnChange.String())
	add(l.Mode != Enforce, "mode", l.Mode.String())
	add(l.Auth, "auth", "true")
	add(l.RetryJitter != 0, "retry_jitter", strconv.Itoa(l.RetryJitter)+"%")
	add(l.OnStoreError != FailClosed, "on_store_error", l.OnStoreError.String())
	add(l.Timeout != 0, "timeout", FormatPeriod(l.Timeout))
	add(l.ListKeys, "keys", "list")
	return out
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > MaxInt {
		return 0, fmt.Errorf("%q is not a whole number from 0 to 2^53-1", s)
	}
	return n, nil
}

// parseCountOr reads a count whose 0 is written as zero in a Limit.
func parseCountOr(s string, zero int64) (int64, error) {
	n, err := parseCount(s)
	if err == nil && n == 0 {
		n = zero
	}
	return n, err
}

func oneOf[T ~uint8](dst *T, value string, names []string) error {
	for i, n := range names {
		if n == value {
			*dst = T(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not one of %s%s", value, strings.Join(names, ", "), suggest.Name(value, names))
}
