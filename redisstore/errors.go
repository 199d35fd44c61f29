package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/store"
)

// storeError wraps the error of a call. If the server answered, or nothing was sent, it
// wraps ErrStore or ErrNoSpace, and nothing was charged; otherwise ErrOutcomeUnknown.
func storeError(err error, writes bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrStore):
		return err
	case !writes || hadNoEffect(err):
		class := store.ErrStore
		if replied(err, "OOM ", "MISCONF ") {
			class = store.ErrNoSpace
		}
		return fmt.Errorf("%w: %w", class, withAdvice(err))
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
}

// hadNoEffect reports whether a failed call is known to have changed nothing. Scripts
// write last and all at once, so an error reply means that nothing was written.
func hadNoEffect(err error) bool {
	var reply redis.Error
	var dial *net.OpError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &reply):
		return true
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &certificate):
		return true
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return true
	}
	// If the context ends during a call, the error is a timeout of the connection;
	// a bare context error means that it ended before anything was sent.
	return err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // a wrapped error means something else
}

// withAdvice adds to an error reply what to do about it.
func withAdvice(err error) error {
	switch {
	case replied(err, "OOM "):
		return fmt.Errorf("%w (there is no memory for new keys: raise maxmemory)", err)
	case replied(err, "MISCONF "):
		return fmt.Errorf("%w (the server cannot write to its disk: see its log)", err)
	case replied(err, "READONLY "):
		return fmt.Errorf("%w (this is a replica: use the addresses of the Sentinels or of the cluster)", err)
	case replied(err, "NOPERM "):
		return fmt.Errorf("%w (the rights that a user needs are in docs/reference/redis.md, for the prefix dipwell)", err)
	case replied(err, "WRONGTYPE "):
		return fmt.Errorf("%w (another program uses keys with this prefix)", err)
	}
	return err
}

// noAccess reports whether the server rejected the user. Waiting does not help
// until somebody changes the password or the rights.
func noAccess(err error) bool { return replied(err, "WRONGPASS ", "NOAUTH ", "NOPERM ") }

// unavailable reports whether the server could not be reached, or temporarily
// cannot write, as opposed to having rejected the call.
func unavailable(err error) bool {
	var reply redis.Error
	if errors.As(err, &reply) {
		return temporary(err) || replied(err, "OOM ", "MISCONF ", "UNKILLABLE ", "BUSY ")
	}
	return !errors.Is(err, context.Canceled) && !isCallers(err)
}

// isCallers reports whether an error is about the caller's input.
func isCallers(err error) bool {
	return errors.Is(err, store.ErrOwner) || errors.Is(err, store.ErrUnknownLimit) || errors.As(err, new(*store.FieldError))
}

// changeError returns errors about the caller's input as they are, and wraps others.
func changeError(err error, writes bool) error {
	if isCallers(err) {
		return err
	}
	return storeError(err, writes)
}
