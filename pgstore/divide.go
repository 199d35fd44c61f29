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

// A statement for many rows that failed is divided into at most divisions
// statements, and those that fail again likewise. Every failure may last as long
// as a lock or statement timeout: after maxFailures of them the rows of a limit
// that are left get an error without being tried. 1024 rows with one at fault
// cost three.
const (
	divisions   = 32
	maxFailures = 32
)

// divide asks again about parts of rows after a statement about all of them has
// failed and changed nothing. One row alone gets the error, and so do all rows
// where err is not about rows. ask returns what is still undecided.
func (s *Store) divide(ctx context.Context, p *limitBatch, rows []*pendingRow, err error, ask func([]*pendingRow) []*pendingRow) (rest []*pendingRow) {
	if p.failures++; len(rows) == 1 || !s.autocommit() || !rowAtFault(err) || s.lane && errors.Is(err, store.ErrLocked) {
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
// that may lie in one of its rows: a lock, its numbers, a page that cannot be
// read, a time limit. Other reasons are the same for all rows: the server is
// away, full, read-only, or does not know the tables.
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
