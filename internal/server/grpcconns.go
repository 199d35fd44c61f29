package server

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

const (
	checks    = 30                     // of a connection, in the time that a client may take nothing
	closeWait = 100 * time.Millisecond // between two connections that closeWorst closes
	// maxPieces is in how many frames the message of a call may arrive, on average, since
	// each frame takes about 100 bytes more than it has. Common clients send at most 5.
	maxPieces = 16
)

var errPieces = errors.New("the connection has too many frames for its calls")

// grpcConns is the listener of a gRPC server. A client can read all that is sent and yet not
// allow an answer to be sent (flow control). gRPC keeps such an answer, about 6 kB, until the
// connection is closed, and does not tell when an answer has been sent. So the connections
// read the headers of frames, and close if their client has not taken an answer for stall.
type grpcConns struct {
	net.Listener
	stall   time.Duration
	untaken *atomic.Int64 // sum over the connections

	closing sync.Mutex // held by closeWorst
	closed  time.Time  // when closeWorst closed a connection

	mu    sync.Mutex
	conns map[*grpcConn]struct{}
}

// grpcConns returns a listener over a bounded one.
func (s *Server) grpcConns(b *boundedListener, secure *tls.Config) *grpcConns {
	l := &grpcConns{Listener: b, stall: b.stall, untaken: &s.grpcUntaken, conns: map[*grpcConn]struct{}{}}
	if secure != nil {
		l.Listener = tls.NewListener(b, secure)
	}
	return l
}

func (l *grpcConns) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &grpcConn{Conn: inner, of: l, open: map[uint32]struct{}{}, pieces: maxPieces, in: frames{skip: len(preface)}}
	c.addr = &grpcAddr{inner.RemoteAddr(), c}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	c.mu.Lock()
	c.timer = time.AfterFunc(l.stall/checks, c.check)
	c.mu.Unlock()
	return c, nil
}

// closeWorst closes the connection with the most answers that were not taken for a
// thirtieth of stall.
func (l *grpcConns) closeWorst() {
	if !l.closing.TryLock() {
		return
	}
	defer l.closing.Unlock()
	if time.Since(l.closed) < closeWait {
		return
	}
	l.closed = time.Now()
	var worst *grpcConn
	most := 0
	l.mu.Lock()
	for c := range l.conns {
		c.mu.Lock()
		if n := c.untakenSince(&c.marks[(c.next+checks-2)%checks]); n > most {
			worst, most = c, n
		}
		c.mu.Unlock()
	}
	l.mu.Unlock()
	if worst != nil {
		_ = worst.Close()
	}
}

// grpcConn is a connection of grpcConns.
type grpcConn struct {
	net.Conn
	of   *grpcConns
	addr *grpcAddr

	mu      sync.Mutex
	in, out frames
	open    map[uint32]struct{} // streams whose end was neither sent nor received
	last    uint32              // the newest stream
	pieces  int                 // frames of messages that may arrive
	calls   int                 // that have begun and not returned
	untaken int                 // streams in open that are not calls; in of.untaken
	marks   [checks]mark        // one of each check, the oldest at next
	next    int
	timer   *time.Timer
	closed  bool
}

// A mark says which streams there were at a time, and how many calls.
type mark struct {
	last  uint32
	calls int32
}

// grpcAddr is the address by which calls find their connection.
type grpcAddr struct {
	net.Addr
	conn *grpcConn
}

func (c *grpcConn) RemoteAddr() net.Addr { return c.addr }

// connOf returns the connection of a call, or nil if grpcConns did not accept it.
func connOf(ctx context.Context) *grpcConn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(*grpcAddr); ok {
			return a.conn
		}
	}
	return nil
}

func (c *grpcConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	c.in.each(b[:n], func(kind, flags byte, stream uint32) {
		switch {
		case kind == frameHeaders && stream > c.last:
			c.last = stream
			c.open[stream] = struct{}{}
			c.pieces = min(c.pieces+maxPieces, maxPieces*maxStreams)
		case kind == frameReset:
			delete(c.open, stream)
		case kind == frameData && flags&endStream == 0:
			c.pieces--
		}
	})
	c.count()
	tooMany := c.pieces < 0
	c.mu.Unlock()
	if tooMany {
		_ = c.Close()
		return 0, errPieces
	}
	return n, err
}

func (c *grpcConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.each(b[:n], func(kind, flags byte, stream uint32) {
		if kind == frameReset || kind <= frameHeaders && flags&endStream != 0 {
			delete(c.open, stream)
		}
	})
	c.count()
	return n, err
}

// call adds n to the calls that have begun and not returned.
func (c *grpcConn) call(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls += n
	c.count()
}

// count updates the sum over the connections.
func (c *grpcConn) count() {
	n := max(0, len(c.open)-c.calls)
	if c.closed {
		n = 0
	}
	if n != c.untaken {
		c.of.untaken.Add(int64(n - c.untaken))
		c.untaken = n
	}
}

// untakenSince returns how many more streams there are that were there at a mark than there
// are calls, both then and now. The others are answered, and nobody took that.
func (c *grpcConn) untakenSince(m *mark) (n int) {
	calls := max(int(m.calls), c.calls)
	if len(c.open) <= calls {
		return 0
	}
	for stream := range c.open {
		if stream <= m.last {
			n++
		}
	}
	return max(0, n-calls)
}

// check closes the connection if its client has not taken an answer for stall.
func (c *grpcConn) check() {
	c.mu.Lock()
	c.pieces = max(c.pieces, maxPieces) // for calls that go on
	oldest := &c.marks[c.next]
	stalled := c.untakenSince(oldest) > 0
	*oldest = mark{c.last, int32(c.calls)}
	c.next = (c.next + 1) % checks
	if !stalled && !c.closed {
		c.timer.Reset(c.of.stall / checks)
	}
	c.mu.Unlock()
	if stalled {
		_ = c.Close()
	}
}

func (c *grpcConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.count()
	c.timer.Stop()
	c.mu.Unlock()
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// What grpcConn knows of HTTP/2 (RFC 9113): what a client begins with, the header of a
// frame, three types of frames and a flag of the types up to frameHeaders.
const (
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader  = 9
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3
	endStream    = 1
)

// frames reads frames in pieces of any size.
type frames struct {
	skip   int // bytes until the next frame
	header [frameHeader]byte
	have   int // bytes of header
}

// each calls f for each frame whose header ends in b.
func (s *frames) each(b []byte, f func(kind, flags byte, stream uint32)) {
	for len(b) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(b))
			s.skip -= n
			b = b[n:]
			continue
		}
		n := copy(s.header[s.have:], b)
		b = b[n:]
		if s.have += n; s.have == frameHeader {
			s.have = 0
			s.skip = int(binary.BigEndian.Uint32(s.header[:]) >> 8)
			f(s.header[3], s.header[4], binary.BigEndian.Uint32(s.header[5:])&^(1<<31))
		}
	}
}
