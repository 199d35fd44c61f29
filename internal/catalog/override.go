package catalog

import (
	"encoding/json"
	"fmt"

	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// EncodeOverride returns an override, with the one under it, as Redis and files keep it.
// The result for nil is "".
func EncodeOverride(o *store.Override) string {
	if o == nil {
		return ""
	}
	return texts.Marshal(o)
}

// DecodeOverride reads what EncodeOverride returns.
func DecodeOverride(key, text string) (*store.Override, error) {
	if text == "" {
		return nil, nil
	}
	var o store.Override
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return nil, fmt.Errorf("its override as it is stored: %w", err)
	}
	return o.WithKey(key), nil
}
