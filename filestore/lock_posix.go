//go:build unix && !linux

package filestore

import "golang.org/x/sys/unix"

// This is a lock of the process. The other kind of lock on these systems (flock) excludes
// SQLite's locks.
const (
	setLock = unix.F_SETLK
	getLock = unix.F_GETLK
)
