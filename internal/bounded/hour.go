package bounded

import (
	"encoding/json"
	"time"
)

// An Hour has the busiest and the most refused keys of an hour, as one process has
// counted them. The JSON of an Hour is a public format of stores.
type Hour struct {
	Hour    time.Time `json:"hour"` // beginning of the hour, on the clock of the process
	Busiest Top       `json:"busiest"`
	Refused Top       `json:"refused"`
	// Counts are the decisions of each limit. For an hour these are [calls, refused] by name.
	Counts json.RawMessage `json:"counts,omitempty"`
}

// MapKeys returns the text of an Hour with other keys. Shared buckets keep their key, "".
func MapKeys(text string, f func(limit, key string) string) (string, error) {
	var h Hour
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return "", err
	}
	for _, t := range []Top{h.Busiest, h.Refused} {
		for i := range t.Keys {
			if k := &t.Keys[i]; k.Key != "" {
				k.Key = f(k.Limit, k.Key)
			}
		}
	}
	mapped, err := json.Marshal(h)
	return string(mapped), err
}
