// Package keypath joins and splits the keys of limits with parents, which are paths:
// parts, joined by '/'.
package keypath

import "strings"

// Join returns the key of one or more parts. In each part it writes '%' as %25 and '/' as
// %2F, so that no part can be read as two.
func Join(parts ...string) string {
	if len(parts) == 1 {
		return escapes.Replace(parts[0])
	}
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		_, _ = escapes.WriteString(&b, part)
	}
	return b.String()
}

var escapes = strings.NewReplacer("%", "%25", "/", "%2F")

// Parent returns the key without its last part, as the key in store.Op is: "", the shared
// bucket, of a key of one part.
func Parent(key string) string { return key[:max(strings.LastIndexByte(key, '/'), 0)] }
