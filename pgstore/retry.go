package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/store"
)

// A statement that the server gave up for another one's sake did nothing and is
// tried again: so often, with a pause drawn from zero to one that doubles up to
// a bound, so that those who collided do not meet again.
const (
	maxTries   = 20
	firstPause = 500 * time.Microsecond
	maxPause   = 100 * time.Millisecond
)

// Codes by which a server says what became of a statement.
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeUnknown       = "40003" // statement_completion_unknown
	codeUnresolved    = "08007" // transaction_resolution_unknown
	codeReadOnly      = "25006"
	codeDiskFull      = "53100"
	codeLocked        = "55P03" // lock_not_available: lock_timeout
	codeCanceled      = "57014" // query_canceled: statement_timeout
	codeNoStatement   = "26000" // invalid_sql_statement_name: deallocated by somebody else
	codeInvalidText   = "22P02" // invalid_text_representation
	codeStalePlan     = "0A000" // feature_not_supported: cached plan must not change result type
)

// collided reports whether the server rolled a statement back because of
// another one. YugabyteDB asks for a restart of reads in words.
func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == codeSerialization || pg.Code == codeDeadlock ||
		strings.Contains(strings.ToLower(pg.Message), "restart read required"))
}

// again repeats a statement that has collided, where it is a transaction of its
// own: in the caller's, only the caller can begin anew.
func (s *Store) retry(ctx context.Context, err error, statement func() error) error {
	pause := firstPause
	for try := 1; try < maxTries && retryable(err) && s.autocommit(); try++ {
		if await.Sleep(ctx, rand.N(pause)) != nil {
			return err
		}
		pause = min(2*pause, maxPause)
		err = statement()
	}
	return err
}

// alone reports whether each statement is a transaction of its own.
func (s *Store) autocommit() bool {
	switch db := s.db.(type) {
	case pgx.Tx:
		return false
	case *pgx.Conn:
		return db.PgConn().TxStatus() == 'I'
	case connected:
		return db.Conn().PgConn().TxStatus() == 'I'
	}
	return true
}

// storeError says what is known after a statement failed. Where the server
// answered, or nothing was sent, it decided nothing; otherwise nobody knows.
func storeError(err error, writes bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrStore):
		return err
	case !writes || hadNoEffect(err):
		return fmt.Errorf("%w: %w", classOf(err), err)
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
}

// classOf is the class of an error that changed nothing.
func classOf(err error) error {
	switch codeOf(err) {
	case codeLocked, codeCanceled:
		return store.ErrLocked
	case codeDiskFull:
		return store.ErrNoSpace
	}
	return store.ErrStore
}

// codeOf is the SQLSTATE of a server's error, or "".
func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// commitError says what is known after a commit failed. pgx reports one whose
// connection was lost as not sent, so that only the server's word counts.
func commitError(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && hadNoEffect(err), errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
}

// nothingDone reports whether a statement that failed is known to have left no
// trace: it was refused, rolled back, or never sent.
func hadNoEffect(err error) bool {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &connect), pgconn.SafeToRetry(err):
		return true
	case errors.As(err, &pg):
		severity := cmp.Or(pg.SeverityUnlocalized, pg.Severity) // poolers do not tell the former
		return severity != "FATAL" && severity != "PANIC" && pg.Code != codeUnknown && pg.Code != codeUnresolved
	}
	// A context that ends while its statement is under way comes as pgconn's own
	// error; bare, it ended while the pool had no connection free.
	return err == context.DeadlineExceeded //nolint:errorlint // wrapped means something else
}

// noAccess reports whether the server refused the role or the database: waiting
// does not help until somebody changes them.
func noAccess(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000" || pg.Code == "42501")
}

// away reports whether an error says that the server could not be asked, or
// could not write for the time being, rather than that it refused.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return errors.Is(err, store.ErrStore) && !errors.Is(err, context.Canceled)
	}
	switch {
	case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57P"), pg.Code == codeReadOnly, retryable(err):
		return true
	}
	return false
}
