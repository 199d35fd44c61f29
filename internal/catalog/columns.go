package catalog

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// A field is a field of a limit, stored as a column.
type field struct {
	column  string
	setting string // in Limit.Set
	at      any    // pointer to the field
}

// An expiry is Limit.KeepExpired, whose column has the text of the setting.
type expiry bool

func (e *expiry) String() string {
	if *e {
		return "keep"
	}
	return "give_back"
}

// fields returns all fields of a limit, in the order of the documentation. A column is
// named like the setting, except where its name contains the unit.
func fields(l *store.Limit) []field {
	return []field{
		{"name", "name", &l.Name},
		{"algorithm", "algorithm", &l.Algorithm},
		{"rate", "rate", &l.Rate},
		{"per", "per", &l.Period},
		{"burst", "burst", &l.Burst},
		{"max_debt", "max_debt", &l.MaxDebt},
		{"max_charge", "max_charge", &l.MaxCharge},
		{"start", "start", &l.Start},
		{"on_change", "on_change", &l.OnChange},
		{"mode", "mode", &l.Mode},
		{"auth", "auth", &l.Auth},
		{"retry_jitter", "retry_jitter", &l.RetryJitter},
		{"on_store_error", "on_store_error", &l.OnStoreError},
		{"timeout_us", "timeout", &l.Timeout},
		{"list_keys", "keys", &l.ListKeys},
		{"usage", "usage", &l.Usage},
		{"plans", "plans", &l.Plans},
		{"parent", "parent", &l.Parent},
		{"parts", "parts", &l.Parts},
		{"shared", "shared", &l.Shared},
		{"ttl_us", "ttl", &l.TTL},
		{"on_expire", "on_expire", (*expiry)(&l.KeepExpired)},
		{"block_us", "block", &l.Block},
		{"lease_us", "lease", &l.Lease},
		{"shards", "shards", &l.Shards},
		{"adaptive", "adaptive", &l.Adaptive},
	}
}

// LimitColumns are the columns of a limit's settings in a table.
var LimitColumns = func() (names []string) {
	for _, f := range fields(new(store.Limit)) {
		names = append(names, f.column)
	}
	return names
}()

// LimitValues returns the values of a limit's columns: numbers and booleans as such,
// times in µs if the column's name ends in _us, and everything else as text. A default
// that depends on other fields is nil, and unlimited is -1. For a concurrency limit, rate
// and per are 0 and "", because those columns are not null.
func LimitValues(l *store.Limit) (values []any) {
	for _, s := range fields(l) {
		var value any
		switch f := s.at.(type) {
		case *string:
			if *f != "" {
				value = *f
			}
		case *store.Plans:
			if *f != (store.Plans{}) {
				value = f.String()
			}
		case *store.Adaptive:
			if *f != (store.Adaptive{}) {
				value = f.String()
			}
		case *int64:
			if value = *f; *f < 0 { // the columns have 0 for NoBurst and NoDebt
				value = *f + 1
			} else if *f == 0 && s.setting != "rate" {
				value = nil
			}
		case *time.Duration:
			if value = periodText(*f); inMicros(s) {
				value = f.Microseconds()
			}
		case *int:
			value = *f
		case *bool:
			value = *f
		case fmt.Stringer:
			value = f.String()
		}
		values = append(values, value)
	}
	return values
}

// periodText returns a period as text, or "" if there is none.
func periodText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return period.Format(d)
}

func inMicros(s field) bool { return strings.HasSuffix(s.column, "_us") }

// ReadLimit returns the limit in a row. The values are those of LimitColumns; integers
// may have any size.
func ReadLimit(values []any) (l store.Limit, err error) {
	for i, s := range fields(&l) {
		value := values[i]
		if value == nil {
			continue
		}
		text := fmt.Sprint(value)
		if text == "0" && (s.setting == "rate" || s.setting == "parts" || inMicros(s)) || s.setting == "per" && text == "" { // LimitValues writes these for a setting that is absent
			continue
		}
		switch f := s.at.(type) {
		case *bool:
			*f = value == true
			continue
		case *int64:
			if text == "-1" {
				text = "unlimited"
			}
		case *int: // a percentage
			text += "%"
		case *time.Duration:
			if inMicros(s) {
				text += "us"
			}
		}
		if err = l.Set(s.setting, text); err != nil {
			return l, err
		}
	}
	return l, nil
}

// VersionColumns are the columns of a version in a table.
var VersionColumns = strings.Fields("number since policy unit every add cap origin burst debt most max_charge max_used leaky spread sliding per start settings")

// List returns the names of columns of the table that prefix names, quoted.
func List(prefix string, columns []string) string {
	return prefix + `"` + strings.Join(columns, `", `+prefix+`"`) + `"`
}

// Fields returns pointers to the fields of VersionColumns, for scanning.
func (v *Version) Fields() []any {
	return []any{&v.Number, &v.Since, &v.Policy, &v.Unit, &v.Every, &v.Add, &v.Cap, &v.Origin, &v.Burst, &v.Debt, &v.Most,
		&v.MaxCharge, &v.MaxUsed, &v.Leaky, &v.Spread, &v.Sliding, &v.Per, &v.Start, &v.Settings}
}

// Values returns the values of VersionColumns.
func (v *Version) Values() (values []any) {
	for _, f := range v.Fields() {
		values = append(values, reflect.ValueOf(f).Elem().Interface())
	}
	return values
}

// formatSettings writes a limit as a JSON object of its settings, spelled as in
// a configuration file.
func formatSettings(l *store.Limit) string {
	b := []byte{'{'}
	for i, s := range l.Explicit() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(texts.AppendJSON(b, s[0]), ':')
		b = texts.AppendJSON(b, s[1])
	}
	return string(append(b, '}'))
}

// parseSettings reads what formatSettings writes.
func parseSettings(text string) (l store.Limit, err error) {
	var settings map[string]string
	if err = json.Unmarshal([]byte(text), &settings); err != nil {
		return l, err
	}
	for name, value := range settings {
		if err = l.Set(name, value); err != nil {
			return l, err
		}
	}
	return l, nil
}
