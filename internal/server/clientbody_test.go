package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// bodies runs f with a connection to a server that reads each body, which may pause for ten
// seconds.
func bodies(t *testing.T, f func(t *testing.T, c net.Conn, in *bufio.Reader, results <-chan error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		results := make(chan error, 1)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := &passed{control: http.NewResponseController(w), client: 10 * time.Second, late: time.NewTimer(time.Hour)}
			_, err := io.ReadAll(&clientBody{r.Body, p})
			if err == nil {
				time.Sleep(time.Hour) // an upstream that answers slowly
				err = r.Context().Err()
			}
			results <- err
		})}
		go func() { _ = srv.Serve(&oneConn{conn: far, closed: make(chan struct{})}) }()
		f(t, near, bufio.NewReader(near), results)
		_ = near.Close()
		_ = srv.Close()
	})
}

const post20 = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"

// A body may take long if it makes progress, and so may the answer to it. A body that
// stops fails.
func TestClientBody(t *testing.T) {
	bodies(t, func(t *testing.T, c net.Conn, in *bufio.Reader, results <-chan error) {
		for range 2 {
			fmt.Fprint(c, post20)
			for range 20 {
				time.Sleep(9 * time.Second)
				fmt.Fprint(c, "x")
			}
			if err := <-results; err != nil {
				t.Error("a slow body:", err)
			}
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
		}
		start := time.Now()
		fmt.Fprint(c, post20+"half")
		if err := <-results; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 10*time.Second {
			t.Errorf("half a body: %v after %v", err, time.Since(start))
		}
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	if c, l.conn = l.conn, nil; c != nil {
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { close(l.closed); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
