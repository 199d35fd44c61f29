package store

import "strings"

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
