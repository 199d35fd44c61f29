package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/terms"
)

// soon calls try until it returns true, for at most a minute.
func soon(t *testing.T, what string, try func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !try(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// short is how long a client may take nothing in a test.
const short = 100 * time.Millisecond

// Clients that stop reading fill a listener only until they are disconnected.
func TestListenerFullOfStalledClients(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	addr, _ := w.serve(server.Listener{MaxConnections: 3, AnswerTimeout: short})
	var clients sync.WaitGroup
	for range 3 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		clients.Go(func() { // asks until the server hangs up, and reads nothing
			for {
				if _, err := io.WriteString(c, "GET /openapi.json HTTP/1.1\r\nHost: "+addr+"\r\n\r\n"); err != nil {
					return
				}
			}
		})
	}
	res, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
	clients.Wait()
}

// Clients that send a header or a body slowly are disconnected, and then others are served.
func TestListenerFullOfSlowClients(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	addr, _ := w.serve(server.Listener{MaxConnections: 2, ReadTimeout: short})
	for _, begin := range []string{"GET /healthz HTTP/1.1\r\nHost: " + addr + "\r\nX-Slow: ", "POST /v1/take HTTP/1.1\r\nHost: " + addr + "\r\nContent-Length: 99\r\n\r\n"} {
		for range 2 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprint(c, begin)
		}
		other := http.Client{Timeout: time.Minute}
		res, err := other.Get("http://" + addr + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		other.CloseIdleConnections()
	}
}

// A gRPC listener accepts as many connections as it may; one more waits for a place.
func TestGRPCListenerIsFull(t *testing.T) {
	w := newFixture(t, server.Config{}, local)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- w.server.ServeGRPC(ctx, server.Listener{Listener: l, MaxConnections: 1}, w.server.GRPC(local, nil))
	}()
	dial := func() *h2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return newH2(t, c, 1<<16)
	}
	first := dial()
	first.rpc(take, message(t), true)
	<-first.ends
	second := dial()
	second.rpc(take, message(t), true)
	if len(second.ends) > 0 {
		t.Error("a second connection is served")
	}
	_ = first.Close()
	if got := <-second.ends; got.status != codes.OK {
		t.Errorf("%+v", got)
	}
	_ = second.Close()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A client that stops reading behind a proxy gives back its tokens of a concurrency limit,
// whichever request of its connection it is.
func TestStalledClientsOfAProxy(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.URL.Path == "/endless" {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "shared", ClientTimeout: short})
	p.useConcurrency()
	free := func() bool { status, _ := p.ask("GET / HTTP/1.1", "Host: x"); return status == http.StatusOK }
	for range 3 { // as many as the limit allows
		_, _, c, in := p.raw("GET / HTTP/1.1", "Host: x")
		soon(t, "the first request is not over", free)
		fmt.Fprint(c, "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "the tokens are not given back", free)
}

// A client of a proxy that does not send the body that it has announced is disconnected too.
func TestProxyClientSendsNoBody(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer up.Close()
	p := newProxied(t, server.Config{}, server.Upstream{URL: up.URL, By: "shared", ClientTimeout: short})
	p.useConcurrency()
	free := func() bool { status, _ := p.ask("GET / HTTP/1.1", "Host: x"); return status == http.StatusOK }
	for _, body := range []string{"Content-Length: 99\r\n\r\n", "Content-Length: 99\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\n9\r\nx"} {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\n"+body)
	}
	soon(t, "no request came", func() bool { return strings.Contains(p.metrics(), "dipwell_in_flight 3") })
	soon(t, "the tokens are not given back", free)
	soon(t, "requests are still in flight", func() bool { return strings.Contains(p.metrics(), "dipwell_in_flight 0") })
	if _, err := p.limiter.Define(t.Context(), dipwell.Limit{Name: "one", Rate: 1, Period: time.Second, Burst: 1, Shared: true}, terms.OwnerCode); err != nil {
		t.Fatal(err)
	}
	for _, sent := range []string{"POST / HTTP/1.1", "POST //| HTTP/1.1", "CONNECT / HTTP/1.1"} { // that are not passed on
		if err := p.proxy.Use([]string{"one"}); err != nil {
			t.Fatal(err)
		}
		if status, _ := p.ask(sent, "Host: x", "Content-Length: 99"); status == http.StatusOK {
			t.Error(sent, "was passed on")
		}
		p.ask("POST / HTTP/1.1", "Host: x", "Content-Length: 0") // takes the token of one
	}
}

// h2 is a client of HTTP/2 that allows the server to send only what it is told to.
type h2 struct {
	t *testing.T
	net.Conn
	*http2.Framer
	mu   sync.Mutex // held while a frame is written
	enc  *hpack.Encoder
	head bytes.Buffer
	next uint32
	ends chan ended

	windows atomic.Uint32 // the largest initial window of a stream that the server has announced
}

// ended is a stream that was reset, or answered to the end.
type ended struct {
	stream  uint32
	reset   bool
	status  codes.Code // of gRPC
	message string
}

// newH2 begins HTTP/2 on a connection, with an initial window of streams.
func newH2(t *testing.T, c net.Conn, window uint32) *h2 {
	t.Helper()
	h := &h2{t: t, Conn: c, Framer: http2.NewFramer(c, c), next: 1, ends: make(chan ended, 1<<16)}
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.enc = hpack.NewEncoder(&h.head)
	h.write(func() error {
		go h.read() // while it writes, because a pipe keeps nothing that is not read
		_, err := io.WriteString(c, http2.ClientPreface)
		return err
	})
	h.allow(window)
	return h
}

// write calls f, which writes a frame, and must not fail.
func (h *h2) write(f func() error) {
	h.t.Helper()
	if err := h.try(f); err != nil {
		h.t.Fatal(err)
	}
}

func (h *h2) try(f func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f()
}

// allow allows the server to send so many bytes in each stream.
func (h *h2) allow(window uint32) {
	h.write(func() error { return h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}) })
}

// read reads until the server hangs up, and closes ends then. It does not wait for what it
// writes, since the server may wait for it.
func (h *h2) read() {
	defer close(h.ends)
	for {
		frame, err := h.ReadFrame()
		if err != nil {
			return
		}
		e := ended{stream: frame.Header().StreamID}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if n, ok := f.Value(http2.SettingInitialWindowSize); ok {
				h.windows.Store(max(n, h.windows.Load()))
			}
			if !f.IsAck() {
				go h.try(h.WriteSettingsAck)
			}
		case *http2.PingFrame:
			data := f.Data
			go h.try(func() error { return h.WritePing(true, data) })
		case *http2.RSTStreamFrame:
			if e.reset = true; f.ErrCode != http2.ErrCodeNo { // which follows the end of an answer
				h.ends <- e
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				h.ends <- e
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				switch field.Name {
				case "grpc-status":
					n, _ := strconv.Atoi(field.Value)
					e.status = codes.Code(n)
				case "grpc-message":
					e.message = field.Value
				}
			}
			if f.StreamEnded() {
				h.ends <- e
			}
		}
	}
}

// ask begins a request, and ends it if end is true. Header fields are name, value, ...
func (h *h2) ask(end bool, fields ...string) (stream uint32) {
	h.t.Helper()
	h.head.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // to a buffer
	}
	stream = h.next
	h.next += 2
	h.write(func() error {
		return h.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.head.Bytes(), EndStream: end, EndHeaders: true})
	})
	return stream
}

// Over HTTP/2, an answer of which the client takes nothing is broken off, and its call is
// no longer in flight. The connection goes on.
func TestStalledHTTP2(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	newAuthority(t, "ours").issue("server", cert, key)
	tlsFiles, err := server.LoadTLS(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, server.Config{}, local)
	addr, _ := w.serve(server.Listener{TLS: tlsFiles.Config("h2", "http/1.1"), AnswerTimeout: short})
	dialed, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	c := newH2(t, dialed, 0)
	paths := []string{"/healthz", "/openapi.json", "/v1/limits"}
	for range 90 / len(paths) {
		for _, path := range paths {
			c.ask(true, ":method", "GET", ":scheme", "https", ":authority", addr, ":path", path)
		}
	}
	for range 90 {
		if e, open := <-c.ends; !open || !e.reset {
			t.Fatalf("%+v, connection open: %v", e, open)
		}
	}
	soon(t, "calls are still in flight", func() bool {
		return strings.Contains(w.do("GET", "/metrics", "").Body.String(), "dipwell_in_flight 0")
	})
	c.allow(1 << 20)
	asked := c.ask(true, ":method", "GET", ":scheme", "https", ":authority", addr, ":path", "/healthz")
	if got := <-c.ends; got.stream != asked || got.reset {
		t.Errorf("stream %d: %+v", asked, got)
	}
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	res, err := client.Get("https://" + addr + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.ProtoMajor != 2 || string(b) != w.do("GET", "/openapi.json", "").Body.String() {
		t.Errorf("%s, %d bytes, %v", res.Proto, len(b), err)
	}
}

// message is a Take of one token of login, as a message of gRPC.
func message(t *testing.T) []byte {
	t.Helper()
	b, err := proto.Marshal(call("login", "k", 1))
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{0, 0, 0, 0, byte(len(b))}, b...)
}

// rpc begins a call, and sends data, which ends it if end is true.
func (h *h2) rpc(method string, data []byte, end bool) (stream uint32) {
	h.t.Helper()
	stream = h.ask(false, ":method", "POST", ":scheme", "http", ":authority", "localhost", ":path", method, "content-type", "application/grpc", "te", "trailers")
	h.write(func() error { return h.WriteData(stream, end, data) })
	return stream
}

const (
	take  = "/dipwell.v1.Limiter/Take"
	watch = "/grpc.health.v1.Health/Watch"
)

// over runs f in virtual time, with clients of gRPC.
func over(t *testing.T, f func(t *testing.T, w *fixture, dial func(window uint32) *h2)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		w.serving(t, func(ctx context.Context, l net.Listener) error {
			return w.server.ServeGRPC(ctx, server.Listener{Listener: l}, w.server.GRPC(local, nil))
		}, func(dial func() net.Conn, _ context.CancelFunc) {
			var all []*h2
			f(t, w, func(window uint32) *h2 {
				all = append(all, newH2(t, dial(), window))
				return all[len(all)-1]
			})
			for _, h := range all {
				_ = h.Close()
			}
		})
	})
}

// A gRPC client that does not allow its answers is disconnected after an hour and the longest
// wait. It takes places of calls in flight from no one meanwhile.
func TestStalledGRPC(t *testing.T) {
	over(t, func(t *testing.T, w *fixture, dial func(uint32) *h2) {
		msg, start := message(t), time.Now()
		stuck := dial(0)
		for range 50 {
			stuck.rpc(take, msg, true)
		}
		synctest.Wait()
		w.want(w.do("GET", "/metrics", ""), 200, "dipwell_in_flight 0")
		for e := range stuck.ends {
			t.Errorf("%+v", e)
		}
		if took := time.Since(start); took < 50*time.Minute || took > 90*time.Minute {
			t.Errorf("closed after %v", took)
		}
	})
}

// A gRPC client that reads nothing is disconnected, whatever it sends.
func TestGRPCClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, server.Config{}, local)
		w.serving(t, func(ctx context.Context, l net.Listener) error {
			return w.server.ServeGRPC(ctx, server.Listener{Listener: l}, w.server.GRPC(local, nil))
		}, func(dial func() net.Conn, _ context.CancelFunc) {
			c := dial()
			start, out := time.Now(), http2.NewFramer(c, nil)
			fmt.Fprint(c, http2.ClientPreface)
			for err := out.WriteSettings(); err == nil; err = out.WritePing(true, [8]byte{}) {
				time.Sleep(time.Second)
			}
			if took := time.Since(start); took > 2*time.Minute {
				t.Errorf("closed after %v", took)
			}
		})
	})
}

// Calls whose messages do not arrive end after a minute. Beyond a number of them others are
// shed, and then answered.
func TestGRPCMessageDoesNotArrive(t *testing.T) {
	over(t, func(t *testing.T, w *fixture, dial func(uint32) *h2) {
		w.server.Set(server.Config{MaxInFlight: 100})
		var clients [2]*h2
		for i := range clients {
			clients[i] = dial(1 << 16)
			for range 562 { // 100 + 1024 together
				clients[i].rpc(take, []byte{0, 0, 0}, false)
			}
		}
		synctest.Wait()
		other := dial(1 << 16)
		other.rpc(take, message(t), true)
		if got := <-other.ends; got.status != codes.Unavailable {
			t.Errorf("one more: %v", got.status)
		}
		time.Sleep(time.Minute)
		for _, c := range clients {
			for range 562 {
				if got := <-c.ends; got.status != codes.DeadlineExceeded {
					t.Errorf("stream %d: %v %s", got.stream, got.status, got.message)
				}
			}
		}
		other.rpc(take, message(t), true)
		if got := <-other.ends; got.status != codes.OK {
			t.Errorf("after them: %v", got.status)
		}
	})
}

// A stream lasts longer than a call.
func TestGRPCStreamLasts(t *testing.T) {
	over(t, func(t *testing.T, _ *fixture, dial func(uint32) *h2) {
		c := dial(1 << 16)
		c.rpc(watch, make([]byte, 5), true)
		time.Sleep(50 * time.Minute)
		if len(c.ends) > 0 {
			t.Errorf("it was ended: %+v", <-c.ends)
		}
	})
}

// A client that sends fast is not allowed to send more of a call than its longest message,
// because gRPC keeps what the call does not read.
func TestGRPCWindow(t *testing.T) {
	over(t, func(t *testing.T, _ *fixture, dial func(uint32) *h2) {
		c := dial(1 << 16)
		for range 20 {
			stream := c.rpc(take, []byte{0, 0, 0, 0xff, 0xff}, false)
			c.write(func() (err error) {
				for range 4 {
					err = errors.Join(err, c.WriteData(stream, false, make([]byte, 15<<10)))
				}
				return err
			})
			time.Sleep(time.Millisecond)
		}
		if n := c.windows.Load(); n > 64<<10 {
			t.Errorf("%d bytes may be sent", n)
		}
	})
}
