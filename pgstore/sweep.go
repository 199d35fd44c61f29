package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Bounds of one sweeping statement, so that it does not hold locks for long.
const (
	sweepBatch = 2000 // rows that one statement deletes
	sweepPages = 512  // pages that one statement reads, of about 100 rows each
)

// A sweep in its own transaction does not wait for the disk: full rows
// that reappear after a crash are still full.
const sweepAtSQL = `select swept, looked, coalesce(size, 0), ended, page, covered, coalesce(more, false),
    case when $4 then set_config('synchronous_commit', 'off', true) end
from dipwell_internal.sweep_at($1, coalesce($2, dipwell_internal.settled()), $3)`

// swept is the result of one sweeping statement.
type swept struct {
	rows    int   // rows deleted
	looked  int   // pages that the statement has read; 100 rows of a portable table count as a page
	size    int   // pages of the table; 0: another program sweeps
	ended   bool  // a pass over the table was completed
	page    int64 // where the next statement continues
	covered int64 // start of the last complete pass by any program, in µs; 0: not known
	more    bool  // more records of reservations and holds may be due than one statement ends
}

// sweep deletes at most n full rows, in small batches, and returns how many. A
// sweep goes at most once over the table, starting where the last one stopped,
// and also deletes versions of limits that no row refers to. A sweep deletes
// nothing while another program sweeps. A Janitor does the same in the background.
func (s *Store) sweep(ctx context.Context, n int) (int, error) { return s.engine().sweep(ctx, n) }

func (s functions) sweep(ctx context.Context, n int) (rows int, err error) {
	for looked := 0; rows < n; {
		step, err := s.sweepStep(ctx, n-rows)
		rows += step.rows
		if err != nil {
			return rows, err
		}
		if looked += step.looked; looked >= step.size {
			_, err = s.retire(ctx)
			return rows, err
		}
	}
	return rows, nil
}

// sweepStep runs one sweeping statement. With n = 0 sweepStep only reports the state.
func (s functions) sweepStep(ctx context.Context, n int) (did swept, err error) {
	_, own := s.db.(*pgxpool.Pool)
	try := func() error {
		return s.db.QueryRow(ctx, sweepAtSQL, min(n, sweepBatch), s.testNow(), sweepPages, own).
			Scan(&did.rows, &did.looked, &did.size, &did.ended, &did.page, &did.covered, &did.more, nil)
	}
	return did, storeError(s.retry(ctx, try(), try), false)
}

// retire deletes versions of limits that no row refers to. If a limit has many versions,
// retire first converts rows of old ones; more is true if there may be others.
func (s functions) retire(ctx context.Context) (more bool, err error) {
	if err = s.db.QueryRow(ctx, "select dipwell_internal.retire_rows($1) > 0", s.testNow()).Scan(&more); err == nil {
		_, err = s.db.Exec(ctx, "select dipwell_internal.retire($1)", s.testNow())
	}
	return more, storeError(err, false)
}
