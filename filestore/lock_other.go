//go:build !windows && !unix

package filestore

import (
	"errors"
	"os"
)

const noFollow = 0

var errNoLocks = errors.New("not supported on this system")

func lock(*os.File) error                           { return errNoLocks }
func locked(*os.File) (is bool, pid int, err error) { return false, 0, errNoLocks }
