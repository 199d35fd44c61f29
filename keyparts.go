package dipwell

import (
	"strings"

	"github.com/dipwell/dipwell/internal/bounds"
	"github.com/dipwell/dipwell/store"
)

// checkParts checks the key of a limit whose keys are paths: that it has as many parts as
// the limit above all its parents says, and one more for each level. With parts 0 above,
// "acme" is a key of the limit below it and "acme/ann" one of the limit below that. The
// error is a *FieldError, or wraps ErrUnknownLimit if a parent is gone.
func (l *Limiter) checkParts(def *store.Definition, key string) error {
	top, parts := def, 0
	for top.Parent != "" {
		parent := l.registry.Lookup(top.Parent)
		if parent == nil || parts > bounds.MaxLevels { // a ring, which a store that reads its limits in parts may have for a moment
			return l.registry.Missing(top.Parent)
		}
		top, parts = parent, parts+1
	}
	return checkPath(def.Name, key, parts+int(top.Parts))
}

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
