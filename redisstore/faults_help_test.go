package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

const (
	patience = time.Minute     // bounds what a test waits for; on a busy machine servers are slow
	slack    = 3 * time.Second // what a call may take beyond its time, on a machine that runs it without delay
)

// lateness watches how late this process is run. A test that says when a call
// must have ended allows it slack and what the machine was late meanwhile.
type lateness struct {
	worst atomic.Int64 // ns
	stop  chan struct{}
	done  chan struct{}
}

func watchLateness() *lateness {
	w := &lateness{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		const every = 10 * time.Millisecond
		for {
			began := time.Now()
			select {
			case <-w.stop:
				return
			case <-time.After(every):
				w.worst.Store(max(w.worst.Load(), int64(time.Since(began)-every)))
			}
		}
	}()
	return w
}

// slack ends the watch, and returns what a call may take beyond its time.
func (w *lateness) slack() time.Duration {
	close(w.stop)
	<-w.done
	return slack + 4*time.Duration(w.worst.Load()) // a call is woken several times
}

// long reports whether the tests run in their long form: DIPWELL_LONG=1.
func long() bool { return os.Getenv("DIPWELL_LONG") == "1" }

// rounds is n, or ten times as many in the long form.
func rounds(n int) int {
	if long() {
		return 10 * n
	}
	return n
}

// until asks again and again until ok.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not %s after %v", what, patience)
		}
	}
}

// drained is a limit that gives no whole token back while a test runs.
func drained(name string, burst int64) store.Limit {
	return store.Limit{Name: name, Rate: 1, Period: time.Hour, Burst: burst}
}

// opened is a store by URL, with a limiter over it.
func opened(t testing.TB, url string, c redisstore.Config, limits ...store.Limit) (*redisstore.Store, *dipwell.Limiter) {
	t.Helper()
	s, err := redisstore.Open(context.Background(), url, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, limiter(t, s, limits...)
}

// do asks a server, which must not refuse.
func do(t testing.TB, s *redistest.Server, args ...any) any {
	t.Helper()
	v, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// left is what a limit still has for a key.
func left(t testing.TB, l *dipwell.Limiter, limit, key string) int64 {
	t.Helper()
	var d dipwell.Decision
	within(t, patience, func() (err error) { d, err = l.Check(context.Background(), limit, key, 0); return err })
	return d.Remaining
}

// load calls over and over from some goroutines until it is ended, and counts
// what they are told.
type load struct {
	calls, granted, refused, open, failed, unknown atomic.Int64
	slowest, first, last                           atomic.Int64 // ns: of a call; of the first and last error since the epoch

	strange atomic.Pointer[error] // an answer that no fault explains
	late    *lateness
	slack   time.Duration // once it has ended: what calls may take beyond their time
	stop    chan struct{}
	wg      sync.WaitGroup
}

func startLoad(workers int, call func(ctx context.Context, n int64) (dipwell.Decision, error)) *load {
	o := &load{late: watchLateness(), stop: make(chan struct{})}
	for range workers {
		o.wg.Go(func() {
			for {
				select {
				case <-o.stop:
					return
				default:
				}
				began := time.Now()
				d, err := call(context.Background(), o.calls.Add(1))
				o.slowest.Store(max(o.slowest.Load(), int64(time.Since(began))))
				if o.count(d, err) {
					_ = await.Sleep(context.Background(), time.Millisecond) // as a caller who is refused would
				}
			}
		})
	}
	return o
}

func (o *load) count(d dipwell.Decision, err error) (bad bool) {
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		o.unknown.Add(1)
	case errors.Is(err, store.ErrStore):
		o.failed.Add(1)
	case err != nil:
		o.strange.Store(&err)
	case d.Source == store.SourceFallbackOpen:
		o.open.Add(1)
	case d.Allowed:
		o.granted.Add(1)
		return false
	default:
		o.refused.Add(1)
		return true
	}
	now := time.Now().UnixNano()
	o.first.CompareAndSwap(0, now)
	o.last.Store(now)
	return true
}

func (o *load) end(t testing.TB) {
	t.Helper()
	close(o.stop)
	o.wg.Wait()
	o.slack = o.late.slack()
	if err := o.strange.Load(); err != nil {
		t.Errorf("an error of no class: %v", *err)
	}
}

// more waits until n calls more were granted.
func (o *load) more(t testing.TB, n int64) {
	t.Helper()
	goal := o.granted.Load() + n
	until(t, "granted", func() bool { return o.granted.Load() >= goal })
}

// prompt checks, after the end, that each call was answered in its time.
func (o *load) prompt(t testing.TB, timeout time.Duration) {
	t.Helper()
	if slowest := time.Duration(o.slowest.Load()); slowest > timeout+o.slack {
		t.Errorf("a call took %v, and has %v", slowest, timeout)
	}
}

// troubled is how long after since the last call failed.
func (o *load) troubled(since time.Time) time.Duration {
	if o.last.Load() == 0 {
		return 0
	}
	return time.Unix(0, o.last.Load()).Sub(since)
}

// charged checks that what was granted, and what may have been, is what is gone.
func (o *load) charged(t testing.TB, gone int64) {
	t.Helper()
	granted, unknown := o.granted.Load(), o.unknown.Load()
	t.Logf("%d granted, %d refused, %d open, %d failed, %d unknown; %d are gone; the slowest call took %v",
		granted, o.refused.Load(), o.open.Load(), o.failed.Load(), unknown, gone, time.Duration(o.slowest.Load()))
	if granted > gone || granted+unknown < gone {
		t.Errorf("%d granted and %d unknown, but %d are gone", granted, unknown, gone)
	}
}

// proxy stands between a client and a server, and cuts connections.
type proxy struct {
	net.Listener
	server string
	cut    atomic.Int32 // the next call of a script ends its connection
}

const (
	cutBefore = 1 + iota // the server never sees it
	cutAfter             // the server does it; the answer is lost
	cutMiddle            // the same; the first byte of the answer arrives, and then a reset
)

func newProxy(t testing.TB) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &proxy{Listener: l}
}

func (p *proxy) to(server *redistest.Server) *proxy {
	p.server = server.Addr()
	go func() {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			go p.carry(c)
		}
	}()
	return p
}

func (p *proxy) port() int { return p.Addr().(*net.TCPAddr).Port }

func (p *proxy) carry(client net.Conn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var cut atomic.Int32
	go func() {
		defer client.Close()
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			if bytes.Contains(buf[:n], []byte("evalsha")) {
				cut.Store(p.cut.Swap(0))
			}
			if cut.Load() == cutBefore {
				return
			}
			if _, err = server.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || cut.Load() == cutAfter {
			return // the answer is there: what was asked has been done
		}
		if cut.Load() == cutMiddle {
			_, _ = client.Write(buf[:1])
			_ = client.(*net.TCPConn).SetLinger(0)
			return
		}
		if _, err = client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// take is one take as a group of a batch.
func take(l *dipwell.Limiter, limit, key string) store.Group {
	return store.Group{Ops: []store.Op{{Def: l.Limit(limit), Key: key, Verb: store.VerbTake, Cost: 1}}}
}

// tally counts what callers were told about some keys of one limit, for calls
// of several kinds.
type tally struct {
	granted, failed, unknown map[string]*atomic.Int64
	keys                     []string
}

func newTally(keys ...string) *tally {
	y := &tally{map[string]*atomic.Int64{}, map[string]*atomic.Int64{}, map[string]*atomic.Int64{}, keys}
	for _, k := range keys {
		y.granted[k], y.failed[k], y.unknown[k] = new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)
	}
	return y
}

func (y *tally) count(key string, allowed bool, err error) {
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		y.unknown[key].Add(1)
	case err != nil:
		y.failed[key].Add(1)
	case allowed:
		y.granted[key].Add(1)
	}
}

func sum(counts map[string]*atomic.Int64) (n int64) {
	for _, c := range counts {
		n += c.Load()
	}
	return n
}

// exact checks that each key was charged once for each grant, and for nothing else.
func (y *tally) exact(t testing.TB, l *dipwell.Limiter, limit string, burst int64) {
	t.Helper()
	for _, key := range y.keys {
		if gone := burst - left(t, l, limit, key); gone != y.granted[key].Load() || y.unknown[key].Load() > 0 {
			t.Errorf("%s of %s: %d granted and %d unknown, and %d are gone", key, limit, y.granted[key].Load(), y.unknown[key].Load(), gone)
		}
	}
	t.Logf("%s: %d granted, %d failed", limit, sum(y.granted), sum(y.failed))
}

// batch asks one token of each key in one batch.
func (y *tally) batch(s store.Store, l *dipwell.Limiter, limit string) {
	var b store.Batch
	for _, key := range y.keys {
		b.Groups = append(b.Groups, take(l, limit, key))
	}
	whole := s.Apply(context.Background(), &b)
	for i := range b.Groups {
		g := &b.Groups[i]
		y.count(y.keys[i], g.Allowed, errors.Join(whole, g.Err))
	}
}
