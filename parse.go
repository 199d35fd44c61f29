package dipwell

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// ParseLimit reads a limit as command lines spell it: NAME=RATE/PER, then settings after
// commas; or NAME=BURST of a concurrency limit:
//
//	login=5/1m,burst=20
//	api=100/s
//	quota=1000/1d,algorithm=fixed_window,start=00:00 Europe/Rome
//	jobs=10,algorithm=concurrency,ttl=5m
//
// PER is a number and a unit, us, ms, s, m, h, d or w, and of windows and intervals mo or
// y; without a number it is one unit. The settings are those of configuration files;
// Limit.Set reads one of them, and Limit.String writes a whole limit. A setting may be
// given only once.
//
// ParseLimit checks the limit as New does, except that its Parent exists. The error is a
// *FieldError that names the setting, and if that is unknown, suggests the nearest known name.
func ParseLimit(s string) (Limit, error) {
	var l Limit
	head, more, _ := strings.Cut(s, ",")
	name, rate, ok := strings.Cut(head, "=")
	count, per, timed := strings.Cut(rate, "/")
	concurrency := slices.Contains(strings.Split(more, ","), "algorithm="+store.Concurrency.String())
	if !ok {
		name, rate = "NAME", head
	}
	advice := ""
	if text := period.RewriteRate(rate); text != "" && (text != rate || !ok) && !concurrency {
		advice = fmt.Sprintf(": write %s=%s", name, text)
	}
	if !ok || timed == concurrency {
		return l, &FieldError{Field: "limit", Reason: fmt.Sprintf("%q is not NAME=RATE/PER, such as 'login=5/1m,burst=20', or NAME=BURST,algorithm=concurrency%s", s, advice)}
	}
	if _, err := period.Parse("1" + per); err == nil && (per[0] < '0' || per[0] > '9') { // 10/s
		per = "1" + per
	}
	seen := map[string]bool{"name": true, "rate": true, "per": true}
	first := [][2]string{{"name", name}, {"rate", count}, {"per", per}}
	if concurrency {
		first = [][2]string{{"name", name}, {"burst", count}}
		seen["burst"] = true
	}
	for _, kv := range first {
		if err := l.Set(kv[0], kv[1]); err != nil && advice != "" {
			return l, &FieldError{Limit: l.Name, Field: kv[0], Reason: fmt.Sprintf("%q is not RATE/PER, such as 5/1m%s", rate, advice)}
		} else if err != nil {
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
	_, err := store.NewDefinition(l)
	return l, err
}
