package dipwell

import (
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Classes of errors, for errors.Is. Those of a store wrap ErrStore. Package store has
// more: ErrLocked and ErrNoSpace say that a call was not charged, ErrOwner and ErrDenied
// why a limit was not defined, ErrNotSupported what a store cannot do.
var (
	// ErrStore: the store failed to decide. Unless the error also wraps a class below
	// that says so, it is not known whether the call was charged.
	ErrStore = store.ErrStore
	// ErrFull: the store has reached its maximum number of keys, and this key is new.
	ErrFull = store.ErrFull
	// ErrOutcomeUnknown: the store may or may not have charged this call.
	ErrOutcomeUnknown = store.ErrOutcomeUnknown
	// ErrReservation: the reservation is unknown, cancelled already, due or reset. Cancel
	// gave nothing back.
	ErrReservation = store.ErrReservation
	// ErrUnknownLimit: no limit of that name is defined, or it was dropped meanwhile.
	// Nothing was changed.
	ErrUnknownLimit = store.ErrUnknownLimit
	// ErrUnknownPlan: the limit has no plan of that name. A *FieldError wraps it.
	ErrUnknownPlan = store.ErrUnknownPlan
	// ErrUnknownHold: there is no hold with this id, or its record is gone.
	ErrUnknownHold = store.ErrUnknownHold
	// ErrHoldConflict: the hold has ended, or was made or settled by another call.
	ErrHoldConflict = store.ErrHoldConflict
	// ErrRefused: the limit refused the call. Only Decision.Err returns it.
	ErrRefused = errors.New("rate limited")
)

// A FieldError reports invalid input: the field and what is wrong with it. Nothing
// was changed.
type FieldError = store.FieldError

// A LimitError reports an invalid definition of a limit. Field is the name of the
// setting, spelled as in configuration files.
type LimitError = store.LimitError

// A RefusedError is a refusal as an error, with its Decision. errors.Is reports it to be
// ErrRefused. Only Decision.Err makes one: no other method returns a refusal as an error.
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
