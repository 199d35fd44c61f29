package dipwell

import (
	"context"
	"fmt"
	"time"

	"github.com/dipwell/dipwell/store"
)

// Usage returns what a key of a limit with Limit.Usage used, a line for each hour in which
// it was used, in order: hours that begin at from or later and before to, of the last 31
// days. Services count it, and write it to the store once a minute; a program that calls a
// Limiter does not. For a limit that is not shared, the key Shared has the sum of the keys
// that a service could not count one by one. The error is a *FieldError for a bad key or a
// limit without Usage, ErrUnknownLimit, store.ErrNotSupported if the store keeps no usage,
// or wraps ErrStore.
func (l *Limiter) Usage(ctx context.Context, limit, key string, from, to time.Time) ([]store.UsageLine, error) {
	def := l.registry.Lookup(limit)
	switch {
	case def == nil:
		return nil, l.registry.Missing(limit)
	case !def.Usage:
		return nil, &FieldError{Field: "limit", Reason: fmt.Sprintf("%s does not count usage; define it with usage: true", limit)}
	case l.abilities.Usage == nil:
		return nil, fmt.Errorf("usage: %w", store.ErrNotSupported)
	}
	if key == Shared {
		key = ""
	} else if _, err := l.checkKey(def, key); err != nil {
		return nil, err
	}
	return l.abilities.Usage.Usage(ctx, def, key, from.UnixMicro(), to.UnixMicro())
}
