package texts

import "encoding/json"

// Marshal returns a value, which consists of strings and numbers, as JSON.
func Marshal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b)
}
