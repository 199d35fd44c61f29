package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Bounds of one statement of a sweep, so that none of them holds its locks for
// long.
const (
	sweepBatch = 2000 // rows that it deletes
	sweepPages = 512  // pages that it goes over, of about a hundred rows each
)

// A sweep in a transaction of its own does not wait for the disk: full rows that
// come back after a crash are full.
const sweepAtSQL = `select swept, looked, coalesce(size, 0), ended, page, covered,
    case when $4 then set_config('synchronous_commit', 'off', true) end
from dipwell_internal.sweep_at($1, coalesce($2, dipwell_internal.settled()), $3)`

// swept is what one statement of a sweep did.
type swept struct {
	rows    int   // deleted
	looked  int   // pages of the table that are done with; a hundred rows of a portable table count as one
	size    int   // pages of the table; 0: somebody else sweeps
	ended   bool  // a pass over the table ended
	page    int64 // where the next one goes on
	covered int64 // when the last whole pass began, whoever made it, in µs; 0: not known
}

// Sweep deletes at most n full rows, in small batches, going once over the table
// from where the last sweep stopped, and forgets versions of limits that no row
// names any more. It deletes nothing while another program sweeps.
func (s *Store) Sweep(ctx context.Context, n int) (int, error) { return s.engine().sweep(ctx, n) }

func (s functions) sweep(ctx context.Context, n int) (rows int, err error) {
	for looked := 0; rows < n; {
		step, err := s.sweepStep(ctx, n-rows)
		rows += step.rows
		if err != nil {
			return rows, err
		}
		if looked += step.looked; looked >= step.size {
			return rows, s.retire(ctx)
		}
	}
	return rows, nil
}

// sweepStep is one statement of a sweep. With n = 0 it only looks.
func (s functions) sweepStep(ctx context.Context, n int) (did swept, err error) {
	_, own := s.db.(*pgxpool.Pool)
	try := func() error {
		return s.db.QueryRow(ctx, sweepAtSQL, min(n, sweepBatch), s.testNow(), sweepPages, own).
			Scan(&did.rows, &did.looked, &did.size, &did.ended, &did.page, &did.covered, nil)
	}
	return did, storeError(s.retry(ctx, try(), try), false)
}

// retire forgets versions of limits that no row names any more.
func (s functions) retire(ctx context.Context) error {
	_, err := s.db.Exec(ctx, "select dipwell_internal.retire($1)", s.testNow())
	return storeError(err, false)
}
