package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// BenchCmd measures a store from this machine.
type BenchCmd struct {
	Store         string        `placeholder:"URL" env:"DIPWELL_STORE" help:"Store to measure (default memory:)."`
	KeySecretFile string        `placeholder:"FILE" env:"DIPWELL_KEY_SECRET_FILE" help:"Hash keys as the service does, under the secret in this file; or set DIPWELL_KEY_SECRET."`
	Clients       int           `default:"64" placeholder:"N" help:"Concurrent clients, each without a pause between calls: 1 to 4096. Default 64."`
	Keys          int           `default:"10000" placeholder:"N" help:"Number of keys; each call uses a random one: 1 to 1000000. Default 10000."`
	Time          time.Duration `default:"5s" placeholder:"DURATION" help:"How long to measure, 10ms to 1h. Default 5s."`
	Cost          int64         `default:"1" placeholder:"N" help:"Tokens of a call, 1 to 1000000. Default 1."`
	Single        bool          `help:"Send each call separately. By default waiting calls are coalesced, as in serve."`
	JSON          bool          `name:"json" help:"Print the report as JSON."`
}

func (BenchCmd) Help() string {
	return `Examples:
  dipwell bench
  dipwell bench --store postgres://dipwell@db/shop --time 30s
  dipwell bench --store redis://cache:6379 --clients 1 --single

It takes tokens of a limit of its own, dipwell-bench-…, which allows every call,
and removes that limit and its buckets at the end, also on Ctrl-C and when the
terminal is closed. It puts full load on the store. Exit status: 0 measured,
1 calls failed or something could not be removed, 2 it could not measure.`
}

const (
	benchName       = "dipwell-bench-"
	maxBenchClients = 4096
	maxBenchKeys    = 1_000_000 // each may have a bucket to remove at the end
	minBenchTime    = 10 * time.Millisecond
	maxBenchTime    = time.Hour
	maxBenchCost    = 1_000_000
	singleConns     = 16                    // PostgreSQL connections with --single, unless the URL has pool_max_conns
	benchWarmUp     = 10                    // calls of each client before measuring, for connections, prepared statements and plans
	benchGrace      = 10 * time.Second      // for calls in flight at the end
	benchPause      = 10 * time.Millisecond // after a failed call, to spare a store in trouble
	benchCleanUp    = 30 * time.Second      // plus benchCleanUpKey for each key
	benchCleanUpKey = 500 * time.Microsecond
)

func (c *BenchCmd) check() error {
	for _, f := range []struct {
		name    string
		n, most int64
	}{{"clients", int64(c.Clients), maxBenchClients}, {"keys", int64(c.Keys), maxBenchKeys}, {"cost", c.Cost, maxBenchCost}} {
		if f.n < 1 || f.n > f.most {
			return fmt.Errorf("%s: %d is not between 1 and %d", f.name, f.n, f.most)
		}
	}
	if c.Time < minBenchTime || c.Time > maxBenchTime {
		return fmt.Errorf("time: %v is not between %v and %v", c.Time, minBenchTime, maxBenchTime)
	}
	return knownStore(c.Store)
}

// limit returns a limit that allows ten million calls a second of one key, or as
// many as 2^53 allows. Tokens come back as late as possible, within a minute, so
// that calls find used buckets, as with real limits.
func (c *BenchCmd) limit(name string) dipwell.Limit {
	const most, perSecond = 8_000_000_000, 10_000_000 // calls × seconds that fit in 2^53
	rate := int64(1)
	for rate < c.Cost {
		rate *= 10
	}
	per := min(max(int64(most/(perSecond*c.Time.Seconds())), 1), 60)
	return dipwell.Limit{Name: name, Rate: rate, Period: time.Duration(per) * time.Second, Burst: most / per * rate, MaxDebt: dipwell.NoDebt, MaxCharge: 1}
}

// benchReport is what --json prints.
type benchReport struct {
	Version     string       `json:"version"`
	Store       string       `json:"store"`
	Sent        string       `json:"sent"`            // single or coalesced
	Lanes       int          `json:"lanes,omitempty"` // concurrent batches, or calls with --single; absent if equal to clients
	PerBatch    float64      `json:"calls_per_batch,omitempty"`
	Clients     int          `json:"clients"`
	Keys        int          `json:"keys"`
	Cost        int64        `json:"cost"`
	Seconds     float64      `json:"seconds"`
	Interrupted bool         `json:"interrupted"`
	Decisions   uint64       `json:"decisions"`
	PerSecond   float64      `json:"decisions_per_second"`
	Latency     benchLatency `json:"latency_us"`
	Failed      uint64       `json:"failed"`          // calls that are not counted in decisions
	Error       string       `json:"error,omitempty"` // of one of them
	Limit       string       `json:"limit"`
	Left        []finding    `json:"left"` // what could not be removed
}

type benchLatency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func (c *BenchCmd) Run(e *env) (err error) {
	c.Store = cmp.Or(c.Store, "memory:")
	if err = c.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(e.ctx, syscall.SIGHUP) // when the terminal is closed, like Ctrl-C
	defer stop()
	here := *e
	here.ctx, e = ctx, &here
	b := &bench{BenchCmd: c, env: e, touched: make([]atomic.Bool, c.Keys), tally: newTally(nil)}
	s, err := b.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	report, err := b.measure()
	if err != nil {
		return err
	}
	if c.JSON {
		err = json.NewEncoder(e.stdout).Encode(report)
	} else {
		err = report.print(e.stdout)
	}
	if err == nil && (report.Failed > 0 || len(report.Left) > 0) {
		err = errRefused
	}
	return err
}

// bench is a running benchmark.
type bench struct {
	*BenchCmd
	env       *env
	limiter   *dipwell.Limiter
	name      string
	lanes     int
	tally     *tally
	coalesced bool
	keys      []string
	touched   []atomic.Bool // keys that may have a row
	clients   []*benchClient
	stop      atomic.Bool
	heard     atomic.Pointer[error] // last error that the store reported outside a call
}

func (b *bench) hear(err error) { b.heard.Store(&err) }

// open opens the store like serve, with --single without coalescing.
func (b *bench) open() (*opened, error) {
	secret, err := keySecret(b.KeySecretFile, b.KeySecretFile != "")
	if err != nil {
		return nil, err
	}
	o := storeOptions{denyMaxAge: -1, keySecret: secret, tally: b.tally, report: b.hear}
	switch scheme, _, _ := strings.Cut(b.Store, ":"); {
	case scheme == "memory" || scheme == "file" || !b.Single:
	case strings.HasPrefix(scheme, "redis"):
		o.once = true
	default:
		o.once = true
		if b.lanes, err = b.connections(); err != nil {
			return nil, err
		}
		o.single = int32(b.lanes)
	}
	s, err := openStore(b.env.ctx, b.Store, o)
	if err != nil {
		return nil, err
	}
	b.coalesced = s.Lanes > 0
	b.lanes = max(b.lanes, s.Lanes)
	if b.limiter, err = dipwell.New(s.Store); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// connections is how many PostgreSQL gets with a statement for each call.
// pool_max_conns in the URL replaces singleConns.
func (b *bench) connections() (int, error) {
	config, err := pgstore.ParseURL(b.Store)
	if err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	if strings.Contains(config.ConnString(), "pool_max_conns") {
		return min(b.Clients, int(config.MaxConns)), nil
	}
	return min(b.Clients, singleConns), nil
}

// measure defines the limit, runs the load, and removes what it has made.
func (b *bench) measure() (r *benchReport, err error) {
	if err = b.define(); err != nil {
		return nil, err
	}
	r = &benchReport{Version: version(), Store: b.where(), Sent: "single", Lanes: b.lanes, Clients: b.Clients, Keys: b.Keys, Cost: b.Cost, Limit: b.name, Left: []finding{}}
	if b.coalesced {
		r.Sent = "coalesced"
	}
	err = b.load(r)
	if r.Left = append(r.Left, b.cleanUp()...); err != nil {
		for _, f := range r.Left { // there is no report
			fmt.Fprintf(b.env.stderr, "dipwell: %s; %s\n", plain(f.Found), f.Advice)
		}
	}
	return r, err
}

// where returns the URL of the store without secrets.
func (b *bench) where() string {
	url, _, _ := strings.Cut(redact(b.Store), "?")
	return url
}

// define defines the limit under an unused name. Its owner is the API, so that a
// limit left behind can be removed through any service on the store.
func (b *bench) define() error {
	ctx, cancel := context.WithTimeout(b.env.ctx, defineTimeout)
	defer cancel()
	for b.name == "" || b.limiter.Limit(b.name) != nil {
		var random [2]byte // few, because stores may remember names for ever
		_, _ = rand.Read(random[:])
		b.name = benchName + fmt.Sprintf("%x", random)
	}
	b.keys = make([]string, b.Keys)
	for i := range b.keys {
		b.keys[i] = "user:" + strconv.Itoa(i)
	}
	if _, err := b.limiter.Define(ctx, b.limit(b.name), terms.OwnerAPI); err != nil {
		if errors.Is(err, store.ErrOutcomeUnknown) || ctx.Err() != nil {
			return fmt.Errorf("%w; the limit %s may have been left behind", err, b.name)
		}
		if why := b.heard.Load(); why != nil && errors.Is(err, dipwell.ErrStore) {
			return fmt.Errorf("%w: %w", err, *why)
		}
		return err
	}
	return nil
}

// load runs the load and fills in the report.
func (b *bench) load(r *benchReport) error {
	calls, cancel := context.WithCancel(context.WithoutCancel(b.env.ctx)) // calls in flight may finish
	defer cancel()
	b.clients = make([]*benchClient, b.Clients)
	for i := range b.clients {
		b.clients[i] = &benchClient{bench: b, random: mathrand.New(mathrand.NewPCG(uint64(i), mathrand.Uint64()))}
	}
	halt := func() {
		b.stop.Store(true)
		time.AfterFunc(benchGrace, cancel)
	}
	defer context.AfterFunc(b.env.ctx, halt)()
	if err := b.eachClient(func(c *benchClient) error { return c.warm(calls) }); err != nil {
		return err
	}
	if b.stop.Load() {
		return errors.New("interrupted before anything was measured")
	}
	batches, coalesced := b.sent()
	start := time.Now()
	timer := time.AfterFunc(b.Time, halt)
	defer timer.Stop()
	hide := b.progress(start)
	_ = b.eachClient(func(c *benchClient) error { c.call(calls, start); return nil })
	took := time.Since(start)
	hide()
	var times bounded.Histogram
	for _, c := range b.clients {
		times.Add(&c.times)
		if r.Failed += c.failed.Load(); c.err != nil {
			r.Error = c.err.Error()
		}
	}
	if n, calls := b.sent(); n > batches {
		r.PerBatch = float64(calls-coalesced) / float64(n-batches)
	}
	r.Seconds, r.Interrupted = took.Seconds(), b.env.ctx.Err() != nil
	r.Decisions, r.PerSecond = uint64(times.Count), float64(times.Count)/took.Seconds()
	r.Latency = benchLatency{times.Percentile(50), times.Percentile(90), times.Percentile(99), bounded.Micro(times.Most)}
	return nil
}

// sent returns how many calls have been coalesced, in how many batches.
func (b *bench) sent() (batches, calls uint64) { return b.tally.batches.Load(), b.tally.calls.Load() }

// eachClient calls do for all clients concurrently. It returns the first error.
func (b *bench) eachClient(do func(*benchClient) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(b.clients))
	for i, c := range b.clients {
		wg.Go(func() { errs[i] = do(c) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// benchClient calls the store without a pause.
type benchClient struct {
	*bench
	random   *mathrand.Rand
	decision dipwell.Decision
	times    bounded.Histogram
	err      error         // of a call that failed
	done     atomic.Uint64 // for the progress line
	failed   atomic.Uint64
}

var errNotAdmitted = errors.New("refused, although the limit should allow every call")

func (c *benchClient) take(ctx context.Context) error {
	i := c.random.IntN(len(c.keys))
	if !c.touched[i].Load() { // a write at each call would contend for the cache line
		c.touched[i].Store(true)
	}
	d := &c.decision
	err := c.limiter.Do(ctx, d, store.VerbTake, dipwell.Take{Limit: c.name, Key: c.keys[i], Cost: c.Cost})
	switch {
	case err != nil:
		return err
	case !d.Allowed:
		return errNotAdmitted
	case d.Source != store.SourceStore:
		return fmt.Errorf("%w: the answer is %v", dipwell.ErrStore, d.Source)
	}
	return nil
}

func (c *benchClient) warm(ctx context.Context) error {
	for range benchWarmUp {
		if c.stop.Load() {
			return nil
		}
		if err := c.take(ctx); err != nil {
			return err
		}
	}
	return nil
}

// call runs the load of a client. It reads the clock once per call: a call lasts
// from the end of the previous one.
func (c *benchClient) call(ctx context.Context, start time.Time) {
	last := time.Since(start)
	for !c.stop.Load() {
		if err := c.take(ctx); err != nil {
			c.err = err
			c.failed.Add(1)
			time.Sleep(benchPause)
			last = time.Since(start)
			continue
		}
		now := time.Since(start)
		c.times.Record(now - last)
		c.done.Store(uint64(c.times.Count))
		last = now
	}
}

// progress shows the progress on a terminal until hide is called.
func (b *bench) progress(start time.Time) (hide func()) {
	f := b.env.stderr.terminal()
	if f == nil {
		return func() {}
	}
	end := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(min(time.Second, max(b.Time/5, minBenchTime)))
		defer tick.Stop()
		for {
			select {
			case <-end:
				fmt.Fprint(f, "\r\x1b[K")
				return
			case <-tick.C:
				fmt.Fprint(f, "\r"+b.line(time.Since(start))+"\x1b[K")
			}
		}
	})
	return func() { close(end); done.Wait() }
}

func (b *bench) line(since time.Duration) string {
	var n, failed uint64
	for _, c := range b.clients {
		n, failed = n+c.done.Load(), failed+c.failed.Load()
	}
	return fmt.Sprintf("%v of %v: %.0f decisions/s, %s", since.Round(100*time.Millisecond), b.Time, float64(n)/since.Seconds(), howMany(failed, "error"))
}

// cleanUp removes the rows, then the limit, and returns what it could not remove. It
// continues after the first signal; a second one kills the program.
func (b *bench) cleanUp() (left []finding) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.env.ctx), benchCleanUp+time.Duration(b.Keys)*benchCleanUpKey)
	defer cancel()
	var next atomic.Int64
	var failed atomic.Bool
	err := b.eachClient(func(c *benchClient) error {
		for i := next.Add(1) - 1; i < int64(len(b.keys)) && !failed.Load(); i = next.Add(1) - 1 {
			if !b.touched[i].Load() {
				continue
			}
			if err := b.limiter.Do(ctx, &c.decision, store.VerbReset, dipwell.Take{Limit: b.name, Key: b.keys[i]}); err != nil {
				failed.Store(true) // do not wait for a store that is down at each key
				return err
			}
		}
		return nil
	})
	if err != nil {
		left = append(left, finding{verdictWarning, "clean-up", fmt.Sprintf("buckets of limit %s are left: %v", b.name, timeoutError(err)),
			"once the limit is gone they mean nothing; sweeps delete them in PostgreSQL and in files, in Redis they expire"})
	}
	if err := b.drop(); err != nil {
		left = append(left, finding{verdictProblem, "clean-up", fmt.Sprintf("limit %s is left: %v", b.name, timeoutError(err)),
			"remove it through a service on this store: curl -X DELETE localhost:8080/v1/limits/" + b.name})
	}
	return left
}

func (b *bench) drop() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.env.ctx), defineTimeout)
	defer cancel()
	err := b.limiter.Drop(ctx, b.name, terms.OwnerAPI)
	if errors.Is(err, dipwell.ErrUnknownLimit) {
		return nil // removed by somebody else
	}
	return err
}

// print prints the report for people.
func (r *benchReport) print(w io.Writer) error {
	var s strings.Builder
	fmt.Fprintf(&s, "dipwell %s, store %s\n", r.Version, plain(r.Store))
	fmt.Fprintf(&s, "clients %d, keys %d, cost %d, %.2f s", r.Clients, r.Keys, r.Cost, r.Seconds)
	if r.Interrupted {
		s.WriteString(", interrupted")
	}
	switch {
	case r.Sent == "coalesced":
		fmt.Fprintf(&s, "\nsent        coalesced, lanes %d, %.1f calls a batch\n", r.Lanes, r.PerBatch)
	case r.Lanes > 0:
		fmt.Fprintf(&s, "\nsent        single, connections %d\n", r.Lanes)
	default:
		s.WriteString("\nsent        single\n")
	}
	fmt.Fprintf(&s, "decisions   %d, %.0f/s\n", r.Decisions, r.PerSecond)
	if r.Decisions > 0 {
		fmt.Fprintf(&s, "latency     p50 %v, p90 %v, p99 %v, max %v\n", short(r.Latency.P50), short(r.Latency.P90), short(r.Latency.P99), short(r.Latency.Max))
	}
	fmt.Fprintf(&s, "errors      %d\n", r.Failed)
	if r.Failed > 0 {
		fmt.Fprintf(&s, "%22s %s\n", "such as", plain(r.Error))
	}
	for _, f := range r.Left {
		fmt.Fprintf(&s, "%-8s %-13s %s\n%22s %s\n", f.Verdict, f.Check, plain(f.Found), "→", f.Advice)
	}
	_, err := io.WriteString(w, s.String())
	return err
}

// short rounds µs to three digits.
func short(us float64) time.Duration {
	d, unit := time.Duration(us*1e3), time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
