package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

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

// TestMemoryOfUnfinishedRequests checks what clients can make the service keep in memory by
// sending no more than part of a request: of an ordinary one about 100 kB a connection, which
// is 1.2 GB for all of a listener, and of the worst header, which net/http keeps in a map, 1 MB.
func TestMemoryOfUnfinishedRequests(t *testing.T) {
	const n = 40
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
					each := (used() - before) / n
					t.Logf("%d bytes a connection", each)
					most := int64(110_000)
					if strings.Contains(name, "fields") || strings.HasPrefix(name, "one name") {
						most = 1 << 20
					}
					if each > most {
						t.Errorf("%d bytes a connection", each)
					}
					for _, c := range conns {
						_ = c.Close()
					}
					synctest.Wait()
				})
			})
		})
	}
}

// TestMemoryOfUnfinishedFrames checks the same for HTTP/2, whose frames, fields and tables of
// fields (HPACK) are kept until the last frame of a header has arrived: all connections of a
// listener with TLS, and of gRPC, fit with room for garbage into 2 GB.
func TestMemoryOfUnfinishedFrames(t *testing.T) {
	const (
		n    = 40
		room = 3 << 29 // with the client's ends, which are in this process too
	)
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	newAuthority(t, "ours").issue("server", cert, key)
	files, err := server.LoadTLS(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	worst := map[string]int64{} // of a connection, by protocol
	for name, payload := range unfinished() {
		for protocol, serve := range map[string]func(context.Context, *fixture, net.Listener) error{
			"https": func(ctx context.Context, w *fixture, l net.Listener) error {
				return w.server.Serve(ctx, server.Listener{Listener: l, Handler: w.api, TLS: files.Config("h2")})
			},
			"gRPC with TLS": func(ctx context.Context, w *fixture, l net.Listener) error {
				return w.server.ServeGRPC(ctx, server.Listener{Listener: l, TLS: files.Config("h2")}, w.server.GRPC(local, nil))
			},
		} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newFixture(t, server.Config{}, local)
					w.serving(t, func(ctx context.Context, l net.Listener) error { return serve(ctx, w, l) }, func(dial func() net.Conn, _ context.CancelFunc) {
						before := used()
						var conns [n]*tls.Conn
						for i := range conns {
							conns[i] = tls.Client(dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
							if err := conns[i].Handshake(); err != nil {
								t.Fatal(err)
							}
							go conns[i].Write(payload)
							go io.Copy(io.Discard, conns[i])
						}
						synctest.Wait()
						each := (used() - before) / n // with the client's end
						t.Logf("%d bytes a connection", each)
						worst[protocol] = max(worst[protocol], each)
						for _, c := range conns {
							_ = c.Close()
						}
						synctest.Wait()
					})
				})
			})
		}
	}
	sum := worst["https"]*server.MaxSecure + worst["gRPC with TLS"]*server.MaxSecure
	t.Logf("%d bytes in the worst case", sum)
	if sum > room {
		t.Errorf("more than %d", room)
	}
}

// unfinished returns what begins a connection of HTTP/2 and does not end a header.
func unfinished() map[string][]byte {
	block := func(times int, sensitive bool, value string) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for i, letters := 0, "abcdefghijklmnopqrstuvwxyz"; i < times; i++ {
			name := string([]byte{letters[i%26], letters[i/26%26]})
			_ = e.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: sensitive && i >= 100}) // the first fill the table
		}
		return b.Bytes()
	}
	all := map[string][]byte{
		"fields":     block(900, true, "v"),
		"long field": block(1, false, strings.Repeat("\xff", 15_000)),
		"longest":    block(2, false, strings.Repeat("\xff", 15_000)),
		"indexed":    append(block(1, false, "v"), bytes.Repeat([]byte{0x80 | 62}, 900)...), // the newest field of the table
	}
	for name, rest := range all {
		var b bytes.Buffer
		f := http2.NewFramer(&b, nil)
		b.WriteString(http2.ClientPreface)
		_ = f.WriteSettings()
		first := rest[:min(len(rest), 16<<10)]
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first})
		_ = f.WriteContinuation(1, false, rest[len(first):])
		all[name] = b.Bytes()
	}
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&b, nil).WriteSettings()
	b.Write([]byte{15, 255, 255, 0xbb, 0, 0, 0, 0, 0}) // a frame of a megabyte, of an unknown type
	b.Write(make([]byte, 15<<16))
	all["large frame"] = b.Bytes()
	return all
}

func used() int64 {
	runtime.GC()
	runtime.GC() // what a sync.Pool holds goes at the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
