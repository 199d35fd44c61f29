//go:build !linux

package redistest

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
