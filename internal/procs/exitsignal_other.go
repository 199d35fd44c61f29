//go:build unix && !linux

package procs

import "syscall"

func setExitSignal(*syscall.SysProcAttr, syscall.Signal) {}
