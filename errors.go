package dipwell

import (
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Classes of errors, for errors.Is. Those of a store wrap ErrStore.
var (
	// ErrStore: the store failed to decide. Unless the error also wraps a class below
	// that says so, it is not known whether the call was charged.
	ErrStore = store.ErrStore
	// ErrFull: the store has reached its maximum number of keys, and this key is new.
	ErrFull = store.ErrFull
	// ErrOutcomeUnknown: the store may or may not have charged this call.
	ErrOutcomeUnknown = store.ErrOutcomeUnknown
	// ErrLocked: the wait for the row ran into the lock timeout or the statement
	// timeout, probably because another transaction has locked it. The call was not
	// charged.
	ErrLocked = store.ErrLocked
	// ErrNoSpace: the store's disk or memory is full. The call was not charged.
	ErrNoSpace = store.ErrNoSpace
	// ErrReservation: the reservation is unknown, cancelled already, due or reset.
	ErrReservation = store.ErrReservation
	// ErrUnknownLimit: no limit of that name is defined.
	ErrUnknownLimit = store.ErrUnknownLimit
	// ErrUnknownPlan: the limit has no plan of that name. A *FieldError wraps it.
	ErrUnknownPlan = store.ErrUnknownPlan
	// ErrUnknownHold: there is no hold with this id, or its record is gone.
	ErrUnknownHold = store.ErrUnknownHold
	// ErrHoldConflict: the hold has ended, or was made or settled by another call.
	ErrHoldConflict = store.ErrHoldConflict
	// ErrRefused: the limit refused the call. Only Decision.Err returns it.
	ErrRefused = errors.New("rate limited")
	// ErrDenied: this program may not define limits in the store. Nothing was changed.
	ErrDenied = store.ErrDenied
	// ErrOwner: the limit has another owner.
	ErrOwner = store.ErrOwner
	// ErrNotSupported: the store does not have this ability.
	ErrNotSupported = store.ErrNotSupported
)

// A FieldError reports invalid input: the field and what is wrong with it. Nothing
// was changed.
type FieldError = store.FieldError

// A LimitError reports an invalid definition of a limit. Field is the name of the
// setting, spelled as in configuration files.
type LimitError = store.LimitError

// A RefusedError is a refusal as an error, with its Decision.
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
