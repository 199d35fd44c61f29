package redisstore

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// storedLimit is a field of the hash of limits, a public format.
type storedLimit struct {
	Settings   [][2]string       `json:"settings,omitempty"` // as in a configuration file
	Owner      string            `json:"owner,omitempty"`
	Version    uint32            `json:"version,omitempty"`
	Present    *catalog.Version  `json:"present,omitempty"`    // the rule of that version
	Past       []catalog.Version `json:"past,omitempty"`       // older versions
	Overridden bool              `json:"overridden,omitempty"` // keys may have overrides
	Dropped    uint32            `json:"dropped,omitempty"`    // the last version of a limit that was dropped
}

// encodeDropped encodes a dropped limit.
func encodeDropped(last uint32) string { return encode(storedLimit{Dropped: last}) }

func encode(l storedLimit) string {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

func encodeDefinition(d *store.Definition) string {
	present := catalog.NewVersion(catalog.Present(d), &d.Limit)
	l := storedLimit{Settings: d.Explicit(), Owner: d.Owner, Version: d.Number, Present: &present, Overridden: d.Overridden}
	for _, v := range d.Past {
		past := catalog.NewVersion(v, &v.Limit)
		if !d.Overridden && v.Limit.Plans == (store.Plans{}) { // no row needs them
			past.Settings = ""
		}
		l.Past = append(l.Past, past)
	}
	return encode(l)
}

// decodeDefinition reads a field. It returns nil if the field is missing or the limit was
// dropped. known is the definition of the limit that this program has, or nil.
func decodeDefinition(name, text string, known *store.Definition) (*store.Definition, error) {
	if text == "" {
		return nil, nil
	}
	d, err := decode(text, known)
	if err == nil && d != nil && d.Name != name {
		err = fmt.Errorf("its settings are those of %s", d.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: limit %s as it is stored: %w", store.ErrStore, name, err)
	}
	return d, nil
}

func decode(text string, known *store.Definition) (*store.Definition, error) {
	var l storedLimit
	if err := json.Unmarshal([]byte(text), &l); err != nil || l.Dropped > 0 {
		return nil, err
	}
	if l.Present == nil {
		return nil, errors.New("its present version is not there")
	}
	var limit store.Limit
	for _, set := range l.Settings {
		if err := limit.Set(set[0], set[1]); err != nil {
			return nil, err
		}
	}
	var past []*store.Version // those that known has too are in memory once
	for len(l.Past) > 0 {
		v := catalog.Known(known, l.Past[0].Number, l.Past[0].Since)
		if v == nil {
			break
		}
		past, l.Past = append(past, v), l.Past[1:]
	}
	d, err := catalog.Definition(limit, l.Owner, l.Version, append(l.Past, *l.Present), past)
	if err == nil {
		d.Overridden = d.Overridden || l.Overridden
	}
	return d, err
}

// restore returns the text of a limit that a server which has lost changes should store.
// theirs is the text that it has now, ours the last one that this program has read. If both
// are of one version, the server may have lost the mark of overrides, or that the limit was
// dropped.
func restore(theirs, ours string) string {
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
	if has.Overridden || !had.Overridden {
		return theirs
	}
	has.Overridden = true
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
