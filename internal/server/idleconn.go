package server

import (
	"net"
	"sync/atomic"
	"time"
)

// idleConn ends after a while in which no byte came or went, whether a request
// is under way or not: an upstream that falls silent in the middle of an answer
// would hold its client for ever.
type idleConn struct {
	net.Conn
	limit    time.Duration
	deadline atomic.Int64 // Unix ns
}

func (c *idleConn) Read(b []byte) (int, error) {
	if err := c.extend(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *idleConn) Write(b []byte) (int, error) {
	if err := c.extend(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// extend moves the deadline, which counts for reads and writes that wait
// already, once an eighth of the limit has passed: a timer set for each packet
// would cost more than the packet.
func (c *idleConn) extend() error {
	now := time.Now()
	if until := now.Add(c.limit); until.UnixNano()-c.deadline.Load() > int64(c.limit/8) {
		c.deadline.Store(until.UnixNano())
		return c.SetDeadline(until)
	}
	return nil
}

// CloseWrite ends one direction of a tunnel.
func (c *idleConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}
