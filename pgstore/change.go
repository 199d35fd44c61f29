package pgstore

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/background"
)

// A change of an override or a limit may have to wait for rows that another transaction has
// locked. Such a change holds a connection for changeWait at a time, so that other changes
// and lists find one. After that an override is tried again here; for a limit the catalog does
// that.
const (
	changeWait     = laneWait
	changePause    = 50 * time.Millisecond // average pause between two tries
	changePatience = 5 * time.Second       // after this time the row counts as locked, as for a call without a timeout
)

// change runs a statement that returns one row and may wait for what is locked, in a
// transaction of its own or the caller's, and scans the row into dest. In the caller's
// transaction, the caller's lock_timeout applies.
func (s functions) change(ctx context.Context, patience time.Duration, dest []any, sql string, args ...any) error {
	if !s.autocommit() {
		return s.db.QueryRow(ctx, sql, args...).Scan(dest...)
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	try := func() error { // one round trip makes both statements one transaction
		var both pgx.Batch
		both.Queue("select set_config('lock_timeout', $1, true)", milliseconds(changeWait))
		both.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
		return s.db.SendBatch(ctx, &both).Close()
	}
	for {
		err := s.retry(ctx, try(), try)
		if codeOf(err) != codeLocked || background.Sleep(patient, changePause/2+rand.N(changePause)) != nil {
			return err
		}
	}
}
