package store

import (
	"errors"
	"fmt"

	"github.com/dipwell/dipwell/internal/terms"
)

// The following are classes of errors, for errors.Is. A store wraps the class that fits, with
// what was tried and the cause. Classes that wrap ErrStore are failures of the store, for
// which the limit's FailureMode decides; for the others the call returns the error in each
// mode.
var (
	// ErrStore: the store could not decide. It is not known whether the call was charged,
	// unless the error says more: ErrFull, ErrLocked, ErrNoSpace and ErrDenied say that it
	// was not.
	ErrStore = errors.New("the store cannot answer")
	// ErrFull: the store holds as many keys, reservations, holds or overrides as its settings
	// allow, such as memstore.Config.MaxKeys, and the call, which was not charged, would make
	// one more. Keys that have a row are decided as before. Limiter.Wait also returns ErrFull,
	// if too many callers wait for the key.
	ErrFull = fmt.Errorf("%w: it holds as many keys as it may", ErrStore)
	// ErrOutcomeUnknown: the store may or may not have charged this call, because the
	// connection was lost or the wait ended before its answer. A hold with an id can be
	// repeated; a repeat of other calls may be charged twice.
	ErrOutcomeUnknown = fmt.Errorf("%w: the call may have been charged", ErrStore)
	// ErrLocked: another transaction seems to hold the row, and the store gave up waiting for
	// it, after its lock or statement timeout. The call was not charged and may be repeated.
	ErrLocked = fmt.Errorf("%w: the row is locked by another transaction; the call was not charged", ErrStore)
	// ErrNoSpace: the store's disk or memory is full, which needs an operator, unlike ErrFull,
	// a configured bound. The call was not charged.
	ErrNoSpace = fmt.Errorf("%w: its disk or memory is full", ErrStore)
	// ErrReservation: the reservation is unknown, spent, due or reset. Nothing was given back,
	// not even the parts that could have been. Only a cancellation returns ErrReservation.
	ErrReservation = errors.New("the reservation is unknown, spent, due or reset")
	// ErrUnknownLimit: no limit of that name is defined, or it was dropped meanwhile. The
	// error's text has the name.
	ErrUnknownLimit = errors.New("unknown limit")
	// ErrDenied: the store does not let this program define limits, for example because its
	// role in the database lacks the privilege. Nothing was changed. Calls of limits that are
	// already defined may still succeed.
	ErrDenied = fmt.Errorf("%w: it does not let this program define limits", ErrStore)
	// ErrUnknownPlan: the limit has no plan of that name. A *FieldError wraps it.
	ErrUnknownPlan = errors.New("unknown plan")
	// ErrOwner: the limit has another owner, whom the error's text names; only the owner
	// may change or drop it. Nothing was changed.
	ErrOwner = terms.ErrOwner
	// ErrNotSupported: the store lacks an optional ability; see Abilities. Nothing was
	// changed.
	ErrNotSupported = errors.New("not supported by this store")
)

// A FieldError is invalid input: it says which field, and why. Nothing was changed, and the
// same input fails again. The text of a FieldError may be shown to whoever wrote the input: it
// has names, numbers and bounds, and nothing of the store. Find a FieldError with errors.As:
//
//	var field *store.FieldError
//	if errors.As(err, &field) {
//		http.Error(w, field.Error(), http.StatusBadRequest)
//	}
type FieldError struct {
	// Limit is the name of the limit that cannot be defined; "" if the input is that of
	// a call, or if the limit has no valid name.
	Limit  string
	Field  string // name of the field as the caller wrote it: "cost", "takes[2].key"; for a limit the setting as in files: "burst"
	Reason string // a sentence without a full stop, with the numbers
	Err    error  // a class of errors for errors.Is, such as ErrUnknownPlan; or nil
}

// Error returns the field and the reason, "burst: 20 is …", after "limit NAME: " if Limit is
// set. The text does not repeat Err.
func (e *FieldError) Error() string {
	if e.Limit == "" {
		return e.Field + ": " + e.Reason
	}
	return "limit " + e.Limit + ": " + e.Field + ": " + e.Reason
}

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// badField returns a *FieldError about the input of a call.
func badField(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

func unknownLimit(name string) error { return fmt.Errorf("%w %q", ErrUnknownLimit, name) }

// ErrStaleDefinition: a row is of a later version than the definition of its limit, because
// another process has changed the limit. Nothing was written. The store reads its limits again
// and retries: callers never see this error.
var ErrStaleDefinition = fmt.Errorf("%w: a row names a newer version of its limit", ErrStore)
