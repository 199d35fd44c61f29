package server

import (
	"errors"
	"net"
	"syscall"

	"github.com/dipwell/dipwell/store"
)

// why returns why a store cannot decide: only a class and a code, without addresses and names,
// because everybody may ask /readyz. The log has the full error.
func why(err error) string {
	class := store.ErrStore
	for _, c := range []error{store.ErrNoSpace, store.ErrDenied, store.ErrFull} {
		if errors.Is(err, c) {
			class = c
		}
	}
	var (
		sql     interface{ SQLState() string }
		system  syscall.Errno
		timeout net.Error
	)
	switch {
	case errors.As(err, &sql):
		return class.Error() + ": SQLSTATE " + sql.SQLState()
	case errors.As(err, &system):
		return class.Error() + ": " + system.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return class.Error() + ": it does not answer in time"
	}
	return class.Error() + ": see the service's log"
}
