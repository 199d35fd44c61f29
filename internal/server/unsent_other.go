//go:build !linux

package server

import (
	"net"
	"time"
)

// limitUnsent does nothing: a Write that waits finds out, and closing an idle connection.
func limitUnsent(net.Conn, time.Duration) {}
