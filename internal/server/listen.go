package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what a peer can hold open. Calls are small, so that no healthy peer
// needs longer.
const (
	readTimeout    = 10 * time.Second // of a header, or of a whole call
	writeTimeout   = 30 * time.Second // of one write
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	maxConnections = 16384 // per listener
	drainTimeout   = 10 * time.Second
	releaseTimeout = time.Second // a handler waits 250 ms for a store that does not answer
)

// A Listener is an open socket and its handler.
type Listener struct {
	net.Listener
	Handler     http.Handler
	Streams     bool          // bodies have no read timeout, for a proxy
	ReadTimeout time.Duration // of a whole request; default 10 s
	TLS         *tls.Config   // nil for plain text
}

// Serve serves on the listeners until ctx ends or a listener fails, then waits at
// most ten seconds for the requests in flight. WebSockets of a Proxy are closed after that.
// It returns the first error of a listener, or nil if ctx has ended.
func (s *Server) Serve(ctx context.Context, listeners ...Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	servers := make([]*http.Server, len(listeners))
	for i, l := range listeners {
		srv := l.server()
		servers[i] = srv
		wg.Go(func() {
			if err := l.serve(srv); !errors.Is(err, http.ErrServerClosed) {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	s.Stop()
	drain(servers)
	s.cut()
	s.release()
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func drain(servers []*http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, srv := range servers {
		wg.Go(func() {
			if srv.Shutdown(ctx) != nil {
				_ = srv.Close() // the drain timeout has passed
			}
		})
	}
	wg.Wait()
}

// release waits until calls that were cut off have given back what they hold: their
// handlers still run, and need the store. It polls, because a counter that tells when it is
// 0 would cost each call time.
func (s *Server) release() {
	for end := time.Now().Add(releaseTimeout); s.inFlight.n.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Scheme returns http or https.
func (l *Listener) Scheme() string {
	if l.TLS == nil {
		return "http"
	}
	return "https"
}

func (l *Listener) serve(srv *http.Server) error {
	sockets := bound(l.Listener, maxConnections)
	if l.TLS == nil {
		return srv.Serve(sockets)
	}
	srv.TLSConfig = l.TLS
	return srv.ServeTLS(sockets, "", "")
}

func (l *Listener) server() *http.Server {
	timeout := cmp.Or(l.ReadTimeout, readTimeout)
	srv := &http.Server{Handler: l.Handler, ReadHeaderTimeout: timeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(peerErrors{}, "", 0)}
	if l.Streams {
		srv.DisableGeneralOptionsHandler = true // OPTIONS * is for the upstream
	} else {
		srv.ReadTimeout = timeout // equal, so that net/http sets one deadline instead of two
	}
	return srv
}

// peerErrors is the error log of net/http. It logs a handler's panic as an error,
// and the rest, such as failed TLS handshakes of peers, as debug messages.
type peerErrors struct{}

func (peerErrors) Write(b []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(b[:min(len(b), 32)], []byte("panic serving")) {
		level = slog.LevelError
	}
	slog.Log(context.Background(), level, strings.TrimSpace(string(b)))
	return len(b), nil
}

// IsLoopback reports whether only this machine can connect to a listener.
func IsLoopback(l net.Listener) bool {
	a, ok := l.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// bounded is a listener with a bound on open connections. More connections wait in
// the kernel's queue. It logs why connections wait, once a minute.
type bounded struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
	logged time.Time // used by Accept, which is called by one goroutine
}

func bound(l net.Listener, n int) *bounded {
	return &bounded{Listener: l, slots: make(chan struct{}, n), closed: make(chan struct{})}
}

func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

func (b *bounded) Accept() (net.Conn, error) {
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
	return &boundedConn{Conn: c, slots: b.slots}, nil
}

// wait logs why new connections wait.
func (b *bounded) wait(why string) {
	if now := time.Now(); now.Sub(b.logged) > reportAgain {
		b.logged = now
		slog.Error(fmt.Sprintf("new connections to %v wait: %s", b.Addr(), why))
	}
}

// boundedConn frees its slot when it is closed, and has a deadline for writes,
// which it moves only now and then: setting it for each response would cost more
// than the decision.
type boundedConn struct {
	net.Conn
	slots    chan struct{}
	once     sync.Once
	deadline atomic.Int64 // of writes, Unix seconds
}

func (c *boundedConn) Write(b []byte) (int, error) {
	now := time.Now()
	if c.deadline.Load()-now.Unix() < int64(writeTimeout/time.Second)*3/4 {
		until := now.Add(writeTimeout)
		if err := c.SetWriteDeadline(until); err != nil {
			return 0, err
		}
		c.deadline.Store(until.Unix())
	}
	return c.Conn.Write(b)
}

func (c *boundedConn) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}
