//go:build unix && !aix && !solaris && !illumos

package filestore

import (
	"errors"
	"os"
	"syscall"
)

// lock locks a file for one process, and lockShared for several. They return errLocked if
// it is locked otherwise.
func lock(f *os.File) error       { return flock(f, syscall.LOCK_EX) }
func lockShared(f *os.File) error { return flock(f, syscall.LOCK_SH) }

func flock(f *os.File, how int) error {
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
