package dipwell

import (
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Classes of errors, for errors.Is. Those of a store wrap ErrStore.
var (
	// ErrStore: the store could not decide. Nobody knows whether the call was charged
	// unless the error says more.
	ErrStore = store.ErrStore
	// ErrFull: the store holds as many keys as it may, and this one is new.
	ErrFull = store.ErrFull
	// ErrOutcomeUnknown: the store may or may not have charged this call.
	ErrOutcomeUnknown = store.ErrOutcomeUnknown
	// ErrLocked: another transaction holds the row, or seems to, and the store gave
	// up waiting for it: after its lock timeout, or its statement timeout. The call
	// was not charged.
	ErrLocked = store.ErrLocked
	// ErrNoSpace: the store's disk or memory is full. The call was not charged.
	ErrNoSpace = store.ErrNoSpace
	// ErrReservation: the reservation is unknown, spent, due or reset.
	ErrReservation = store.ErrReservation
	// ErrUnknownLimit: no limit of that name is defined.
	ErrUnknownLimit = store.ErrUnknownLimit
	// ErrRefused is what Decision.Err returns for a refusal.
	ErrRefused = errors.New("rate limited")
	// ErrDenied: the store does not let this program define limits. Nothing was changed.
	ErrDenied = store.ErrDenied
	// ErrOwner: the limit belongs to somebody else.
	ErrOwner = store.ErrOwner
	// ErrNotSupported: the store lacks an optional ability.
	ErrNotSupported = store.ErrNotSupported
)

// A FieldError is bad input: which field, and what is wrong with it. It is
// always the caller's mistake, and nothing was changed.
type FieldError = store.FieldError

// A LimitError is a definition that cannot be. Field is the setting at fault,
// spelled as in configuration files.
type LimitError = store.LimitError

// RefusedError is a refusal as an error, with the decision behind it.
type RefusedError struct{ Decision Decision }

func (e *RefusedError) Error() string {
	d := &e.Decision
	if d.Never {
		return fmt.Sprintf("rate limited by %s: a cost of %d can never be granted", d.Limit, d.Cost)
	}
	return fmt.Sprintf("rate limited by %s: retry after %v", d.Limit, d.RetryAfter)
}

func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

func badField(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
