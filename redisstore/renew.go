package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A limit is stored with its older versions, as long as rows may be of them. Rows of keys that
// nobody calls would keep versions for as long as the slowest key needs to fill. So at every
// renewEvery-th version the rows of older versions are converted, as their next call would.
const (
	renewEvery = 32
	keepPast   = 16  // newest versions that are kept in any case, for rows that a decorator keeps
	maxYoung   = 256 // most versions that are kept because they are young; fewer begin in the second that a change takes to reach all programs
)

// A program that has heard nothing of the limits for catalog.MaxUnheard reads them before it
// decides. So rows of a version may be written for that long after the next one began, and
// until the call ends: keepVersion.
const keepVersion = 2 * time.Minute

// renew converts the rows, the records and the overrides of older versions of a limit to d,
// which is its present version.
func (s *Store) renew(ctx context.Context, d *store.Definition) error {
	limits := registryOf(d)
	return s.scan(ctx, d.Name, "", func(rows []bucket) error {
		for i := range rows {
			b := &rows[i]
			if !isOlder(b, d) {
				continue
			}
			if err := s.sweepKey(ctx, limits, d.Name, b.Key, false); err != nil && !errors.Is(err, store.ErrStaleDefinition) { // a row of a later version is not older
				return err
			}
		}
		return nil
	})
}

// isOlder reports whether a row, or the override that decides it, is of an older version
// than d.
func isOlder(b *bucket, d *store.Definition) bool {
	if terms.IsOverride(b.Version) {
		return b.Override == nil || b.Override.Version < d.Number
	}
	return terms.VersionOf(b.Version) < d.Number
}

// trim removes those versions of d that no row can have after renew, at the time now.
func trim(d *store.Definition, now int64) {
	for n := len(d.Past); n > keepPast; n-- {
		if ended := d.Past[1].Since; ended > now-keepVersion.Microseconds() && n <= maxYoung {
			return
		}
		d.Past = d.Past[1:]
	}
}
