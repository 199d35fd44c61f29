package redistest

import "syscall"

// attributes ends the server with the test binary, even when that is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
