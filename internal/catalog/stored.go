package catalog

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// A StoredLimit is a limit as Redis and files keep it, a public format.
type StoredLimit struct {
	Settings   [][2]string `json:"settings,omitempty"` // settings as in a configuration file
	Owner      string      `json:"owner,omitempty"`
	Version    uint32      `json:"version,omitempty"`
	Present    *Version    `json:"present,omitempty"`    // the rule of the present version
	Past       []Version   `json:"past,omitempty"`       // older versions
	Overridden bool        `json:"overridden,omitempty"` // keys may have overrides
	Dropped    uint32      `json:"dropped,omitempty"`    // in Redis: the last version of a limit that was dropped
}

// Stored returns the stored form of a definition.
func Stored(d *store.Definition) *StoredLimit {
	present := NewVersion(Present(d), &d.Limit)
	l := &StoredLimit{Settings: d.Explicit(), Owner: d.Owner, Version: d.Number, Present: &present, Overridden: d.Overridden}
	for _, v := range d.Past {
		l.Past = append(l.Past, NewVersion(v, &v.Limit))
	}
	return l
}

// String returns the limit as JSON.
func (l *StoredLimit) String() string { return texts.Marshal(l) }

// DecodeDefinition returns the definition of a limit from its stored form, or nil if the limit
// was dropped. known is the definition of the limit that this program has, or nil.
func DecodeDefinition(name, text string, known *store.Definition) (*store.Definition, error) {
	var l StoredLimit
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
	if limit.Name != name {
		return nil, fmt.Errorf("its settings are those of %s", limit.Name)
	}
	var past []*store.Version // versions that known has too are in memory once
	for len(l.Past) > 0 {
		v := Known(known, l.Past[0].Number, l.Past[0].Since)
		if v == nil {
			break
		}
		past, l.Past = append(past, v), l.Past[1:]
	}
	d, err := Definition(limit, l.Owner, l.Version, append(l.Past, *l.Present), past)
	if err == nil {
		d.Overridden = d.Overridden || l.Overridden
	}
	return d, err
}
