package server

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Bounds of the memory of requests over HTTP/1 whose header has begun and that are not
// answered yet. net/http keeps each field of a header in a map, so that 36 kB of the shortest
// fields take 750 kB, and all connections would take 12 GB.
const (
	maxLoad    = 128 << 20 // of all connections that are not light
	lightLoad  = 16 << 10  // a connection of less is not counted; with common clients all are
	fieldLoad  = 128       // bytes that net/http needs for a field besides its text
	secureLoad = 16        // bytes for one that is encrypted: the shortest fields have five
)

// load bounds an estimate of what requests take. Beyond it the connection that takes most is
// closed.
type load struct {
	closed *atomic.Uint64 // counts the connections

	mu    sync.Mutex
	sum   int64
	conns map[*conn]int64
}

// set sets what the request of a connection takes.
func (l *load) set(c *conn, n int64) {
	if n < lightLoad {
		n = 0
	}
	if n == c.counted {
		return
	}
	c.counted = n
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended {
		return
	}
	l.put(c, n)
	for l.sum > maxLoad {
		worst := c
		for other, n := range l.conns {
			if n > l.conns[worst] {
				worst = other
			}
		}
		l.put(worst, 0)
		l.closed.Add(1)
		go func() { _ = worst.Close() }()
	}
}

// end forgets a connection. net/http may still be reading from it.
func (l *load) end(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.ended = true
	l.put(c, 0)
}

func (l *load) put(c *conn, n int64) {
	l.sum += n - l.conns[c]
	if l.conns[c] = n; n == 0 {
		delete(l.conns, c)
	}
}

// state is told by net/http what becomes of a connection: it begins; the header of a request
// was read; the answer was sent; it is closed, or another owner has it.
func (l *load) state(nc net.Conn, s http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok || c.load == nil {
		return
	}
	switch s {
	case http.StateActive:
		c.inBody = true
	case http.StateIdle: // what was read last may have the beginning of the next request
		c.inBody, c.taken, c.piece = false, c.piece, 0
		l.set(c, c.taken)
	case http.StateHijacked, http.StateClosed:
		l.end(c)
	}
}

// Read counts what a header takes. A body has bounds of its own.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.load == nil || n == 0 {
		return n, err
	}
	var takes int64
	if c.secure {
		takes = int64(n * secureLoad)
	} else {
		takes = int64(n + fieldLoad*bytes.Count(b[:n], newline))
	}
	c.piece = max(c.piece, takes)
	if !c.inBody {
		c.taken += takes
		c.load.set(c, c.taken)
	}
	return n, err
}

var newline = []byte{'\n'}

// handshaken is told that the handshake of TLS is over. The headers of HTTP/2 have bounds of
// their own.
func (c *conn) handshaken(s tls.ConnectionState) error {
	if c.load != nil {
		c.taken, c.piece, c.secure = 0, 0, true
		c.load.set(c, 0)
		if s.NegotiatedProtocol == "h2" {
			c.load = nil
		}
	}
	return nil
}
