package redisstore

import (
	"encoding/json"
	"fmt"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// encodeDropped encodes a dropped limit.
func encodeDropped(last uint32) string { return (&catalog.StoredLimit{Dropped: last}).String() }

func encodeDefinition(d *store.Definition) string {
	l := catalog.Stored(d)
	for i := range l.Past {
		if !d.Overridden && d.Past[i].Limit.Plans == (store.Plans{}) { // no row needs these rules
			l.Past[i].Settings = ""
		}
	}
	return l.String()
}

// decodeDefinition reads the definition in a field of the hash. It returns nil if the field is
// missing or the limit was dropped. known is this program's definition of the limit, or nil.
func decodeDefinition(name, text string, known *store.Definition) (d *store.Definition, err error) {
	if text != "" {
		d, err = catalog.DecodeDefinition(name, text, known)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: limit %s as it is stored: %w", store.ErrStore, name, err)
	}
	return d, nil
}

// restore returns the text that a server which has lost changes should store for a limit.
// theirs is the text that it has now, ours the last one that this program has read. If both
// have the same version, the server may have lost the mark of overrides, or that the limit
// was dropped.
func restore(theirs, ours string) string {
	if theirs == ours {
		return theirs
	}
	var has, had catalog.StoredLimit
	err1, err2 := json.Unmarshal([]byte(theirs), &has), json.Unmarshal([]byte(ours), &had)
	switch mine, there := lastOf(&had), lastOf(&has); {
	case mine > there, mine == there && had.Dropped > 0 && has.Dropped == 0:
		return ours
	case mine < there || err1 != nil || err2 != nil || has.Dropped > 0 || has.Overridden || !had.Overridden:
		return theirs
	}
	has.Overridden = true
	return has.String()
}

// numberOf returns the highest version that the limit in a field has had, or 0 if the
// field is missing.
func numberOf(text string) uint32 {
	var l catalog.StoredLimit
	_ = json.Unmarshal([]byte(text), &l)
	return lastOf(&l)
}

func lastOf(l *catalog.StoredLimit) uint32 { return max(l.Version, l.Dropped) }
