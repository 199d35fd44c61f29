package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// boundedListener is a listener with a bound on open connections. More connections wait in
// the kernel's queue. It logs why connections wait, once a minute.
type boundedListener struct {
	net.Listener
	slots  chan struct{}
	stall  time.Duration // of each connection
	load   *load         // of those over HTTP
	once   sync.Once
	closed chan struct{}
	logged time.Time // used by Accept, which is called by one goroutine
}

func bound(l net.Listener, n int, stall time.Duration) *boundedListener {
	return &boundedListener{Listener: l, slots: make(chan struct{}, n), stall: stall, closed: make(chan struct{})}
}

func (b *boundedListener) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

func (b *boundedListener) Accept() (net.Conn, error) {
	if len(b.slots) == cap(b.slots) {
		b.wait(fmt.Sprintf("%d connections are open", cap(b.slots)))
	}
	select {
	case b.slots <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		if !errors.Is(err, net.ErrClosed) { // such as too many open files; the caller tries again
			b.wait(err.Error())
		}
		return nil, err
	}
	limitUnsent(c, b.stall)
	return &conn{Conn: c, slots: b.slots, stall: b.stall, load: b.load}, nil
}

// wait logs why new connections wait.
func (b *boundedListener) wait(why string) {
	if now := time.Now(); now.Sub(b.logged) > reportAgain {
		b.logged = now
		slog.Error(fmt.Sprintf("new connections to %v wait: %s", b.Addr(), why))
	}
}

// conn is a connection of a bounded listener. It frees its slot when it is closed. A Write
// of which the peer takes no byte for stall fails, and closes it: on Linux as limitUnsent
// says, elsewhere once the kernel's buffers took none. Only Write sets the deadline of the
// socket for writes, anew each time, so that no layer above can remove it.
type conn struct {
	net.Conn
	slots chan struct{}
	stall time.Duration
	once  sync.Once
	until atomic.Int64 // the deadline of SetWriteDeadline in Unix ns, or 0

	// The rest is for Read and what net/http tells, which do not overlap, except that a
	// connection is closed while it is read.
	load    *load // nil: its requests are not counted
	secure  bool  // what is read is encrypted
	inBody  bool  // the header of the request has been read
	taken   int64 // by the request
	piece   int64 // by the piece of the request that took most
	counted int64 // of taken in load
	ended   bool  // guarded by load.mu: it is closed, or another owner has it
}

// stallChecks is how often in stall a Write that waits looks whether the kernel took bytes:
// it fails after at most stall and a sixth of it.
const stallChecks = 6

func (c *conn) Write(b []byte) (n int, err error) {
	for idle := 0; ; {
		deadline, until := time.Now().Add(c.stall/stallChecks), c.until.Load()
		last := until != 0 && until < deadline.UnixNano()
		if last {
			deadline = time.Unix(0, until)
		}
		if err = c.Conn.SetWriteDeadline(deadline); err != nil {
			return n, err
		}
		var m int
		m, err = c.Conn.Write(b[n:])
		n += m
		if idle++; m > 0 {
			idle = 0
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if last || idle == stallChecks {
			_ = c.Close() // also if nobody else does: gRPC would go on reading
			return n, err
		}
	}
}

// SetWriteDeadline sets a deadline for the writes that begin later, in addition to stall.
func (c *conn) SetWriteDeadline(t time.Time) error {
	ns := int64(0)
	if !t.IsZero() {
		ns = t.UnixNano()
	}
	c.until.Store(ns)
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}
