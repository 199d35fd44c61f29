package catalog

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/store"
)

// An override as Redis and files keep it, a public format.
type override struct {
	Plan    string        `json:"plan,omitempty"`
	Rate    int64         `json:"rate,omitempty"`
	Period  time.Duration `json:"per_ns,omitempty"`
	Burst   int64         `json:"burst,omitempty"`
	Start   string        `json:"start,omitempty"`
	Until   int64         `json:"until_us,omitempty"`
	Note    string        `json:"note,omitempty"`
	ID      uint32        `json:"id"`
	Version uint32        `json:"version"`
	Under   *override     `json:"under,omitempty"`
}

func stored(o *store.Override) *override {
	if o == nil {
		return nil
	}
	return &override{o.Plan, o.Rate, o.Period, o.Burst, o.Start, o.Until, o.Note, o.ID, o.Version, stored(o.Under)}
}

func (v *override) read(key string) *store.Override {
	if v == nil {
		return nil
	}
	return &store.Override{Key: key, Plan: v.Plan, Rate: v.Rate, Period: v.Period, Burst: v.Burst, Start: v.Start, Until: v.Until, Note: v.Note, ID: v.ID, Version: v.Version, Under: v.Under.read(key)}
}

// EncodeOverride returns an override, with the one under it, as JSON. It is "" for nil.
func EncodeOverride(o *store.Override) string {
	if o == nil {
		return ""
	}
	b, err := json.Marshal(stored(o))
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b)
}

// DecodeOverride reads what EncodeOverride returns.
func DecodeOverride(key, text string) (*store.Override, error) {
	if text == "" {
		return nil, nil
	}
	var v override
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, fmt.Errorf("its override as it is stored: %w", err)
	}
	return v.read(key), nil
}
