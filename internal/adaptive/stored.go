package adaptive

import (
	"encoding/json"
	"errors"
)

// A stored is a State as stores keep it: without the samples of the present window.
type stored struct {
	Begun   int64    `json:"begun"`
	Before  Sample   `json:"before"`
	Cut     bool     `json:"cut"`
	Reason  string   `json:"reason"`
	Changed int64    `json:"changed"`
	Drifts  int64    `json:"drifts"`
	Changes []Change `json:"changes"`
}

// Text encodes a state as JSON, without the samples of the present window.
func (s *State) Text() string {
	text, err := json.Marshal(stored{s.Begun, s.Before, s.Cut, s.Reason.String(), s.Changed, s.Drifts, s.History.Changes()})
	if err != nil {
		panic(err) // impossible: numbers and words
	}
	return string(text)
}

// Parse decodes what Text has encoded. floor is the level before the first change.
func Parse(floor int64, text string) (s State, err error) {
	var v stored
	if err = json.Unmarshal([]byte(text), &v); err != nil {
		return s, err
	}
	if len(v.Changes) == 0 {
		return s, errors.New("there is no level")
	}
	return State{Begun: v.Begun, Before: v.Before, Cut: v.Cut, Reason: ReasonOf(v.Reason), Changed: v.Changed, Drifts: v.Drifts,
		History: Restore(floor, v.Changes)}, nil
}
