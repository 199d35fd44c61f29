package server

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnsent makes the kernel end a connection whose peer has taken no byte for so long of
// what is sent to it. The kernel's buffers hold whole answers, and the kernel alone knows
// what was taken of them.
func limitUnsent(c net.Conn, after time.Duration) {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { // an error: not over TCP
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
			})
		}
	}
}
