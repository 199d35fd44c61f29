package dipwell

import (
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// The following are classes of errors, for errors.Is. Package store has more: of those
// that wrap ErrStore, ErrFull, ErrLocked and ErrNoSpace say that a call was not charged,
// and ErrOutcomeUnknown that it may have been; ErrOwner and ErrDenied say why a limit was
// not defined, ErrNotSupported what a store cannot do, and ErrUnknownPlan, which a
// *FieldError wraps, that the limit has no such plan.
var (
	// ErrStore: the store failed to decide. Unless the error also wraps a class below
	// that says so, it is unknown whether the call was charged.
	ErrStore = store.ErrStore
	// ErrReservation: the reservation is unknown, cancelled, due or reset. Cancel gave nothing back.
	ErrReservation = store.ErrReservation
	// ErrUnknownLimit: no limit has that name, or it was dropped meanwhile. Nothing was changed.
	ErrUnknownLimit = store.ErrUnknownLimit
	// ErrUnknownHold: there is no hold with this id, or its record is gone.
	ErrUnknownHold = store.ErrUnknownHold
	// ErrHoldConflict: the hold has ended, or was made or settled by another call.
	ErrHoldConflict = store.ErrHoldConflict
)

// A FieldError reports invalid input, of a call or in the definition of a limit: the
// field and what is wrong with it. Nothing was changed, and the same input fails again.
//
// For a call, Field is the name of the argument or of the field of Take, such as "key",
// "cost", "plan", "floor", "ttl" or "takes"; with several takes it has the number of the
// take, from 0, as in "takes[2].key". For a definition, Limit has the name of the limit,
// and Field the setting as configuration files spell it, such as "burst" or "max_debt".
// OnStoreError does not apply to a FieldError: FailOpen does not let such a call pass.
type FieldError = store.FieldError

// A RefusedError is a refusal as an error, with its Decision, for errors.As. Only
// Decision.Err makes one: no method of a Limiter returns a refusal as an error. The text
// has the limit and when to retry, and neither key nor plan.
type RefusedError struct {
	// Decision is the refusal, a copy: Limits is shared with the Decision that Err was called on.
	Decision Decision
}

// Error returns a sentence for logs: "rate limited by login: retry after 1.5s".
func (e *RefusedError) Error() string {
	d := &e.Decision
	switch {
	case d.Never && d.Definition != nil && d.Definition.Mode == Blocked:
		return fmt.Sprintf("rate limited by %s: the key is blocked", d.Limit)
	case d.Never:
		return fmt.Sprintf("rate limited by %s: a cost of %d can never be granted", d.Limit, d.Cost)
	case d.Source == store.SourceFallbackClosed: // it is not known when the store will answer
		return fmt.Sprintf("rate limited by %s: the store cannot answer", d.Limit)
	}
	return fmt.Sprintf("rate limited by %s: retry after %v", d.Limit, d.RetryAfter)
}

func badField(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
