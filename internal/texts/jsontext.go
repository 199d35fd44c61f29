// Package texts writes JSON strings, and finds the known name nearest to a mistyped one.
package texts

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// AppendJSON appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendJSON(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), `\ufffd`...)
		} else if b = append(b, s[from:i]...); c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = fmt.Appendf(b, `\u%04x`, c)
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// Marshal returns a value, which consists of strings and numbers, as JSON.
func Marshal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen with strings and numbers
	}
	return string(b)
}
