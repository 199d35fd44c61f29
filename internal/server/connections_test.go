package server

import (
	"net"
	"testing"
)

// At the bound, Accept waits until a connection is closed; closing the listener
// ends the wait.
func TestBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := bound(inner, 1, stallTimeout)
	defer l.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	defer dial().Close()
	defer dial().Close()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if len(l.slots) != cap(l.slots) {
		t.Error("an accepted connection holds no place")
	}
	_ = first.Close()
	_ = first.Close() // must free its slot only once
	second, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept() // no slot is free
		ended <- err
	}()
	_ = l.Close()
	if err := <-ended; err == nil {
		t.Error("a third connection was accepted")
	}
}
