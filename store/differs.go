package store

import (
	"fmt"
	"slices"
)

// countingSettings are those that a rule is compiled from. Two limits that spell
// them differently may count alike: a burst that is left out is the rate.
var countingSettings = []string{"algorithm", "rate", "per", "burst", "max_debt", "max_charge", "start"}

// Differs compares a limit with the definition in force. It returns nil when
// both mean the same, else a *LimitError that names the first setting in which
// they differ, with both values.
func (d *Definition) Differs(l Limit) error {
	if d.Limit == l {
		return nil
	}
	here, err := NewDefinition(l)
	if err != nil {
		return err
	}
	alike := sameCounting(d, here)
	ours, theirs := settingsOf(l), settingsOf(d.Limit)
	for i := range settings {
		name := settings[i].Name
		if ours[name] != theirs[name] && (!alike || !slices.Contains(countingSettings, name)) {
			return &LimitError{l.Name, name, fmt.Sprintf("%s here and %s in force", orDefault(ours[name]), orDefault(theirs[name]))}
		}
	}
	return nil
}

func settingsOf(l Limit) map[string]string {
	m := map[string]string{}
	for _, s := range l.Explicit() {
		m[s[0]] = s[1]
	}
	return m
}

// orDefault is the value of a setting that may have been left out.
func orDefault(value string) string {
	if value == "" {
		return "the default"
	}
	return value
}
