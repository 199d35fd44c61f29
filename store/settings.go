package store

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/texts"
)

// A setting is one field of a Limit, a Plan or an Adaptive as text.
type setting[L any] struct {
	name   string // name in Set, in configuration files and in a FieldError, such as "max_debt"
	always bool   // Explicit lists it whatever its value is, because it has no default
	counts bool   // the rule depends on it; two limits with different texts of it may still count alike
	set    func(l *L, value string) error
	value  func(l *L) (text string, explicit bool)
}

// settings are all fields of a Limit, in the order of the documentation. A new field of
// Limit needs an entry here, one in internal/catalog, and a migration of the stores that
// have a column for each field.
var settings = []setting[Limit]{
	required(field("name", func(l *Limit) *string { return &l.Name }, verbatim, verbatimText)),
	counting(field("algorithm", func(l *Limit) *Algorithm { return &l.Algorithm }, oneOf[Algorithm](algorithms), Algorithm.String)),
	required(counting(field("rate", func(l *Limit) *int64 { return &l.Rate }, parseRate, countText))),
	required(counting(field("per", func(l *Limit) *time.Duration { return &l.Period }, parsePer, period.Format))),
	counting(field("burst", func(l *Limit) *int64 { return &l.Burst }, countOr(NoBurst), countText)),
	counting(field("max_debt", func(l *Limit) *int64 { return &l.MaxDebt }, parseDebt, debtText)),
	counting(field("max_charge", func(l *Limit) *int64 { return &l.MaxCharge }, parsePositive, countText)),
	counting(field("start", func(l *Limit) *string { return &l.Start }, verbatim, verbatimText)),
	field("on_change", func(l *Limit) *ChangePolicy { return &l.OnChange }, oneOf[ChangePolicy](policies), ChangePolicy.String),
	field("mode", func(l *Limit) *Mode { return &l.Mode }, oneOf[Mode](modes), Mode.String),
	field("auth", func(l *Limit) *bool { return &l.Auth }, either("true", "false"), boolText("true", "false")),
	field("retry_jitter", func(l *Limit) *int { return &l.RetryJitter }, parsePercent, percentText),
	field("on_store_error", func(l *Limit) *FailureMode { return &l.OnStoreError }, oneOf[FailureMode](failures), FailureMode.String),
	field("timeout", func(l *Limit) *time.Duration { return &l.Timeout }, period.ParseDuration, period.Format),
	field("keys", func(l *Limit) *bool { return &l.ListKeys }, either("list", "none"), boolText("list", "none")),
	field("usage", func(l *Limit) *bool { return &l.Usage }, either("true", "false"), boolText("true", "false")),
	counting(field("plans", func(l *Limit) *Plans { return &l.Plans }, parsePlans, Plans.String)),
	field("parent", func(l *Limit) *string { return &l.Parent }, verbatim, verbatimText),
	field("parts", func(l *Limit) *int64 { return &l.Parts },
		notZero(parseCount, fmt.Sprintf("0 is not between 1 and %d; a limit with one bucket for everybody is shared: true", maxParts)), countText),
	field("shared", func(l *Limit) *bool { return &l.Shared }, either("true", "false"), boolText("true", "false")),
	field("ttl", func(l *Limit) *time.Duration { return &l.TTL },
		notZero(period.ParseDuration, "0s is not between 1ms and 31d"), period.Format),
	field("on_expire", func(l *Limit) *bool { return &l.KeepExpired }, either("keep", "give_back"), boolText("keep", "give_back")),
	field("block", func(l *Limit) *time.Duration { return &l.Block },
		notZero(period.ParseDuration, "0s is not between 1ms and 366d"), period.Format),
	field("lease", func(l *Limit) *time.Duration { return &l.Lease }, period.ParseDuration, period.Format),
	counting(field("shards", func(l *Limit) *int64 { return &l.Shards }, parseCount, countText)),
	field("adaptive", func(l *Limit) *Adaptive { return &l.Adaptive }, parseAdaptive, Adaptive.String),
}

func field[L any, T comparable](name string, at func(*L) *T, parse func(string) (T, error), text func(T) string) setting[L] {
	return setting[L]{name: name,
		set: func(l *L, value string) error {
			v, err := parse(value)
			if err == nil {
				*at(l) = v
			}
			return err
		},
		value: func(l *L) (string, bool) {
			var zero T
			v := *at(l)
			return text(v), v != zero
		}}
}

// change sets one setting of a list by its name. The error does not name the setting; for
// an unknown name it suggests the nearest known one.
func change[L any](settings []setting[L], l *L, name, value string) error {
	for i := range settings {
		if settings[i].name == name {
			return settings[i].set(l, value)
		}
	}
	names := make([]string, len(settings))
	for i := range settings {
		names[i] = settings[i].name
	}
	return errors.New("unknown setting" + texts.Nearest(name, names))
}

// explicit lists the settings that differ from their defaults, as "name=value".
func explicit[L any](settings []setting[L], l *L) (out []string) {
	for i := range settings {
		if value, differs := settings[i].value(l); differs {
			out = append(out, settings[i].name+"="+value)
		}
	}
	return out
}

// required marks a setting that has no default, and counting one that the rule depends on.
func required(s setting[Limit]) setting[Limit] { s.always = true; return s }
func counting(s setting[Limit]) setting[Limit] { s.counts = true; return s }

// Set changes one setting, spelled as in a configuration file: l.Set("burst", "20"). It
// checks the value alone; NewDefinition checks the whole limit. The error is a
// *FieldError that names the setting; for an unknown name it suggests the nearest known
// one. After an error the limit is as it was.
//
// Settings are named like their fields, in lower case with _ between words, except per
// (Period), keys (ListKeys: list or none), ttl (TTL) and on_expire (KeepExpired: keep or
// give_back). Lengths of time are written 250ms, 1s, 1m, 1h, 1d or 1w, and per of windows
// and intervals also 1mo or 1y; max_debt may be unlimited. The page
// docs/reference/configuration.md has all of them.
//
//	l := store.Limit{Name: "login"}
//	err := errors.Join(l.Set("rate", "5"), l.Set("per", "1m"), l.Set("max_debt", "unlimited"))
func (l *Limit) Set(setting, value string) error {
	if err := change(settings, l, setting, value); err != nil {
		return &FieldError{Limit: l.Name, Field: setting, Reason: err.Error()}
	}
	return nil
}

// Explicit lists the settings that differ from their defaults, in the form that Set
// reads. name is always listed, and so are rate and per, except for a concurrency limit.
func (l Limit) Explicit() (out [][2]string) {
	for i := range settings {
		s := &settings[i]
		if value, explicit := s.value(&l); explicit || s.always && l.Algorithm != Concurrency {
			out = append(out, [2]string{s.name, value})
		}
	}
	return out
}

func verbatim(s string) (string, error) { return s, nil }
func verbatimText(s string) string      { return s }

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n >= 0 && n <= MaxInt {
		return n, nil
	}
	advice := ""
	if n, of := period.Count(s); err != nil && of == 1 && n <= MaxInt {
		advice = fmt.Sprintf(": write %d", n)
	}
	return 0, fmt.Errorf("%q is not a whole number from 0 to 2^53-1%s", s, advice)
}

// parseRate reads a rate. The error of a rate that is a fraction, or that includes a
// period, says what to write instead.
func parseRate(s string) (int64, error) {
	n, err := parsePositive(s)
	if err == nil {
		return n, nil
	}
	if rate, per, ok := strings.Cut(period.RewriteRate(s), "/"); ok {
		err = fmt.Errorf("%w: write rate: %s and per: %s", err, rate, per)
	} else if n, of := period.Count(s); n > 0 && of > 1 {
		err = fmt.Errorf("%w: write rate: %d and a per that is %d times as long", err, n, of)
	}
	return 0, err
}

var parsePositive = notZero(parseCount, "0 is less than 1")

// notZero is parse for a setting whose 0, in a Limit, means the default, so that its text
// cannot be 0. wrong says so.
func notZero[T int64 | time.Duration](parse func(string) (T, error), wrong string) func(string) (T, error) {
	return func(s string) (T, error) {
		v, err := parse(s)
		if err == nil && v == 0 {
			err = errors.New(wrong)
		}
		return v, err
	}
}

// countOr reads a count. The text "0" becomes the value zero, because in a Limit 0
// means the default.
func countOr(zero int64) func(string) (int64, error) {
	return func(s string) (int64, error) {
		n, err := parseCount(s)
		if err == nil && n == 0 {
			n = zero
		}
		return n, err
	}
}

func countText(n int64) string  { return numberText(max(n, 0)) }
func numberText(n int64) string { return strconv.FormatInt(n, 10) }

// parseDebt reads a max_debt: a count, where 0 means NoDebt, or "unlimited".
func parseDebt(s string) (int64, error) {
	if s == "unlimited" {
		return UnlimitedDebt, nil
	}
	return countOr(NoDebt)(s)
}

func debtText(n int64) string {
	if n == UnlimitedDebt {
		return "unlimited"
	}
	return countText(n)
}

func parsePer(s string) (time.Duration, error) {
	if s == "" {
		return 0, errors.New(missingPeriod)
	}
	return period.Parse(s)
}

// parsePercent reads a whole percentage from 0 to 100.
func parsePercent(s string) (int, error) {
	digits, cut := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(digits)
	if err != nil || !cut || n < 0 || n > 100 {
		return 0, fmt.Errorf("%q is not a percentage from 0%% to 100%%", s)
	}
	return n, nil
}

func percentText(n int) string { return strconv.Itoa(n) + "%" }

// either returns a function that reads one of two words.
func either(yes, no string) func(string) (bool, error) {
	return func(s string) (bool, error) {
		if s != yes && s != no {
			return false, fmt.Errorf("%q is neither %s nor %s%s", s, yes, no, texts.Nearest(s, []string{yes, no}))
		}
		return s == yes, nil
	}
}

func boolText(yes, no string) func(bool) string {
	return func(b bool) string {
		if b {
			return yes
		}
		return no
	}
}

// oneOf returns the index of a text in names. The first may be "", which no text matches.
func oneOf[T ~uint8](names []string) func(string) (T, error) {
	return func(s string) (T, error) {
		if i := slices.Index(names, s); i >= 0 {
			return T(i), nil
		}
		return 0, fmt.Errorf("%q is not one of %s%s", s, strings.TrimPrefix(strings.Join(names, ", "), ", "), texts.Nearest(s, names))
	}
}
