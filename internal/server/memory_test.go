package server_test

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dipwell/dipwell/internal/server"
)

// fields returns header fields of the shortest names, of n bytes at least.
func fields(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		b.WriteString(string([]byte{letters[i%26], letters[i/26%26], letters[i/26/26%26], ':', '\n'}))
	}
	return b.String()
}

// TestMemoryOfUnfinishedRequests checks that what clients can make the service keep in memory,
// by sending no more than part of a request on each connection that it accepts, fits with
// room for garbage into the 2 GB that deploy/systemd allows.
func TestMemoryOfUnfinishedRequests(t *testing.T) {
	const (
		n    = 40
		base = 24 << 10 // of a connection: a goroutine, and buffers to read and write
		body = 4 << 10
	)
	if sum := server.MaxConnections*(base+server.LightLoad+body/2) + server.MaxLoad + server.MaxLarge*(150<<10); sum > 1<<30 {
		t.Errorf("%d bytes in the worst case", sum)
	}
	form := takeHead + "Content-Type: application/x-www-form-urlencoded\r\n"
	next := form + "Content-Length: 17\r\n\r\nlimit=login&key=k"
	for name, text := range map[string]string{
		"nothing":           "",
		"long field":        takeHead + "A: " + strings.Repeat("x", 36_000),
		"fields":            takeHead + fields(36_000),
		"few fields":        takeHead + fields(4_000),
		"one name":          takeHead + strings.Repeat("a:\n", 11_000),
		"after a request":   next + takeHead + fields(3_900),
		"body":              form + "Content-Length: 4000\r\n\r\n" + strings.Repeat("x", 3_999),
		"body and no colon": takeHead + strings.Repeat("a\n", 11_000),
		"fields and a body": form + "Content-Length: 4000\r\n" + fields(31_000) + "\r\n" + strings.Repeat("x", 3_999),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, server.Config{}, local)
				w.serving(t, func(ctx context.Context, l net.Listener) error {
					return w.server.Serve(ctx, server.Listener{Listener: l, Handler: w.api})
				}, func(dial func() net.Conn, _ context.CancelFunc) {
					sent := []byte(text)
					before := used()
					var conns [n]net.Conn
					for i := range conns {
						conns[i] = dial()
						go conns[i].Write(sent) // not Fprint: package fmt keeps its buffers
						go io.Copy(io.Discard, conns[i])
					}
					synctest.Wait()
					each, load := (used()-before)/n, w.server.Load()/n
					t.Logf("%d bytes a connection, of which %d are counted", each, load)
					if each > base+server.LightLoad+body+load {
						t.Errorf("%d bytes a connection, of which only %d are counted", each, load)
					}
					for _, c := range conns {
						_ = c.Close()
					}
					synctest.Wait()
					if load := w.server.Load(); load != 0 {
						t.Errorf("%d are counted when all are closed", load)
					}
				})
			})
		})
	}
}

func used() int64 {
	runtime.GC()
	runtime.GC() // what a sync.Pool holds goes at the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
