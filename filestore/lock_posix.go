//go:build unix && !linux

package filestore

import "golang.org/x/sys/unix"

// A lock of the process. What these systems offer besides (flock) excludes SQLite's locks.
const (
	setLock = unix.F_SETLK
	getLock = unix.F_GETLK
)
