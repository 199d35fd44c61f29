package server

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// loaded returns a connection whose request takes n bytes, and its other end.
func loaded(l *load, n int64) (*conn, net.Conn) {
	ours, theirs := net.Pipe()
	c := &conn{Conn: ours, slots: make(chan struct{}, 1), load: l}
	c.slots <- struct{}{}
	l.set(c, n)
	return c, theirs
}

// TestLoad checks that the connection that takes most is closed, and no other.
func TestLoad(t *testing.T) {
	var closed atomic.Uint64
	l := &load{closed: &closed, conns: map[*conn]int64{}}
	_, light := loaded(l, lightLoad-1)
	_, most := loaded(l, maxLoad/2+1)
	first, oldest := loaded(l, maxLoad/4)
	_, newest := loaded(l, maxLoad/4)
	if _, err := most.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection that takes most: %v", err)
	}
	for _, c := range []net.Conn{light, oldest, newest} {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			t.Error("another connection is closed")
		}
	}
	l.state(first, http.StateHijacked)
	if n := closed.Load(); n != 1 || l.sum != maxLoad/4 || len(l.conns) != 1 {
		t.Errorf("%d connections closed, %d bytes, %d connections counted", n, l.sum, len(l.conns))
	}
}

// TestLoadOverTLS checks that encrypted bytes count as the shortest fields, once the handshake
// is over, and over HTTP/2 not at all.
func TestLoadOverTLS(t *testing.T) {
	l := &load{closed: new(atomic.Uint64), conns: map[*conn]int64{}}
	for _, protocol := range []string{"", "h2"} {
		c, peer := loaded(l, 0)
		go io.WriteString(peer, strings.Repeat("x", 30_000)+"."+strings.Repeat("\n", 10_000))
		if _, err := io.ReadFull(c, make([]byte, 30_000)); err != nil || l.sum != 30_000 {
			t.Errorf("%d are counted in the handshake, %v", l.sum, err)
		}
		if err := c.handshaken(tls.ConnectionState{NegotiatedProtocol: protocol}); err != nil || l.sum != 0 {
			t.Errorf("%d are counted after the handshake, %v", l.sum, err)
		}
		want := int64(10_001 * secureLoad)
		if protocol == "h2" {
			want = 0
		}
		if _, err := io.ReadFull(c, make([]byte, 10_001)); err != nil || l.sum != want {
			t.Errorf("%q: %d are counted, want %d; %v", protocol, l.sum, want, err)
		}
		l.state(tls.Server(c, nil), http.StateClosed)
	}
}
