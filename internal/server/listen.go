package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// Bounds of what a peer can hold open. Calls are small, so no healthy peer needs longer.
const (
	readTimeout    = 10 * time.Second // for a header, or for a whole request
	answerTimeout  = time.Minute      // from the header of a request until the client has read the answer; see also Proxy
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10 // as much as nginx accepts, and sends to /v1/auth
	maxProxyHeader = 64 << 10 // for a proxied request
	maxConnections = 12288    // per listener
	maxSecure      = 4096     // connections with TLS or gRPC, which carry several calls at a time
	drainTimeout   = 10 * time.Second
	releaseTimeout = time.Second // a handler waits 250 ms for a store that does not answer
)

// Bounds of an HTTP/2 connection: the smallest values that RFC 9113 recommends or allows, or
// that net/http allows.
const (
	maxRequests = 100      // requests at the same time
	maxFrame    = 16 << 10 // bytes of a frame, which net/http keeps until all of it has arrived
	maxReceived = maxBody  // bytes of bodies that no handler has read
)

// A Listener is an open socket and its handler.
type Listener struct {
	net.Listener
	Handler        http.Handler
	Streams        bool          // bodies and answers may take any time; for a Proxy
	ReadTimeout    time.Duration // for a whole request; default 10 s
	AnswerTimeout  time.Duration // for an answer, from the header of its request on; default a minute
	MaxConnections int           // further ones wait in the kernel's queue; default 12288, with TLS or gRPC 4096
	TLS            *tls.Config   // nil for plain text
}

// Serve serves on the listeners until ctx ends or a listener fails, then waits at
// most ten seconds for the requests in flight. WebSockets of a Proxy are closed after that.
// Serve returns the first error of a listener, or nil if ctx has ended.
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
// handlers still run, and need the store. release polls, because a counter that tells when
// it is 0 would cost each call time.
func (s *Server) release() {
	for end := time.Now().Add(releaseTimeout); s.inFlight.n.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (l *Listener) Scheme() string {
	if l.TLS == nil {
		return "http"
	}
	return "https"
}

func (l *Listener) serve(srv *http.Server) error {
	if l.TLS == nil {
		return srv.Serve(l.bounded(maxConnections))
	}
	srv.TLSConfig = l.TLS
	srv.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxRequests, MaxReadFrameSize: maxFrame,
		MaxReceiveBufferPerConnection: maxReceived, MaxReceiveBufferPerStream: maxReceived, WriteByteTimeout: answerTimeout}
	return srv.ServeTLS(l.bounded(maxSecure), "", "")
}

func (l *Listener) bounded(most int) net.Listener {
	return netutil.LimitListener(l.Listener, cmp.Or(l.MaxConnections, most))
}

func (l *Listener) server() *http.Server {
	timeout := cmp.Or(l.ReadTimeout, readTimeout)
	srv := &http.Server{Handler: l.Handler, ReadHeaderTimeout: timeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: log.New(peerErrors{}, "", 0)}
	if l.Streams {
		srv.DisableGeneralOptionsHandler = true // OPTIONS * is forwarded to the upstream
		srv.MaxHeaderBytes = maxProxyHeader
	} else {
		srv.ReadTimeout = timeout // equal to the header's timeout, so that net/http sets one deadline instead of two
		srv.WriteTimeout = cmp.Or(l.AnswerTimeout, answerTimeout)
	}
	return srv
}

// peerErrors is the error log of net/http. It logs as an error that a handler panicked or that
// no connection can be accepted, and the rest, such as failed TLS handshakes of peers, as
// debug messages.
type peerErrors struct{}

func (peerErrors) Write(b []byte) (int, error) {
	level := slog.LevelDebug
	if head := b[:min(len(b), 32)]; bytes.Contains(head, []byte("panic serving")) || bytes.Contains(head, []byte("Accept error")) {
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
