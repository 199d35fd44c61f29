package redistest

import "syscall"

// attributes makes the server end with the test binary, even if that is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
