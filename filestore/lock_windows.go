package filestore

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

const noFollow = 0 // resolve has already looked for links

// The function locked locks the file for a moment, so lock tries again.
const (
	lockTries = 5
	lockPause = 20 * time.Millisecond
)

// lock locks a file for one process. lock returns errLocked if another process has locked the
// file.
func lock(f *os.File) (err error) {
	for range lockTries {
		if err = lockByte(f, windows.LOCKFILE_EXCLUSIVE_LOCK); !errors.Is(err, errLocked) {
			break
		}
		time.Sleep(lockPause)
	}
	return err
}

// locked returns whether another process has locked the file. Its id is not known. If locked
// gets the lock, the lock ends when f is closed.
func locked(f *os.File) (is bool, pid int, err error) {
	if err = lockByte(f, 0); errors.Is(err, errLocked) {
		return true, 0, nil
	}
	return false, 0, err
}

func lockByte(f *os.File, how uint32) error {
	at := windows.Overlapped{OffsetHigh: lockAt >> 32}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return errLocked
	}
	return err
}
