package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/store"
)

// If a statement for many rows fails, it is repeated for parts of them: at most
// divisions parts, each of which is divided again if it fails. A failure may
// take as long as statement_timeout, so after maxFailures the
// remaining rows of the limit get an error without being tried. With 1024 rows
// and one bad one there are three failures.
const (
	divisions   = 32
	maxFailures = 32
)

// divide repeats a statement for parts of rows, after it failed for all of them
// without effect. A single row gets the error, and so do all rows if the error
// is not about a row, or is a lock timeout: see decideUnlocked. ask returns the rows that are still undecided.
func (s *Store) divide(ctx context.Context, p *limitBatch, rows []*pendingRow, err error, ask func([]*pendingRow) []*pendingRow) (rest []*pendingRow) {
	if p.failures++; len(rows) == 1 || !s.autocommit() || !rowAtFault(err) || errors.Is(err, store.ErrLocked) {
		if !rowAtFault(err) {
			p.failures = maxFailures
		}
		failRows(rows, err)
		return nil
	}
	for some := range slices.Chunk(rows, (len(rows)+divisions-1)/divisions) {
		if p.failures >= maxFailures || ctx.Err() != nil {
			failRows(some, fmt.Errorf("%w: not tried and not charged, because too many rows of its statement failed: %v", store.ErrStore, err)) //nolint:errorlint // it is not this row's error
			continue
		}
		rest = append(rest, ask(some)...)
	}
	return rest
}

// rowAtFault reports whether a statement failed without effect for a reason
// that may lie in one of its rows: a lock, an overflow, an unreadable page, a
// timeout. Other errors are the same for all rows: the server is down, full,
// read-only, or lacks the tables.
func rowAtFault(err error) bool {
	var unread pgx.ScanArgError
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		return false
	case errors.As(err, &unread):
		return true
	case !errors.As(err, &pg) || !hadNoEffect(err):
		return false
	}
	return pg.Code[:3] != "57P" && !slices.Contains([]string{"08", "25", "28", "3D", "42", "53"}, pg.Code[:2])
}
