package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// maxPage bounds the keys of one call of Keys.
const maxPage = 10_000

// keys returns at most n live keys of a limit that start with prefix, in byte
// order, beginning after the key after. The shared bucket comes first; pass
// dipwell.Shared to continue after it. n is at most 10,000. Each call scans the
// names of all keys on every master, in small steps.
func (s *Store) keys(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	e := s.limits.entry(d.Name)
	if e == nil {
		return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
	}
	if n = min(n, maxPage); n <= 0 {
		return nil, nil
	}
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	var page []store.KeyState
	err = s.scan(ctx, d.Name, prefix, func(rows []bucket) error {
		for _, b := range rows {
			if (after == "" || b.Key > after) && strings.HasPrefix(b.Key, prefix) && live(e.def, b.KeyState, now) {
				page = append(page, b.KeyState)
			}
		}
		if len(page) > 2*n+scanCount {
			page = firstOf(page, n, keyOfRow)
		}
		return nil
	})
	return firstOf(page, n, keyOfRow), storeError(err, false)
}

func keyOfRow(row store.KeyState) string { return row.Key }

// firstOf sorts a page by key, removes duplicates, which SCAN may return, and keeps n.
func firstOf[T any](page []T, n int, key func(T) string) []T {
	slices.SortFunc(page, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	page = slices.CompactFunc(page, func(a, b T) bool { return key(a) == key(b) })
	return page[:min(n, len(page))]
}

// live reports whether a row is not a full bucket.
func live(d *store.Definition, row store.KeyState, now int64) bool {
	op := store.Op{Def: d, Key: row.Key, Verb: store.VerbCheck}
	_, _, err := op.Step(now, row.State, true)
	return err != nil || op.Reset > 0
}
