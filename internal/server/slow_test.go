package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/server"
)

// pipes is a listener in virtual time: a connection is two ends of a net.Pipe.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

// slowly runs f in virtual time, with a connection to a server over HTTP or gRPC.
func slowly(t *testing.T, grpc bool, f func(t *testing.T, w *fixture, c net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		w.serving(t, func(ctx context.Context, l net.Listener) error {
			if grpc {
				return w.server.ServeGRPC(ctx, server.Listener{Listener: l}, w.server.GRPC(local, nil))
			}
			return w.server.Serve(ctx, server.Listener{Listener: l, Handler: w.api})
		}, func(dial func() net.Conn, _ context.CancelFunc) {
			c := dial()
			f(t, w, c)
			_ = c.Close()
		})
	})
}

// serving runs f beside serve, to which f can connect and which it can stop.
func (w *fixture) serving(t *testing.T, serve func(context.Context, net.Listener) error, f func(dial func() net.Conn, stop context.CancelFunc)) {
	t.Helper()
	l := &pipes{make(chan net.Conn), make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l) }()
	f(l.dial, stop)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// untilClosed reads until the server closes the connection. It returns what it
// read, and when the connection was closed.
func untilClosed(c net.Conn) (string, time.Duration) {
	start := time.Now()
	b, _ := io.ReadAll(c)
	return string(b), time.Since(start)
}

const takeHead = "POST /v1/take HTTP/1.1\r\nHost: localhost\r\n"

// A body that does not end gets 408 after the read timeout, and charges nothing.
func TestSlowBody(t *testing.T) {
	slowly(t, false, func(t *testing.T, w *fixture, c net.Conn) {
		start := time.Now()
		fmt.Fprint(c, takeHead+"Content-Length: 60\r\n\r\n{\"limit\":\"login\",\"key\":\"k\"")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), `"field":"body"`) || time.Since(start) != 10*time.Second {
			t.Errorf("%d %s after %v", res.StatusCode, body, time.Since(start))
		}
		if d, _ := w.limiter.Check(t.Context(), "login", "k", 20); !d.Allowed {
			t.Error("half a call was charged")
		}
	})
}

// A header that is sent byte by byte (Slowloris) has ten seconds too.
func TestSlowHeader(t *testing.T) {
	slowly(t, false, func(t *testing.T, w *fixture, c net.Conn) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for _, b := range []byte(takeHead + strings.Repeat("X-Slow: y\r\n", 1000)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return // the server has closed the connection
				}
				time.Sleep(time.Second)
			}
			t.Error("a header of hours was read")
		}()
		if said, took := untilClosed(c); took != 10*time.Second {
			t.Errorf("%q after %v", said, took)
		}
		<-ended
	})
}

// A connection without a request is closed after ten seconds, and an idle one after
// two minutes.
func TestIdleConnection(t *testing.T) {
	slowly(t, false, func(t *testing.T, _ *fixture, c net.Conn) {
		if said, took := untilClosed(c); said != "" || took != 10*time.Second {
			t.Errorf("%q after %v", said, took)
		}
	})
	slowly(t, false, func(t *testing.T, _ *fixture, c net.Conn) {
		go fmt.Fprint(c, takeHead+"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 17\r\n\r\nlimit=login&key=k")
		if said, took := untilClosed(c); !strings.HasPrefix(said, "HTTP/1.1 200 ") || took != 2*time.Minute {
			t.Errorf("%q after %v", said, took)
		}
	})
}

const formTake = takeHead + "Content-Length: 9\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\nlimit=all"

// closedWhileWriting returns when the server closes the connection of a client that writes
// and never reads. Until nearly then it writes nothing.
func closedWhileWriting(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	time.Sleep(59 * time.Second)
	synctest.Wait()
	_ = c.SetWriteDeadline(time.Now().Add(time.Hour))
	for { // writes fail when the server closes its end of the pipe
		if _, err := c.Write([]byte("x")); err != nil {
			if !errors.Is(err, io.ErrClosedPipe) {
				t.Error(err)
			}
			return time.Since(start)
		}
	}
}

// The connection of a client that does not take an answer is closed after a minute.
func TestClientDoesNotRead(t *testing.T) {
	for name, before := range map[string]int{"the first": 0, "the second": 1, "a later": 5} {
		slowly(t, false, func(t *testing.T, _ *fixture, c net.Conn) {
			in := bufio.NewReader(c)
			for range before {
				fmt.Fprint(c, formTake)
				res, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				time.Sleep(time.Second)
			}
			fmt.Fprint(c, formTake)
			if took := closedWhileWriting(t, c); took != time.Minute {
				t.Errorf("%s answer is not read: closed after %v", name, took)
			}
		})
	}
	slowly(t, false, func(t *testing.T, _ *fixture, c net.Conn) {
		fmt.Fprint(c, strings.Repeat(formTake, 3))
		if took := closedWhileWriting(t, c); took != time.Minute {
			t.Errorf("three requests at once: closed after %v", took)
		}
	})
}

// The same over gRPC, for a peer that sends nothing, and for one that stops and does
// not answer pings.
func TestIdleGRPC(t *testing.T) {
	slowly(t, true, func(t *testing.T, _ *fixture, c net.Conn) {
		if _, took := untilClosed(c); took != 10*time.Second {
			t.Errorf("no preface: closed after %v", took)
		}
	})
	slowly(t, true, func(t *testing.T, _ *fixture, c net.Conn) {
		go func() {
			const settings, ack = "\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x00\x04\x01\x00\x00\x00\x00"
			_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings+ack)
		}()
		if _, took := untilClosed(c); took != 80*time.Second {
			t.Errorf("no answer to a ping: closed after %v, want a minute and twenty seconds", took)
		}
	})
}
