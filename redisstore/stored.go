package redisstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/store"
)

// storedLimit is a field of the hash of limits, a public format: settings as a
// configuration file spells them, and each version's numbers as they were
// compiled, so that rows keep their meaning whatever a newer program compiles.
type storedLimit struct {
	Settings [][2]string     `json:"settings,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Version  uint32          `json:"version,omitempty"`
	Versions []storedVersion `json:"versions,omitempty"` // oldest first, the present one last
	Dropped  uint32          `json:"dropped,omitempty"`  // the last version of a limit that is gone
}

type storedVersion struct {
	Number    uint32 `json:"number"`
	Since     int64  `json:"since"`
	Policy    string `json:"policy"`
	Unit      int64  `json:"unit"`
	Every     int64  `json:"every"`
	Add       int64  `json:"add"`
	Cap       int64  `json:"cap"`
	Origin    int64  `json:"origin"`
	Burst     int64  `json:"burst"`
	Debt      int64  `json:"debt"`
	Most      int64  `json:"most"`
	MaxCharge int64  `json:"max_charge"`
	MaxUsed   int64  `json:"max_used"`
	Leaky     bool   `json:"leaky,omitempty"`
	Spread    bool   `json:"spread,omitempty"`

	// Of a calendar; without a zone the ticks are every µs apart.
	Months int64  `json:"months,omitempty"`
	Days   int64  `json:"days,omitempty"`
	Clock  int64  `json:"clock,omitempty"` // seconds after local midnight
	Zone   string `json:"zone,omitempty"`
}

func encodeDropped(last uint32) string { return encode(storedLimit{Dropped: last}) }

func encode(l storedLimit) string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

func encodeDefinition(d *store.Definition) string {
	l := storedLimit{Settings: d.Explicit(), Owner: d.Owner, Version: d.Number}
	for i := range d.Past {
		l.Versions = append(l.Versions, storeVersion(d.Past[i]))
	}
	l.Versions = append(l.Versions, storeVersion(d.Version()))
	return encode(l)
}

func storeVersion(v store.Version) storedVersion {
	r, c := &v.Rule, v.Rule.Calendar()
	return storedVersion{v.Number, v.Since, v.Policy.String(), r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most,
		r.MaxCharge, r.MaxUsed, r.Leaky, r.Spread, c.Months, c.Days, c.Clock, c.Zone}
}

// decodeDefinition reads a field; nothing there, or a limit that was dropped, is nil.
func decodeDefinition(name, text string) (*store.Definition, error) {
	if text == "" {
		return nil, nil
	}
	bad := func(err error) error {
		return fmt.Errorf("%w: limit %s as it is stored: %w", store.ErrStore, name, err)
	}
	var l storedLimit
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return nil, bad(err)
	}
	if l.Dropped > 0 {
		return nil, nil
	}
	var limit store.Limit
	for _, set := range l.Settings {
		if err := limit.Set(set[0], set[1]); err != nil {
			return nil, bad(err)
		}
	}
	rule, warning, err := limit.Compile()
	if err != nil {
		return nil, bad(err)
	}
	d := &store.Definition{Limit: limit, Owner: l.Owner, Warning: warning, Number: l.Version}
	for _, v := range l.Versions {
		version, err := v.version(rule)
		switch {
		case err != nil:
			return nil, bad(err)
		case v.Number < l.Version:
			d.Past = append(d.Past, version)
		case v.Number == l.Version:
			d.Since, d.Rule, d.Policy = version.Since, version.Rule, version.Policy
		}
	}
	if limit.Name != name || d.Rule.Unit == 0 {
		return nil, bad(fmt.Errorf("its version %d is missing", l.Version))
	}
	return d, nil
}

// version takes the numbers as they were stored; only a calendar is made anew.
// compiled is used where it comes to the same.
func (v *storedVersion) version(compiled store.Rule) (out store.Version, err error) {
	var l store.Limit
	if err = l.Set("on_change", v.Policy); err != nil {
		return out, err
	}
	out = store.Version{Number: v.Number, Since: v.Since, Rule: compiled, Policy: l.OnChange}
	if storeVersion(out) == *v {
		return out, nil
	}
	shape := store.Limit{Name: "shape", Algorithm: store.FixedWindow, Rate: 1, Period: time.Second}
	if v.Zone != "" {
		shape.Start = fmt.Sprintf("%02d:%02d:%02d %s", v.Clock/3600, v.Clock/60%60, v.Clock%60, v.Zone)
		if shape.Period = time.Duration(v.Days) * 24 * time.Hour; v.Months > 0 {
			shape.Period = time.Duration(v.Months) * store.Month
		}
	}
	if out.Rule, _, err = shape.Compile(); err != nil {
		return out, err
	}
	r := &out.Rule
	r.Unit, r.Every, r.Add, r.Cap, r.Origin = v.Unit, v.Every, v.Add, v.Cap, v.Origin
	r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed = v.Burst, v.Debt, v.Most, v.MaxCharge, v.MaxUsed
	r.Leaky, r.Spread = v.Leaky, v.Spread
	r.Ready()
	return out, nil
}
