package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
)

const keysSQL = `select key, used, ts, version from dipwell.buckets
where limit_id = $1 and key >= $2 and ($3 = '' and not $5::boolean or key > $3) and left(key, char_length($2)) = $2
order by key limit $4`

// Keys pages through the live keys of a limit, in byte order.
func (s *Store) Keys(ctx context.Context, d *dipwell.Definition, prefix, after string, n int) ([]dipwell.KeyState, error) {
	e := (*s.cat.entries.Load())[d.Name]
	if e == nil {
		return nil, &dipwell.UnknownLimitError{Limit: d.Name}
	}
	shared := after == dipwell.Shared // a text that no column can hold
	if shared {
		after = ""
	}
	rows, err := s.db.Query(ctx, keysSQL, e.id, prefix, after, n, shared)
	if err != nil {
		return nil, storeError(err, false)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k dipwell.KeyState, err error) {
		err = row.Scan(&k.Key, &k.Used, &k.TS, &k.Version)
		return k, err
	})
	return out, storeError(err, false)
}

// sweepBatch is the number of rows that one statement deletes at most, so that
// none of them holds its locks for long.
const sweepBatch = 1000

// Sweep deletes at most n full rows, in small batches, and forgets versions of
// limits that no row names any more. Over a transaction it is one batch of it.
func (s *Store) Sweep(ctx context.Context, n int) (swept int, err error) {
	if s.cat.dialect.Load() != nil {
		return s.portableSweep(ctx, n)
	}
	for swept < n {
		var did int
		want := min(n-swept, sweepBatch)
		try := func() error {
			return s.db.QueryRow(ctx, "select dipwell_internal.sweep_at($1, coalesce($2, dipwell_internal.settled()))", want, s.testNow()).Scan(&did)
		}
		if err = s.again(ctx, try(), try); err != nil {
			return swept, storeError(err, false)
		}
		if swept += did; did < want {
			break
		}
	}
	if swept < n {
		_, err = s.db.Exec(ctx, "select dipwell_internal.retire($1)", s.testNow())
	}
	return swept, storeError(err, false)
}

// Now is the server's time, in µs since the Unix epoch.
func (s *Store) Now(ctx context.Context) (now int64, err error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	err = s.db.QueryRow(ctx, "select "+readNow).Scan(&now)
	return now, storeError(err, false)
}
