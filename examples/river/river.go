// Package river starts jobs of River at the rate of a limit in the same database. The
// package is here to be copied, not to be imported.
//
// A worker that takes when it runs has to put a refused job back (river.JobSnooze), and
// the jobs of a busy key are fetched over and over. Here jobs are inserted with
// InsertOpts.Pending, which River reads only in the options of Insert, not in those of the
// arguments, and wait where no worker fetches them; [Admit] makes those available whose key
// is ready. A limit of a key delays nobody else's jobs, and no worker waits.
package river

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// page selects the next keys that have pending jobs of a kind, as many as ready takes. The
// key of a job is its argument "tenant".
const page = `
select distinct args->>'tenant' from river_job
where state = 'pending' and kind = $1 and args->>'tenant' > $2 order by 1 limit 1000`

// admit takes for one pending job of a key, and makes it available if that is allowed. It
// is one statement, and so one transaction: no token is taken without a job that starts,
// and no job starts without a token.
const admit = `
with job as materialized (
	select id, args->>'tenant' as tenant from river_job where state = 'pending' and kind = $2 and args->>'tenant' = $3
	order by priority, id limit 1 for update skip locked
), allowed as materialized (
	select job.id from job, dipwell.take($1, job.tenant) as answer where answer.allowed
)
update river_job set state = 'available', scheduled_at = now() from allowed where river_job.id = allowed.id`

// Admit makes pending jobs of a kind available, as many as the limit allows now, and
// returns how many. Call it every second, say, in one process or in several.
func Admit(ctx context.Context, db *pgxpool.Pool, limit, kind string) (admitted int64, err error) {
	for after := ""; ; {
		keys, err := list(ctx, db, page, kind, after)
		if err != nil || len(keys) == 0 {
			return admitted, err
		}
		after = keys[len(keys)-1]
		n, err := admitKeys(ctx, db, limit, kind, keys)
		if admitted += n; err != nil {
			return admitted, err
		}
	}
}

// admitKeys admits jobs of some keys. In each round every key that is ready has one, so
// that none has to wait for the burst of another.
func admitKeys(ctx context.Context, db *pgxpool.Pool, limit, kind string, keys []string) (admitted int64, err error) {
	for {
		ready, err := list(ctx, db, `select key from dipwell.ready($1, $2)`, limit, keys)
		if err != nil {
			return admitted, err
		}
		keys = keys[:0] // keys that may have more jobs
		for _, key := range ready {
			tag, err := db.Exec(ctx, admit, limit, kind, key)
			if err != nil {
				return admitted, err
			}
			if tag.RowsAffected() > 0 {
				admitted++
				keys = append(keys, key)
			}
		}
		if len(keys) == 0 {
			return admitted, nil
		}
	}
}

func list(ctx context.Context, db *pgxpool.Pool, query string, args ...any) ([]string, error) {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
