//go:build unix && !linux

package pgtest

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
