// Package background calls stores from goroutines that callers of this module do not
// know of, extends holds there, and has waits that end with a context.
package background

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/store"
)

// Call returns the error of f, which calls a store. If the store panics, Call returns an
// error: in a goroutine that is not the caller's, a panic would end the process, and the
// caller could not prevent it.
func Call(f func() error) (err error) {
	defer func() { err = Recovered(recover(), err) }()
	return f()
}

// Recovered returns err, or if the store panicked with p, the error for that.
func Recovered(p any, err error) error {
	if p != nil {
		return fmt.Errorf("%w: the store panicked: %v", store.ErrOutcomeUnknown, p)
	}
	return err
}

// NotSent returns the error of a call whose context ended before it was sent to its store.
func NotSent(err error) error {
	return fmt.Errorf("%w: not sent and not charged: %w", store.ErrStore, err)
}

// Apply calls s.Apply through Call.
func Apply(ctx context.Context, s store.Store, b *store.Batch) error {
	return Call(func() error { return s.Apply(ctx, b) })
}
