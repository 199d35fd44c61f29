//go:build unix

package filestore

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const noFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK // O_NONBLOCK so as not to wait for a FIFO

// lock locks a file for one process. lock returns errLocked if another process has locked the
// file.
func lock(f *os.File) error {
	err := unix.FcntlFlock(f.Fd(), setLock, byteLock(lockAt))
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errLocked
	}
	if err == nil { // a lock of the process, for which the system can tell the process id
		_ = unix.FcntlFlock(f.Fd(), unix.F_SETLK, byteLock(lockAt+1))
	}
	return err
}

// locked returns whether another process has locked the file, and its id, or 0.
func locked(f *os.File) (is bool, pid int, err error) {
	l := byteLock(lockAt)
	if err = unix.FcntlFlock(f.Fd(), getLock, l); err != nil || l.Type == unix.F_UNLCK {
		return false, 0, err
	}
	l = byteLock(lockAt + 1)
	if err = unix.FcntlFlock(f.Fd(), unix.F_GETLK, l); err == nil && l.Type != unix.F_UNLCK {
		pid = int(l.Pid)
	}
	return true, max(pid, 0), err
}

func byteLock(at int64) *unix.Flock_t {
	return &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
}
