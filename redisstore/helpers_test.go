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
	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

const (
	testTimeout = time.Minute     // bounds how long a test waits for a condition; servers are slow on a busy machine
	slack       = 3 * time.Second // how long a call may exceed its timeout, on a machine without delays
)

// lateness measures how late this process is scheduled. A test with a time
// limit for a call allows slack plus the delay measured during the call.
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

// slack ends the measurement, and returns how long a call may exceed its
// timeout.
func (w *lateness) slack() time.Duration {
	close(w.stop)
	<-w.done
	return slack + 4*time.Duration(w.worst.Load()) // a call is woken up several times
}

// long reports whether the tests run in their long form: DIPWELL_LONG=1.
func long() bool { return os.Getenv("DIPWELL_LONG") == "1" }

// rounds returns n, or ten times n in the long form.
func rounds(n int) int {
	if long() {
		return 10 * n
	}
	return n
}

// eventually polls until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(testTimeout)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not %s after %v", what, testTimeout)
		}
	}
}

// drained returns a limit that refills too slowly for a whole token in a test.
func drained(name string, burst int64) store.Limit {
	return store.Limit{Name: name, Rate: 1, Period: time.Hour, Burst: burst}
}

// openURL opens a store by URL, with a limiter on it.
func openURL(t testing.TB, url string, c redisstore.Config, limits ...store.Limit) (*redisstore.Store, *dipwell.Limiter) {
	t.Helper()
	s, err := redisstore.Open(context.Background(), patient(url), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, limiter(t, s, limits...)
}

// do sends a command, which must succeed.
func do(t testing.TB, s *redistest.Server, args ...any) any {
	t.Helper()
	v, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

// left returns the tokens that a key has left.
func left(t testing.TB, l *dipwell.Limiter, limit, key string) int64 {
	t.Helper()
	var d dipwell.Decision
	retryUntil(t, testTimeout, func() (err error) { d, err = l.Check(context.Background(), limit, key, 0); return err })
	return d.Remaining
}

// load makes calls in a loop from several goroutines until end is called, and
// counts the results.
type load struct {
	calls, granted, refused, open, failed, unknown atomic.Int64
	slowest, first, last                           atomic.Int64 // ns: longest call; first and last error since the epoch

	unexpected atomic.Pointer[error] // an error that the fault does not explain
	late       *lateness
	slack      time.Duration // set by end: how long calls may exceed their timeout
	stop       chan struct{}
	wg         sync.WaitGroup
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
					_ = background.Sleep(context.Background(), time.Millisecond) // as a refused caller would wait
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
		o.unexpected.Store(&err)
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
	if err := o.unexpected.Load(); err != nil {
		t.Errorf("an error of no class: %v", *err)
	}
}

// awaitGrants waits until n more calls were granted.
func (o *load) awaitGrants(t testing.TB, n int64) {
	t.Helper()
	goal := o.granted.Load() + n
	eventually(t, "granted", func() bool { return o.granted.Load() >= goal })
}

// checkTimes checks, after end, that each call was answered in time.
func (o *load) checkTimes(t testing.TB, timeout time.Duration) {
	t.Helper()
	if slowest := time.Duration(o.slowest.Load()); slowest > timeout+o.slack {
		t.Errorf("a call took %v, and has %v", slowest, timeout)
	}
}

// lastFailure returns the time from since to the last failed call.
func (o *load) lastFailure(since time.Time) time.Duration {
	if o.last.Load() == 0 {
		return 0
	}
	return time.Unix(0, o.last.Load()).Sub(since)
}

// checkCharged checks that the tokens granted, plus those of unknown outcome,
// are those missing.
func (o *load) checkCharged(t testing.TB, gone int64) {
	t.Helper()
	granted, unknown := o.granted.Load(), o.unknown.Load()
	t.Logf("%d granted, %d refused, %d open, %d failed, %d unknown; %d are gone; the slowest call took %v",
		granted, o.refused.Load(), o.open.Load(), o.failed.Load(), unknown, gone, time.Duration(o.slowest.Load()))
	if granted > gone || granted+unknown < gone {
		t.Errorf("%d granted and %d unknown, but %d are gone", granted, unknown, gone)
	}
}

// A proxy between a client and a server that can cut connections.
type proxy struct {
	net.Listener
	server string
	cut    atomic.Int32 // what to do with the connection of the next script call
}

const (
	cutBefore = 1 + iota // the server does not get the call
	cutAfter             // the server executes the call, but the answer is lost
	cutMiddle            // the same, and the client gets the first byte of the answer and then a reset
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
			go p.forward(c)
		}
	}()
	return p
}

func (p *proxy) port() int { return p.Addr().(*net.TCPAddr).Port }

func (p *proxy) forward(client net.Conn) {
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
			return // the answer has arrived, so the call was executed
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

// take returns a take of one token as a group of a batch.
func take(l *dipwell.Limiter, limit, key string) store.Group {
	return store.Group{Ops: []store.Op{{Def: l.Limit(limit), Key: key, Verb: store.VerbTake, Cost: 1}}}
}

// tally counts the results of several kinds of calls for some keys of one
// limit.
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

// checkExact checks that each key was charged once for each grant, and for
// nothing else.
func (y *tally) checkExact(t testing.TB, l *dipwell.Limiter, limit string, burst int64) {
	t.Helper()
	for _, key := range y.keys {
		if gone := burst - left(t, l, limit, key); gone != y.granted[key].Load() || y.unknown[key].Load() > 0 {
			t.Errorf("%s of %s: %d granted and %d unknown, and %d are gone", key, limit, y.granted[key].Load(), y.unknown[key].Load(), gone)
		}
	}
	t.Logf("%s: %d granted, %d failed", limit, sum(y.granted), sum(y.failed))
}

// batch takes one token of each key in one batch.
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
