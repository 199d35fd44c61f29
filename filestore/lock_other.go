//go:build !windows && (!unix || aix || solaris || illumos)

package filestore

import (
	"errors"
	"os"
)

var errNoLocks = errors.New("not supported on this system")

func lock(*os.File) error       { return errNoLocks }
func lockShared(*os.File) error { return errNoLocks }
