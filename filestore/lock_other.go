//go:build !windows && (!unix || aix || solaris || illumos)

package filestore

import (
	"errors"
	"os"
)

func lock(*os.File) error { return errors.New("not supported on this system") }
