package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/store"
)

// A statement that the server rolled back because of a conflict is tried again,
// at most maxTries times in all. The pause is random, from zero to a bound that
// doubles up to maxPause, so that the same statements do not collide again.
const (
	maxTries   = 20
	firstPause = 500 * time.Microsecond
	maxPause   = 100 * time.Millisecond
)

// SQLSTATE codes.
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeUnknown       = "40003" // statement_completion_unknown
	codeUnresolved    = "08007" // transaction_resolution_unknown
	codeReadOnly      = "25006"
	codeDiskFull      = "53100"
	codeLocked        = "55P03" // lock_not_available: lock_timeout
	codeCanceled      = "57014" // query_canceled: statement_timeout
	codeInvalid       = "22023" // invalid_parameter_value
	codeDenied        = "42501" // insufficient_privilege
	codeUndefined     = "42704" // undefined_object
	codeNoData        = "P0002" // no_data_found
	codeState         = "55000" // object_not_in_prerequisite_state
	codeUnique        = "23505" // unique_violation
	codeNoStatement   = "26000" // invalid_sql_statement_name: somebody else deallocated the statement
	codeInternal      = "XX000"
	codeStalePlan     = "0A000" // feature_not_supported: cached plan must not change result type
)

// retryable reports whether the server rolled back a statement because of a
// conflict with another one. YugabyteDB has no code for a read restart, only a message,
// and PostgreSQL has none for a statement that waited while a migration replaced a
// function or a type that it uses.
func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == codeSerialization || pg.Code == codeDeadlock ||
		strings.Contains(strings.ToLower(pg.Message), "restart read required") ||
		pg.Code == codeInternal && strings.HasPrefix(pg.Message, "cache lookup failed for "))
}

// retry repeats a statement while its error is retryable, if each statement is
// a transaction of its own. In a transaction of the caller's, only the caller
// can start again.
func (s *Store) retry(ctx context.Context, err error, statement func() error) error {
	pause := firstPause
	for try := 1; try < maxTries && retryable(err) && s.autocommit(); try++ {
		if background.Sleep(ctx, rand.N(pause)) != nil {
			return err
		}
		pause = min(2*pause, maxPause)
		err = statement()
	}
	return err
}

// autocommit reports whether each statement is a transaction of its own.
func (s *Store) autocommit() bool {
	if _, ok := s.db.(pgx.Tx); ok {
		return false
	}
	conn := connOf(s.db)
	return conn == nil || conn.PgConn().TxStatus() == 'I'
}

// storeError wraps the error of a statement. If the server answered, or nothing
// was sent, it wraps ErrStore, ErrLocked or ErrNoSpace, and nothing was
// charged; otherwise ErrOutcomeUnknown.
func storeError(err error, writes bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrStore):
		return err
	case !writes || hadNoEffect(err):
		class := store.ErrStore
		switch codeOf(err) {
		case codeLocked, codeCanceled:
			class = store.ErrLocked
		case codeDiskFull:
			class = store.ErrNoSpace
		}
		return fmt.Errorf("%w: %w", class, err)
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
}

// callError is storeError for a statement that calls a function. An error of the function
// about the call itself is no failure of the store.
func callError(err error, writes bool) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.ConstraintName == "" {
		return storeError(err, writes)
	}
	field := &store.FieldError{Field: pg.ConstraintName, Reason: strings.TrimPrefix(pg.Message, pg.ConstraintName+": ")}
	switch pg.Code {
	case codeNoData:
		return store.ErrUnknownHold
	case codeState:
		return store.ErrHoldConflict
	case codeUndefined:
		field.Err = store.ErrUnknownPlan
	case codeInvalid:
		var n int
		if _, err := fmt.Sscanf(field.Field, "costs[%d]", &n); err == nil { // SQL counts the costs from 1
			field.Field = fmt.Sprintf("costs[%d]", n-1)
		}
	default:
		return storeError(err, writes)
	}
	return field
}

// codeOf returns the SQLSTATE of a server's error, or "".
func codeOf(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// commitError wraps the error of a commit. pgx reports a lost connection as if
// nothing had been sent, so only an error from the server is taken as proof
// that nothing was committed.
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

// hadNoEffect reports whether a failed statement is known to have changed
// nothing: it was rejected, rolled back, or never sent.
func hadNoEffect(err error) bool {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &connect), pgconn.SafeToRetry(err):
		return true
	case errors.As(err, &pg):
		severity := cmp.Or(pg.SeverityUnlocalized, pg.Severity) // poolers may omit SeverityUnlocalized
		return severity != "FATAL" && severity != "PANIC" && pg.Code != codeUnknown && pg.Code != codeUnresolved
	}
	// If the context ends during a statement, pgconn wraps its error; a bare
	// error means that it ended while waiting for a free connection.
	return err == context.DeadlineExceeded //nolint:errorlint // a wrapped error means something else
}

// rowAtFault reports whether a statement failed without effect for a reason that may lie
// in one of its rows: a lock, an overflow, an unreadable page, a timeout. Other errors
// are the same for all rows: the server is down, full, read-only, or lacks the tables.
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

// unavailable reports whether the server could not be reached, or temporarily
// cannot write, as opposed to having rejected the statement.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return errors.Is(err, store.ErrStore) && !errors.Is(err, context.Canceled)
	}
	return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P") || pg.Code == codeReadOnly || retryable(err)
}
