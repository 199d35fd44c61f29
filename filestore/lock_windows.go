package filestore

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lock locks a file for one process, and lockShared for several. They return errLocked if
// it is locked otherwise.
func lock(f *os.File) error       { return lockFileEx(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }
func lockShared(f *os.File) error { return lockFileEx(f, 0) }

func lockFileEx(f *os.File, how uint32) error {
	// Locks a byte far beyond the process id, because others read that.
	at := windows.Overlapped{Offset: 1 << 20}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return errLocked
	}
	return err
}
