package redisstore

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// keys returns at most n live keys of a limit that start with prefix, in byte
// order, beginning after the key after. The shared bucket comes first; pass
// dipwell.Shared as after to continue after it. n is at most 10,000. Each call
// scans the names of all keys on every master, in small steps.
func (s *Store) keys(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	e := s.limits.entry(d.Name)
	if e == nil {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	page := catalog.NewPage(prefix, after, n, func(k *store.KeyState) string { return k.Key })
	err = s.scan(ctx, d.Name, prefix, func(rows []bucket) error {
		for _, b := range rows {
			if page.Wants(b.Key) && catalog.Live(e.def, &b.KeyState, now) {
				page.Add(b.KeyState)
			}
		}
		return nil
	})
	return page.Rows(), storeError(err, false)
}
