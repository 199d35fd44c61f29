package redisstore

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/dipwell/dipwell/internal/adaptive"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// storedLimit is a field of the hash of limits, a public format.
type storedLimit struct {
	Settings   [][2]string       `json:"settings,omitempty"` // as in a configuration file
	Owner      string            `json:"owner,omitempty"`
	Version    uint32            `json:"version,omitempty"`
	Versions   []catalog.Version `json:"versions,omitempty"`   // oldest first, the present one last
	Overridden bool              `json:"overridden,omitempty"` // keys may have overrides
	Dropped    uint32            `json:"dropped,omitempty"`    // the last version of a limit that was dropped
	Rates      map[uint32]string `json:"rates,omitempty"`      // rates of older versions that were adaptive: adaptive.State.Text
	catalog.Sites
}

// encodeDropped encodes a dropped limit. text is its field so far.
func encodeDropped(last uint32, text string) string {
	sites := sitesOf(text)
	plans, err := sites.Plans()
	for i := range plans {
		plans[i].OverrideOnly = true
	}
	if err == nil {
		sites.Set(plans)
	}
	return encode(storedLimit{Dropped: last, Sites: sites})
}

// sitesOf returns the call sites in the stored form of a limit.
func sitesOf(text string) catalog.Sites {
	var l storedLimit
	_ = json.Unmarshal([]byte(text), &l)
	return l.Sites
}

func encode(l storedLimit) string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

func encodeDefinition(d *store.Definition, sites catalog.Sites) string {
	l := storedLimit{Settings: d.Explicit(), Owner: d.Owner, Version: d.Number, Versions: catalog.Versions(d), Overridden: d.Overridden, Sites: sites}
	for i := range d.Past {
		if v := &d.Past[i]; v.Rule.Pace != nil {
			if l.Rates == nil {
				l.Rates = map[uint32]string{}
			}
			s := v.Rule.Pace.State()
			l.Rates[v.Number] = s.Text()
		}
	}
	return encode(l)
}

// decodeDefinition reads a field. It returns nil if the field is missing or the limit was
// dropped.
func decodeDefinition(name, text string) (*store.Definition, error) {
	if text == "" {
		return nil, nil
	}
	d, err := decode(text)
	if err == nil && d != nil && d.Name != name {
		err = fmt.Errorf("its settings are those of %s", d.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: limit %s as it is stored: %w", store.ErrStore, name, err)
	}
	return d, nil
}

func decode(text string) (*store.Definition, error) {
	var l storedLimit
	if err := json.Unmarshal([]byte(text), &l); err != nil || l.Dropped > 0 {
		return nil, err
	}
	var limit store.Limit
	for _, set := range l.Settings {
		if err := limit.Set(set[0], set[1]); err != nil {
			return nil, err
		}
	}
	d, err := catalog.Definition(limit, l.Owner, l.Version, l.Versions)
	if err == nil {
		err = setPastRates(d, l.Rates)
	}
	if err == nil {
		d.Overridden = l.Overridden
		err = l.Install(d)
	}
	return d, err
}

// setPastRates sets the rates of older versions of an adaptive limit.
func setPastRates(d *store.Definition, rates map[uint32]string) error {
	for i := range d.Past {
		v := &d.Past[i]
		text, stored := rates[v.Number]
		if !stored || v.Rule.Pace == nil {
			continue
		}
		s, err := adaptive.Parse(v.Rule.Pace.Config().Floor, text)
		if err != nil {
			return fmt.Errorf("version %d: its rate: %w", v.Number, err)
		}
		v.Rule.Pace.Set(s)
	}
	return nil
}

// restore returns the text of a limit that a server which has lost changes should store.
// theirs is the text that it has now, ours the last one that this program has read. If both
// are of one version, the server may have lost definitions of call sites, the mark of
// overrides, or that the limit was dropped. certain is false if the server may have lost
// nothing: it may then have deleted definitions that have ended.
func restore(theirs, ours string, certain bool) string {
	if theirs == ours {
		return theirs
	}
	var has, had storedLimit
	switch mine, there := numberOf(ours), numberOf(theirs); {
	case mine > there, mine == there && dropped(ours) && !dropped(theirs):
		return ours
	case mine < there || json.Unmarshal([]byte(theirs), &has) != nil || json.Unmarshal([]byte(ours), &had) != nil || has.Dropped > 0:
		return theirs
	}
	sites, err1 := has.Plans()
	lost, err2 := had.Plans()
	lost = slices.DeleteFunc(lost, func(p store.Plan) bool {
		return p.OverrideOnly && !certain || slices.ContainsFunc(sites, func(q store.Plan) bool { return q.Name == p.Name })
	})
	if err1 != nil || err2 != nil || len(lost) == 0 && (has.Overridden || !had.Overridden) {
		return theirs
	}
	has.Overridden = has.Overridden || had.Overridden
	has.Set(append(sites, lost...))
	return encode(has)
}

// dropped reports whether the limit in a field was dropped.
func dropped(text string) bool {
	var l struct{ Dropped uint32 }
	return json.Unmarshal([]byte(text), &l) == nil && l.Dropped > 0
}

// numberOf returns the highest version that the limit in a field has had, or 0 if the
// field is missing.
func numberOf(text string) uint32 {
	var l struct {
		Version uint32
		Dropped uint32
	}
	_ = json.Unmarshal([]byte(text), &l)
	return max(l.Version, l.Dropped)
}
