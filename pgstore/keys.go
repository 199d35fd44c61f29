package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

const keysSQL = `select key, used, ts, version from dipwell.buckets
where limit_id = $1 and key >= $2 and ($3 = '' and not $5::boolean or key > $3) and left(key, char_length($2)) = $2
order by key limit $4`

// keys returns at most n live keys of a limit that start with prefix, in byte
// order, beginning after the key after.
func (s *Store) keys(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return nil, err
	}
	sql, hasFunctions := keysSQL, s.engine().hasFunctions()
	if hasFunctions {
		sql = "select key, used, ts, version from dipwell_internal.keys($1, $2, $3, $5, $4)"
	}
	after, shared := pageAfter(after)
	out, err := list(ctx, s.db, func(row pgx.CollectableRow) (k store.KeyState, err error) {
		err = row.Scan(&k.Key, &k.Used, &k.TS, (*rowVersion)(&k.Version))
		return k, err
	}, sql, e.id, prefix, after, n, shared)
	if err == nil && hasFunctions {
		err = s.withOverrides(ctx, e.id, out)
	}
	return out, err
}

// now returns the server's time in µs since the Unix epoch.
func (s *Store) now(ctx context.Context) (now int64, err error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	err = s.db.QueryRow(ctx, "select "+readNow).Scan(&now)
	return now, storeError(err, false)
}
