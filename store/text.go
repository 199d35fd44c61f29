package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/period"
)

// missingPeriod is the reason of an error about a limit without a period.
const missingPeriod = "is missing; it is a length of time such as 1s, 1m, 1h or 1d"

// ParseLimit reads a limit as command lines write it: NAME=RATE/PER and more
// settings after commas, as in "login=5/1m,burst=20". A concurrency limit has no rate:
// it is NAME=BURST, as in "jobs=10,algorithm=concurrency,ttl=5m".
func ParseLimit(s string) (Limit, error) {
	var l Limit
	head, more, _ := strings.Cut(s, ",")
	name, rate, ok := strings.Cut(head, "=")
	count, per, timed := strings.Cut(rate, "/")
	concurrency := slices.Contains(strings.Split(more, ","), "algorithm="+Concurrency.String())
	if !ok || timed == concurrency {
		return l, &FieldError{Field: "limit", Reason: fmt.Sprintf("%q is not NAME=RATE/PER, such as 'login=5/1m,burst=20', or NAME=BURST,algorithm=concurrency", s)}
	}
	if per != "" && (per[0] < '0' || per[0] > '9') { // 10/s
		per = "1" + per
	}
	seen := map[string]bool{"name": true, "rate": true, "per": true}
	first := [][2]string{{"name", name}, {"rate", count}, {"per", per}}
	if concurrency {
		first = [][2]string{{"name", name}, {"burst", count}}
		seen["burst"] = true
	}
	for _, kv := range first {
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
			return l, &FieldError{Limit: l.Name, Field: setting, Reason: "is not SETTING=VALUE"}
		case seen[k]:
			return l, &FieldError{Limit: l.Name, Field: k, Reason: "is given twice"}
		}
		seen[k] = true
		if err := l.Set(k, v); err != nil {
			return l, err
		}
	}
	_, err := NewDefinition(l)
	return l, err
}

// String writes the limit as ParseLimit reads it.
func (l Limit) String() string {
	var b strings.Builder
	first := []string{"name", "rate", "per"}
	if l.Algorithm == Concurrency {
		first = []string{"name", "burst"}
		fmt.Fprintf(&b, "%s=%d", l.Name, l.Burst)
	} else {
		fmt.Fprintf(&b, "%s=%d/%s", l.Name, l.Rate, period.Format(l.Period))
	}
	for _, s := range l.Explicit() {
		if !slices.Contains(first, s[0]) {
			b.WriteString("," + s[0] + "=" + s[1])
		}
	}
	return b.String()
}
