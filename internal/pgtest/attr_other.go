//go:build !linux

package pgtest

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
