package server

import (
	"net"
	"sync/atomic"
	"time"
)

// idleConn is a connection that times out when no byte was read or written for
// limit, even during a request. Otherwise an upstream that stops in the middle of
// a response would block its client forever.
type idleConn struct {
	net.Conn
	limit    time.Duration
	deadline atomic.Int64 // Unix ns
}

func (c *idleConn) Read(b []byte) (int, error) {
	if err := c.resetDeadline(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *idleConn) Write(b []byte) (int, error) {
	if err := c.resetDeadline(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// resetDeadline moves the deadline, also of reads and writes that are waiting. It
// does so at most once in an eighth of limit, because setting a timer for each
// packet would cost more than the packet.
func (c *idleConn) resetDeadline() error {
	now := time.Now()
	if until := now.Add(c.limit); until.UnixNano()-c.deadline.Load() > int64(c.limit/8) {
		c.deadline.Store(until.UnixNano())
		return c.SetDeadline(until)
	}
	return nil
}

// CloseWrite closes the writing side, as tunnels need it.
func (c *idleConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}
