package dipwell

import (
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Classes of errors, for errors.Is. Package store has more: of those that wrap ErrStore,
// ErrFull, ErrLocked and ErrNoSpace say that a call was not charged, and
// ErrOutcomeUnknown that it may have been; ErrOwner and ErrDenied say why a limit was not
// defined, ErrNotSupported what a store cannot do, and ErrUnknownPlan, which a
// *FieldError wraps, that the limit has no such plan.
var (
	// ErrStore: the store failed to decide. Unless the error also wraps a class below
	// that says so, it is not known whether the call was charged.
	ErrStore = store.ErrStore
	// ErrReservation: the reservation is unknown, cancelled already, due or reset. Cancel
	// gave nothing back.
	ErrReservation = store.ErrReservation
	// ErrUnknownLimit: no limit of that name is defined, or it was dropped meanwhile.
	// Nothing was changed.
	ErrUnknownLimit = store.ErrUnknownLimit
	// ErrUnknownHold: there is no hold with this id, or its record is gone.
	ErrUnknownHold = store.ErrUnknownHold
	// ErrHoldConflict: the hold has ended, or was made or settled by another call.
	ErrHoldConflict = store.ErrHoldConflict
)

// A FieldError reports invalid input, of a call or in the definition of a limit: the
// field and what is wrong with it. Nothing was changed.
type FieldError = store.FieldError

// A RefusedError is a refusal as an error, with its Decision. Only Decision.Err makes
// one: no other method returns a refusal as an error.
type RefusedError struct{ Decision Decision }

func (e *RefusedError) Error() string {
	d := &e.Decision
	if d.Never {
		return fmt.Sprintf("rate limited by %s: a cost of %d can never be granted", d.Limit, d.Cost)
	}
	return fmt.Sprintf("rate limited by %s: retry after %v", d.Limit, d.RetryAfter)
}

func badField(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
