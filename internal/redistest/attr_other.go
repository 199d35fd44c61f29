//go:build unix && !linux

package redistest

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
