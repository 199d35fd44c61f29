package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// drained returns a limit that refills too slowly to matter in a test.
func drained(name string, burst int64) store.Limit {
	return store.Limit{Name: name, Rate: 1, Period: 24 * time.Hour, Burst: burst}
}

// openURL opens a store by URL, with a limiter on it.
func openURL(t testing.TB, url string, limits ...store.Limit) (*pgstore.Store, *dipwell.Limiter) {
	t.Helper()
	return openPolling(t, url, 50*time.Millisecond, limits...)
}

func openPolling(t testing.TB, url string, poll time.Duration, limits ...store.Limit) (*pgstore.Store, *dipwell.Limiter) {
	t.Helper()
	s, err := pgstore.Open(context.Background(), url, pgstore.Config{Lazy: true, Poll: poll})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := dipwell.New(s, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// ownServer starts a server with the schema that the test may break.
func ownServer(t testing.TB, settings ...string) *pgtest.Server {
	t.Helper()
	return ownServerAs(t, pgstore.MigrateOptions{}, settings...)
}

func ownServerAs(t testing.TB, o pgstore.MigrateOptions, settings ...string) *pgtest.Server {
	t.Helper()
	server := pgtest.Start(t, settings...)
	if err := migratedAs(server.DSN("postgres"), o); err != nil {
		t.Fatal(err)
	}
	return server
}

// load takes tokens one by one from many goroutines until end is called.
type load struct {
	granted, refused, failed, unknown atomic.Int64

	stop chan struct{}
	wg   sync.WaitGroup
}

func startLoad(l *dipwell.Limiter, limit, key string, workers int) *load {
	o := &load{stop: make(chan struct{})}
	for range workers {
		o.wg.Go(func() {
			for {
				select {
				case <-o.stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				o.count(l.Take(ctx, limit, key, 1))
				cancel()
			}
		})
	}
	return o
}

func (o *load) count(d dipwell.Decision, err error) {
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		o.unknown.Add(1)
	case err != nil:
		o.failed.Add(1)
		runtime.Gosched()
	case d.Allowed:
		o.granted.Add(1)
	default:
		o.refused.Add(1)
	}
}

func (o *load) end() {
	close(o.stop)
	o.wg.Wait()
}

// checkGranted checks that the tokens granted, plus those of unknown outcome,
// are those missing.
func (o *load) checkGranted(t *testing.T, l *dipwell.Limiter, limit, key string, burst int64) {
	t.Helper()
	d, err := l.Check(context.Background(), limit, key, 1)
	if err != nil {
		t.Fatal(err)
	}
	granted, unknown := o.granted.Load(), o.unknown.Load()
	t.Logf("%d granted, %d refused, %d failed, %d unknown; %d left", granted, o.refused.Load(), o.failed.Load(), unknown, d.Remaining)
	if gone := burst - d.Remaining; granted > gone || granted+unknown < gone {
		t.Errorf("%d granted and %d unknown, but %d are gone", granted, unknown, gone)
	}
}

// TestCrash kills a server under load and restarts it. No more may have been
// granted than the limit allows, and the same store must continue.
func TestCrash(t *testing.T) {
	t.Parallel()
	const burst = 4000
	server := ownServer(t, "fsync=off") // the processes die, not the machine
	_, l := openURL(t, server.DSN("postgres"), drained("crash", burst))
	o := startLoad(l, "crash", "k", 8)
	eventually(t, "under load", func() bool { return o.granted.Load() > 200 })
	if err := server.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	server.Wait()
	eventually(t, "calls that failed", func() bool { return o.failed.Load() > 0 })
	before := o.granted.Load()
	eventually(t, "started again", func() bool { return server.Start() == nil })
	eventually(t, "recovered", func() bool { return o.granted.Load() > before+200 || o.refused.Load() > 0 })
	o.end()
	o.checkGranted(t, l, "crash", "k", burst)
}

// TestHung checks that while a server hangs every call is answered by its
// failure mode in time, goroutines do not pile up, and the store recovers.
func TestHung(t *testing.T) {
	server := ownServer(t, "fsync=off")
	limit := func(name string, f store.FailureMode) store.Limit {
		l := drained(name, 10000)
		l.Timeout, l.OnStoreError = 50*time.Millisecond, f
		return l
	}
	_, l := openURL(t, server.DSN("postgres")+"&pool_max_conns=8", limit("closed", store.FailClosed), limit("open", store.FailOpen))
	ctx := context.Background()
	for _, name := range []string{"closed", "open"} {
		eventually(t, "a first decision", func() bool { d, _ := l.Take(ctx, name, "k", 1); return d.Source == store.SourceStore })
	}
	before := runtime.NumGoroutine()
	if err := server.SignalAll(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const workers, calls = 40, 10
	var most atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range calls {
				name := []string{"closed", "open"}[w%2]
				d, err := l.Take(ctx, name, "k", 1)
				if name == "open" && (err != nil || d.Source != store.SourceFallbackOpen) {
					t.Errorf("open: %+v, %v", d, err)
				}
				if name == "closed" && (!errors.Is(err, store.ErrStore) || d.Allowed) {
					t.Errorf("closed: %+v, %v", d, err)
				}
				most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			}
		})
	}
	wg.Wait()
	t.Logf("goroutines: %d before, %d at most", before, most.Load())
	if bound := before + workers + 10*8; most.Load() > int64(bound) {
		t.Errorf("%d goroutines, not at most %d", most.Load(), bound)
	}
	if err := server.SignalAll(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "recovered", func() bool {
		d, err := l.Take(ctx, "closed", "k", 1)
		return err == nil && d.Source == store.SourceStore
	})
}

// A proxy between a client and a server that can cut connections.
type proxy struct {
	net.Listener
	server string
	cut    atomic.Int32 // cutBefore or cutAfter: what to do with the next request
	only   string       // if the request contains this text

	dropNotifications bool // drop notifications
	swallowed         atomic.Int32
}

const (
	cutBefore = 1 + iota // the server does not get the request
	cutAfter             // the server executes the request, but the answer is lost
)

func newProxy(t testing.TB, server *pgtest.Server) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &proxy{Listener: l, server: fmt.Sprintf("127.0.0.1:%d", server.Port)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.forward(c)
		}
	}()
	return p
}

func (p *proxy) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var lost atomic.Bool
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				break
			}
			var cut int32
			// A pool pings a connection that nobody used for a second, on a busy machine.
			if bytes.Contains(buf[:n], []byte(p.only)) && !bytes.Contains(buf[:n], []byte("-- ping")) {
				cut = p.cut.Swap(0)
			}
			if cut == cutBefore {
				break
			}
			lost.Store(cut == cutAfter)
			if _, err = server.Write(buf[:n]); err != nil {
				break
			}
		}
		_ = client.Close()
		_ = server.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || lost.Load() {
			return // the answer has arrived, so the request was executed
		}
		if p.dropNotifications && buf[0] == 'A' { // NotificationResponse to an idle client
			p.swallowed.Add(1)
			continue
		}
		if _, err = client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// TestCut checks that a call whose connection is cut during a statement returns
// ErrOutcomeUnknown and is not repeated.
func TestCut(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "fsync=off")
	p := newProxy(t, server)
	config, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&pool_max_conns=1", p.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("cut", 100), drained("other", 100))
	if err != nil {
		t.Fatal(err)
	}
	near, err := dipwell.New(newStore(t, connect(t, server.DSN("postgres")), pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	left := func() int64 {
		d, err := near.Check(ctx, "cut", "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	calls := map[string]func() (dipwell.Decision, error){
		"take":   func() (dipwell.Decision, error) { return l.Take(ctx, "cut", "k", 1) },
		"charge": func() (dipwell.Decision, error) { return l.Charge(ctx, "cut", "k", 1) },
		"take all": func() (dipwell.Decision, error) {
			return l.TakeAll(ctx, dipwell.Take{Limit: "cut", Key: "k", Cost: 1}, dipwell.Take{Limit: "other", Key: "k", Cost: 1})
		},
	}
	for name, call := range calls {
		for cut, cost := range map[int32]int64{cutBefore: 0, cutAfter: 1} {
			for range 2 { // in the second round the statement is prepared
				if d, err := call(); err != nil || !d.Allowed {
					t.Fatalf("%s: %+v, %v", name, d, err)
				}
			}
			was := left()
			p.cut.Store(cut)
			d, err := call()
			if !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
				t.Errorf("%s cut (%d): %+v, %v", name, cut, d, err)
			}
			eventually(t, "done by the server", func() bool { return left() == was-cost })
			if d, err := call(); err != nil || !d.Allowed || left() != was-cost-1 {
				t.Errorf("%s after a cut (%d): %+v, %v, %d left of %d", name, cut, d, err, left(), was)
			}
		}
	}
}

// TestPortableCut checks that a cut during a single-statement take, or during a
// commit, leaves the outcome unknown, and that a cut before the commit does
// not.
func TestPortableCut(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "fsync=off")
	if err := migratedFor(server.DSN("postgres"), "Portable"); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, c := range []struct {
		only    string
		cut     int32
		verb    store.Verb
		unknown bool
		gone    int64
	}{
		{"", cutBefore, store.VerbTake, true, 0}, {"", cutAfter, store.VerbTake, true, 1},
		{"commit", cutBefore, store.VerbCharge, true, 0}, {"commit", cutAfter, store.VerbCharge, true, 1},
		{"begin", cutAfter, store.VerbCharge, false, 0},
	} {
		name := fmt.Sprint(c.verb, c.cut, c.only)
		p := newProxy(t, server)
		p.only = c.only
		_, l := openPolling(t, fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable&pool_max_conns=1", p.Addr()), -1, // without polling, which could be cut instead
			drained(name, 100))
		_, near := openURL(t, server.DSN("postgres"), drained(name, 100))
		var d dipwell.Decision
		for range 2 {
			if err := l.Do(ctx, &d, c.verb, dipwell.Take{Limit: name, Key: "k", Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		p.cut.Store(c.cut)
		err := l.Do(ctx, &d, c.verb, dipwell.Take{Limit: name, Key: "k", Cost: 1})
		if !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) != c.unknown {
			t.Errorf("%s: %v", name, err)
		}
		eventually(t, "done by the server", func() bool {
			d, err := near.Check(ctx, name, "k", 1)
			return err == nil && d.Remaining == 98-c.gone
		})
	}
}

// TestPoolExhausted checks that a call that gets no connection was never sent.
func TestPoolExhausted(t *testing.T) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(pgtest.Database(t, "dipwell", migrated) + "&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	limit := drained("busy", 5)
	limit.Timeout = 20 * time.Millisecond
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), limit)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if d, err := l.Take(ctx, "busy", "k", 1); !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
			t.Errorf("without a connection: %+v, %v", d, err)
		}
	}
	conn.Release()
	eventually(t, "free again", func() bool { // a check, because a take that timed out may have charged
		d, err := l.Check(ctx, "busy", "k", 5)
		return err == nil && d.Allowed
	})
}

// lockBuckets locks all buckets until the returned function is called.
func lockBuckets(t *testing.T, pool *pgxpool.Pool) func() {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tx.Exec(context.Background(), "select from dipwell.buckets for update"); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}

// TestStatementTimeout checks that a statement cancelled by statement_timeout
// charged nothing.
func TestStatementTimeout(t *testing.T) {
	ctx := context.Background()
	dsn := pgtest.Database(t, "dipwell", migrated)
	admin, only := connect(t, dsn), connect(t, dsn+"&pool_max_conns=1")
	l, err := dipwell.New(newStore(t, only, pgstore.Config{Poll: -1}), drained("slow", 5))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Take(ctx, "slow", "k", 1); err != nil {
		t.Fatal(err)
	}
	unlock := lockBuckets(t, admin)
	must(t, only, "set statement_timeout = 50")
	var pg *pgconn.PgError
	if _, err = l.Take(ctx, "slow", "k", 1); !errors.As(err, &pg) || pg.Code != "57014" || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("behind a lock: %v", err)
	}
	unlock()
	must(t, only, "set statement_timeout = 0") // other statements may be slow
	if d, err := l.Take(ctx, "slow", "k", 1); err != nil || d.Remaining != 3 {
		t.Errorf("afterwards: %+v, %v", d, err)
	}
}

// TestCancelled checks that a caller whose context ends during a statement
// leaves no busy connection in the pool or on the server.
func TestCancelled(t *testing.T) {
	dsn := pgtest.Database(t, "dipwell", migrated)
	admin, pool := connect(t, dsn), connect(t, dsn+"&application_name=cancelled")
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), drained("gone", 5))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Take(context.Background(), "gone", "k", 1); err != nil {
		t.Fatal(err)
	}
	defer lockBuckets(t, admin)()
	busy := func() (n int) {
		if err := admin.QueryRow(context.Background(), "select count(*) from pg_stat_activity where application_name = 'cancelled' and state <> 'idle'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := l.Take(ctx, "gone", "k", 1); !errors.Is(err, context.Canceled) || !errors.Is(err, store.ErrOutcomeUnknown) {
				t.Errorf("cancelled: %v", err)
			}
		})
	}
	eventually(t, "waiting for the lock", func() bool { // a new connection may not have sent the call yet
		var n int
		if err := admin.QueryRow(context.Background(), "select count(*) from pg_stat_activity where application_name = 'cancelled' and wait_event_type = 'Lock'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 5
	})
	cancel()
	wg.Wait()
	eventually(t, "free in the pool", func() bool { return pool.Stat().AcquiredConns() == 0 })
	eventually(t, "idle on the server", func() bool { return busy() == 0 })
}

// TestFailover checks that a read-only standby decides nothing and that, after
// it was promoted, a store with both servers in its URL uses it, without
// granting too much.
func TestFailover(t *testing.T) {
	t.Parallel()
	const burst = 4000
	ctx := context.Background()
	primary := ownServer(t, "fsync=off")
	standby := pgtest.Standby(t, primary)
	admin, there := connect(t, primary.DSN("postgres")), connect(t, standby.DSN("postgres"))
	must(t, admin, "alter system set synchronous_standby_names = '*'")
	must(t, admin, "select pg_reload_conf()")
	eventually(t, "a synchronous standby", func() (ok bool) { // from now on an answered commit is on both servers
		return admin.QueryRow(ctx, "select exists (select from pg_stat_replication where sync_state = 'sync')").Scan(&ok) == nil && ok
	})

	_, l := openURL(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write", primary.Port, standby.Port), drained("fail", burst))
	if _, err := l.Take(ctx, "fail", "other", 1); err != nil {
		t.Fatal(err)
	}
	o := startLoad(l, "fail", "k", 4)
	eventually(t, "under load", func() bool { return o.granted.Load() > 200 })
	eventually(t, "replicated", func() (ok bool) {
		return there.QueryRow(ctx, "select exists (select from dipwell.limits where name = 'fail')").Scan(&ok) == nil && ok
	})
	reader, err := dipwell.New(newStore(t, there, pgstore.Config{Poll: -1}))
	if err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if _, err := reader.Take(ctx, "fail", "other", 1); !errors.As(err, &pg) || pg.Code != "25006" || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("on a standby: %v", err)
	}
	if d, err := reader.Check(ctx, "fail", "other", 1); err != nil || !d.Allowed {
		t.Errorf("a check on a standby: %+v, %v", d, err)
	}

	if err := primary.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	primary.Wait()
	before := o.granted.Load()
	must(t, there, "select pg_promote()")
	eventually(t, "recovered", func() bool { return o.granted.Load() > before+200 || o.refused.Load() > 0 })
	o.end()
	o.checkGranted(t, reader, "fail", "k", burst)
}

// TestSweepUnderLoad sweeps 10,000 keys while they are in use. Each must grant
// exactly what it has.
func TestSweepUnderLoad(t *testing.T) {
	t.Parallel()
	const keys, burst = 10000, 5
	ctx := context.Background()
	s := newStore(t, newPool(t), pgstore.Config{Poll: -1})
	slow, err := s.Define(ctx, drained("slow", burst), store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	fast, err := s.Define(ctx, store.Limit{Name: "fast", Rate: 1000, Period: time.Second, Burst: 1000}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var swept atomic.Int64
	var sweepers, takers sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for {
				n, err := store.AbilitiesOf(s).Sweep(ctx, 2000)
				if err != nil {
					t.Error(err)
				}
				swept.Add(int64(n))
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	var granted atomic.Int64
	for w := range 4 {
		takers.Go(func() {
			for round := range burst + 2 {
				if round%4 != w%2 && round >= burst { // two of the four callers ask for too much
					continue
				}
				for from := w * keys / 4; from < (w+1)*keys/4; from += 500 {
					var b store.Batch
					for k := from; k < from+500; k++ {
						for _, d := range []*store.Definition{slow, fast} {
							b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: fmt.Sprint("k", k), Verb: store.VerbTake, Cost: 1}}})
						}
					}
					if err := s.Apply(ctx, &b); err != nil {
						t.Error(err)
					}
					for i := range b.Groups {
						g := &b.Groups[i]
						if g.Err != nil {
							t.Error(g.Err)
						}
						if g.Allowed && g.Ops[0].Def.Name == "slow" {
							granted.Add(1)
						}
					}
				}
			}
		})
	}
	takers.Wait()
	close(done)
	sweepers.Wait()
	if granted.Load() != keys*burst {
		t.Errorf("%d granted, not %d", granted.Load(), keys*burst)
	}
	eventually(t, "swept clean", func() bool {
		n, err := store.AbilitiesOf(s).Sweep(ctx, 20000)
		if err != nil {
			t.Fatal(err)
		}
		return swept.Add(int64(n)) >= keys
	})
}

// TestLocalStartsFromKnown checks that a limit decided in memory while the
// server is down starts from the last state of each key that this process saw.
func TestLocalStartsFromKnown(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "fsync=off")
	limit := drained("local", 10)
	limit.OnStoreError, limit.Timeout = store.FailLocal, 5*time.Second
	s, err := pgstore.Open(context.Background(), server.DSN("postgres"), pgstore.Config{Lazy: true, Poll: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f, err := away.NewFallback(s, away.FallbackConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	l, err := dipwell.New(f, limit)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for key, n := range map[string]int64{"seven": 7, "ten": 10} {
		if d, err := l.Take(ctx, "local", key, n); err != nil || !d.Allowed || d.Source != store.SourceStore {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	for range 4 { // one by one, and into debt, so that several statements decide
		if _, err := l.Charge(ctx, "local", "charged", 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	server.Wait()
	for key, want := range map[string]int64{"seven": 3, "ten": 0, "charged": 2, "new": 10} {
		d, err := l.TakeUpTo(ctx, "local", key, 100)
		if err != nil || d.Granted != want || d.Source != store.SourceFallbackLocal {
			t.Errorf("%s: %d granted, not %d; %+v, %v", key, d.Granted, want, d, err)
		}
	}
}

// TestCrashUnlogged checks that after a crash keys in unlogged tables are full
// and their reservations gone, limits remain, and the store recovers.
func TestCrashUnlogged(t *testing.T) {
	t.Parallel()
	const burst = 5
	server := pgtest.Start(t, "fsync=off")
	if err := migratedAs(server.DSN("postgres"), pgstore.MigrateOptions{Tables: "unlogged"}); err != nil {
		t.Fatal(err)
	}
	_, l := openURL(t, server.DSN("postgres"), drained("crash", burst))
	ctx := context.Background()
	if d, err := l.Take(ctx, "crash", "k", burst); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	held, err := l.Reserve(ctx, "crash", "k", 1)
	if err != nil || !held.Allowed {
		t.Fatalf("%+v, %v", held, err)
	}
	if err := server.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	server.Wait()
	eventually(t, "started again", func() bool { return server.Start() == nil })
	eventually(t, "recovered", func() bool {
		d, err := l.Check(ctx, "crash", "k", burst)
		if err == nil && !d.Allowed {
			t.Fatalf("after the crash: %+v", d)
		}
		return err == nil && d.Source == store.SourceStore
	})
	eventually(t, "forgotten", func() bool { // the pool may have another dead connection
		err := l.Cancel(ctx, held.Reservation)
		if err == nil {
			t.Fatal("a reservation of before was cancelled")
		}
		return errors.Is(err, store.ErrReservation)
	})
}
