package filestore

import "golang.org/x/sys/unix"

// This is a lock of the open file: it stays if the process closes another descriptor of the
// file.
const (
	setLock = unix.F_OFD_SETLK
	getLock = unix.F_OFD_GETLK
)
