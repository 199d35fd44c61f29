package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/store"
)

// storeError says what is known after a call failed. Where the server answered,
// or nothing was sent, it decided nothing; otherwise nobody knows.
func storeError(err error, writes bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrStore):
		return err
	case !writes || nothingDone(err):
		return fmt.Errorf("%w: %w", classOf(err), explained(err))
	}
	return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err)
}

// classOf is the class of an error that changed nothing.
func classOf(err error) error {
	if replied(err, "OOM ", "MISCONF ") {
		return store.ErrNoSpace
	}
	return store.ErrStore
}

// nothingDone reports whether a call that failed is known to have left no
// trace. A script writes last and all at once, so that a server's reply of an
// error means that it did not come to that.
func nothingDone(err error) bool {
	var reply redis.Error
	var dial *net.OpError
	switch {
	case errors.As(err, &reply):
		return true
	case errors.As(err, &dial) && dial.Op == "dial":
		return true
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return true
	}
	// A context that ends while a call is under way comes as a timeout of the
	// connection; bare, it ended before anything was sent.
	return err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // wrapped means something else
}

// explained adds what to do about replies that a program's operator meets.
func explained(err error) error {
	switch {
	case replied(err, "OOM "):
		return fmt.Errorf("%w (new keys need memory: raise maxmemory)", err)
	case replied(err, "MISCONF "):
		return fmt.Errorf("%w (the server cannot save to its disk: see its log)", err)
	case replied(err, "READONLY "):
		return fmt.Errorf("%w (this is a replica: name the Sentinels or the cluster instead, and the primary is found)", err)
	case replied(err, "WRONGTYPE "):
		return fmt.Errorf("%w (something else uses keys with this prefix)", err)
	}
	return err
}

// noAccess reports whether the server refused the user: waiting does not help
// until somebody changes the password or the rights.
func noAccess(err error) bool { return replied(err, "WRONGPASS ", "NOAUTH ", "NOPERM ") }

// away reports whether an error says that the server could not be asked, or
// could not write for the time being, rather than that it refused.
func away(err error) bool {
	var reply redis.Error
	if errors.As(err, &reply) {
		return passing(err) || replied(err, "OOM ", "MISCONF ", "UNKILLABLE ", "BUSY ")
	}
	var limit *store.LimitError
	return !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrOwner) && !errors.Is(err, store.ErrUnknownLimit) && !errors.As(err, &limit)
}
