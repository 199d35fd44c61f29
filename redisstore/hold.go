package redisstore

import (
	"encoding/json"

	"github.com/dipwell/dipwell/store"
)

// A storedHold is the key of a hold, a public format.
type storedHold struct {
	Call    string       `json:"call"`
	TTL     int64        `json:"ttl_us"`
	Expires int64        `json:"expires_us"`
	Forget  int64        `json:"forget_us"`
	Settled bool         `json:"settled,omitempty"`
	Costs   []int64      `json:"costs,omitempty"`
	Parts   []storedPart `json:"parts"`
}

type storedPart struct {
	Limit  string `json:"limit"`
	Key    string `json:"key,omitempty"`
	Plan   string `json:"plan,omitempty"`
	Number int64  `json:"number,omitempty"`
	Mark   int64  `json:"mark,omitempty"`
	Cost   int64  `json:"cost"`
	Takes  uint16 `json:"takes,omitempty"`
	Free   bool   `json:"free,omitempty"`
	Keep   bool   `json:"keep,omitempty"`
	Reset  bool   `json:"reset,omitempty"`
}

func encodeHold(h *store.Hold) string {
	v := storedHold{h.Call, h.TTL, h.Expires, h.Forget, h.Settled, h.Costs, make([]storedPart, len(h.Parts))}
	for i := range h.Parts {
		v.Parts[i] = storedPart(h.Parts[i])
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b)
}

func decodeHold(text string) (h store.Hold, err error) {
	if text == "" {
		return h, nil
	}
	var v storedHold
	if err = json.Unmarshal([]byte(text), &v); err != nil {
		return h, err
	}
	h = store.Hold{Call: v.Call, TTL: v.TTL, Expires: v.Expires, Forget: v.Forget, Settled: v.Settled, Costs: v.Costs, Parts: make([]store.HoldPart, len(v.Parts))}
	for i := range v.Parts {
		h.Parts[i] = store.HoldPart(v.Parts[i])
	}
	return h, nil
}
