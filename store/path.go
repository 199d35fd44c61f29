package store

import "strings"

// MaxLevels is the largest number of limits in a chain: a limit, its Parent, the
// parent of that, and so on.
const MaxLevels = 4

// Key returns the key of a limit whose keys are paths, because it has a Parent or is
// one: the parts, joined by '/'. In each part it writes '%' as %25 and '/' as %2F, so
// that no part can be read as two. Without parts it returns Shared. A part that is
// empty makes a key that every call refuses.
func Key(parts ...string) string {
	if len(parts) == 0 {
		return Shared
	}
	if len(parts) == 1 {
		return partEscapes.Replace(parts[0])
	}
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte('/')
		}
		_, _ = partEscapes.WriteString(&b, part)
	}
	return b.String()
}

var partEscapes = strings.NewReplacer("%", "%25", "/", "%2F")

// ParentKey returns the key without its last part, as the key in Op is: "", the shared
// bucket, of a key of one part.
func ParentKey(key string) string { return key[:max(strings.LastIndexByte(key, '/'), 0)] }

// checkPath checks that a key has a number of parts, and that none of them is empty.
// The shared bucket, "", has none. The error is a *FieldError.
func checkPath(limit, key string, parts int) error {
	n := 0
	for rest, more := key, key != ""; more; n++ {
		var part string
		if part, rest, more = strings.Cut(rest, "/"); part == "" {
			return badField("key", "part %d of %q is empty", n+1, key)
		}
	}
	switch {
	case n == parts:
		return nil
	case parts == 0:
		return badField("key", "limit %s has one shared bucket and takes no key", limit)
	}
	return badField("key", "has %d parts; those of limit %s have %d, separated by '/' (a '/' inside a part is written %%2F)", n, limit, parts)
}
