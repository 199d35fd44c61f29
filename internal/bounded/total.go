package bounded

import (
	"encoding/json"
	"time"
)

// Sum returns the n busiest keys of several processes. A key that is missing in one list
// counts there with the most that an unlisted key can have.
func Sum(tops []Top, n int) Top {
	sum := join(tops)
	sum.cut(n)
	return sum
}

// join is Sum with all keys, not only the n busiest, in no order.
func join(tops []Top) (sum Top) {
	n := 0
	for _, t := range tops {
		sum.Events += t.Events
		sum.Unlisted += t.Unlisted
		n += len(t.Keys)
	}
	at := make(map[[2]string]int, n)
	for _, t := range tops {
		for _, k := range t.Keys {
			name := [2]string{k.Limit, k.Key}
			i, ok := at[name]
			if !ok {
				i = len(sum.Keys)
				at[name] = i
				sum.Keys = append(sum.Keys, Count{k.Limit, k.Key, sum.Unlisted, sum.Unlisted})
			}
			sum.Keys[i].Count += k.Count - t.Unlisted
			sum.Keys[i].Error += k.Error - t.Unlisted
		}
	}
	return sum
}

// add adds the keys of a shard to those of others, with which it has no key in common.
func (t *Top) add(shard Top) {
	t.Keys = append(t.Keys, shard.Keys...)
	t.Events += shard.Events
	t.Unlisted = max(t.Unlisted, shard.Unlisted)
}

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
