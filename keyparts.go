package dipwell

import (
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// checkParts checks the key of a limit whose keys are paths. The topmost limit above it says
// how many parts its own keys have, and each level below adds one. If that limit is shared,
// its calls have no key, "acme" is a key of the limit on the first level below and "acme/ann"
// one on the second. The error is a *FieldError, or wraps ErrUnknownLimit if a parent is gone.
func (l *Limiter) checkParts(def *store.Definition, key string) error {
	top, parts := def, 0
	for top.Parent != "" {
		parent := l.registry.Lookup(top.Parent)
		if parent == nil || parts > terms.MaxLevels { // the parents form a circle, which may exist for a moment in a store that does not read all limits at once
			return l.registry.Missing(top.Parent)
		}
		top, parts = parent, parts+1
	}
	return checkPath(def.Name, key, parts+int(top.KeyParts()))
}

// checkPath returns a *FieldError if a key has another number of parts, or an empty one.
func checkPath(limit, key string, parts int) error {
	n, from := 0, 0
	for i := 0; i <= len(key); i++ {
		if i < len(key) && key[i] != '/' {
			continue
		}
		if n++; i == from {
			return badField("key", "part %d of %q is empty", n, key)
		}
		from = i + 1
	}
	if n == parts {
		return nil
	}
	has := fmt.Sprintf("has %d parts", n)
	if n == 1 {
		has = "has 1 part"
	}
	return badField("key", "%s; those of limit %s have %d, separated by '/' (a '/' inside a part is written %%2F)", has, limit, parts)
}

// escapes writes '%' in a part of a key as %25 and '/' as %2F, so that no part can be read as two.
var escapes = strings.NewReplacer("%", "%25", "/", "%2F")

// parentKey returns the key without its last part, as in store.Op: for a key of one part it
// is "", the shared bucket.
func parentKey(key string) string { return key[:max(strings.LastIndexByte(key, '/'), 0)] }
