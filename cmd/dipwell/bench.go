package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// BenchCmd measures a store from this machine.
type BenchCmd struct {
	Store   string        `placeholder:"URL" env:"DIPWELL_STORE" help:"Store to measure (default memory:)."`
	Clients int           `default:"64" placeholder:"N" help:"Concurrent clients, each without a pause between calls: 1 to 4096. Default 64."`
	Keys    int           `default:"10000" placeholder:"N" help:"Number of keys; each call uses a random one: 1 to 1000000. Default 10000."`
	Time    time.Duration `default:"5s" placeholder:"DURATION" help:"How long to measure, 10ms to 1h. Default 5s."`
	Single  bool          `help:"Send each call separately. By default waiting calls are coalesced, as in serve."`
	JSON    bool          `name:"json" help:"Print the report as JSON."`
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
	singleConns     = 16                    // PostgreSQL connections with --single
	benchWarmUp     = 10                    // calls of each client before measuring, for connections, prepared statements and plans
	benchGrace      = 10 * time.Second      // for calls in flight at the end
	benchPause      = 10 * time.Millisecond // after a failed call, to spare a store in trouble
	benchCleanUp    = 10 * time.Minute      // for the buckets of all keys
	benchResets     = 1000                  // buckets that are removed together
)

func (c *BenchCmd) check() error {
	switch {
	case c.Clients < 1 || c.Clients > maxBenchClients:
		return fmt.Errorf("clients: %d is not between 1 and %d", c.Clients, maxBenchClients)
	case c.Keys < 1 || c.Keys > maxBenchKeys:
		return fmt.Errorf("keys: %d is not between 1 and %d", c.Keys, maxBenchKeys)
	case c.Time < minBenchTime || c.Time > maxBenchTime:
		return fmt.Errorf("time: %v is not between %v and %v", c.Time, minBenchTime, maxBenchTime)
	}
	return knownStore(c.Store)
}

// limit returns a limit that allows ten million calls a second of one key, or as
// many as 2^53 allows. Tokens come back as late as possible, within a minute, so
// that calls find used buckets, as with real limits.
func (c *BenchCmd) limit(name string) dipwell.Limit {
	const most, perSecond = 8_000_000_000, 10_000_000 // calls × seconds that fit in 2^53
	per := min(max(int64(most/(perSecond*c.Time.Seconds())), 1), 60)
	return dipwell.Limit{Name: name, Rate: 1, Period: time.Duration(per) * time.Second, Burst: most / per, MaxDebt: dipwell.NoDebt, MaxCharge: 1}
}

// benchReport is what --json prints.
type benchReport struct {
	Version     string       `json:"version"`
	Store       string       `json:"store"`
	Sent        string       `json:"sent"`            // single or coalesced
	Lanes       int          `json:"lanes,omitempty"` // concurrent batches
	PerBatch    float64      `json:"calls_per_batch,omitempty"`
	Clients     int          `json:"clients"`
	Keys        int          `json:"keys"`
	Seconds     float64      `json:"seconds"`
	Interrupted bool         `json:"interrupted"`
	Decisions   uint64       `json:"decisions"`
	PerSecond   float64      `json:"decisions_per_second"`
	Latency     benchLatency `json:"latency_us"`
	Failed      uint64       `json:"failed"`          // calls that are not counted in decisions
	Error       string       `json:"error,omitempty"` // of one of them
	Limit       string       `json:"limit"`
	Left        string       `json:"left,omitempty"` // what could not be removed
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
	b := &bench{BenchCmd: c, ctx: ctx, tally: newTally(nil)}
	s, err := b.open()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	report, err := b.measure(newBar(e.stderr))
	switch {
	case err != nil:
		return err
	case c.JSON:
		err = json.NewEncoder(e.stdout).Encode(report)
	default:
		err = report.print(e.stdout)
	}
	if err == nil && (report.Failed > 0 || report.Left != "") {
		err = errRefused
	}
	return err
}

// bench is a running benchmark.
type bench struct {
	*BenchCmd
	ctx     context.Context // ends when it is interrupted
	limiter *dipwell.Limiter
	name    string
	lanes   int
	tally   *tally
	keys    []string
	clients []*benchClient
	stop    atomic.Bool
	heard   atomic.Pointer[error] // last error that the store reported outside a call
}

// open opens the store like serve, with --single without coalescing.
func (b *bench) open() (*opened, error) {
	o := storeOptions{denyMaxAge: -1, tally: b.tally, report: func(err error) { b.heard.Store(&err) }}
	if b.Single && !strings.HasPrefix(b.Store, "file:") { // which is never coalesced
		o.once, o.single = true, int32(min(b.Clients, singleConns))
	}
	s, err := openStore(b.ctx, b.Store, o)
	if err != nil {
		return nil, err
	}
	b.lanes = s.Lanes
	if b.limiter, err = dipwell.New(s.Store); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// measure defines the limit, runs the load, and removes what it has made.
func (b *bench) measure(progress *bar) (*benchReport, error) {
	if err := b.define(); err != nil {
		return nil, err
	}
	url, _, _ := strings.Cut(redact(b.Store), "?")
	r := &benchReport{Version: version(), Store: url, Sent: "single", Lanes: b.lanes, Clients: b.Clients, Keys: b.Keys, Limit: b.name}
	if b.lanes > 0 {
		r.Sent = "coalesced"
	}
	err := b.load(r, progress)
	if left := b.cleanUp(); left != nil {
		r.Left = left.Error()
		err = errors.Join(err, left)
	}
	if r.Decisions+r.Failed > 0 {
		return r, nil
	}
	return nil, err
}

// define defines the limit under an unused name. Its owner is the API, so that a
// limit left behind can be removed through any service on the store.
func (b *bench) define() error {
	ctx, cancel := context.WithTimeout(b.ctx, defineTimeout)
	defer cancel()
	for b.name == "" || b.limiter.Limit(b.name) != nil {
		b.name = benchName + fmt.Sprintf("%04x", rand.N(1<<16)) // few, because stores may remember names for ever
	}
	b.keys = make([]string, b.Keys)
	for i := range b.keys {
		b.keys[i] = "user:" + strconv.Itoa(i)
	}
	_, err := b.limiter.Define(ctx, b.limit(b.name), terms.OwnerAPI)
	switch why := b.heard.Load(); {
	case errors.Is(err, store.ErrOutcomeUnknown) || err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w; the limit %s may have been left behind", err, b.name)
	case errors.Is(err, dipwell.ErrStore) && why != nil:
		return fmt.Errorf("%w: %w", err, *why)
	}
	return err
}

// load runs the load and fills in the report.
func (b *bench) load(r *benchReport, progress *bar) error {
	calls, cancel := context.WithCancel(context.WithoutCancel(b.ctx)) // calls in flight may finish
	defer cancel()
	for range b.Clients {
		b.clients = append(b.clients, &benchClient{bench: b})
	}
	halt := func() {
		b.stop.Store(true)
		time.AfterFunc(benchGrace, cancel)
	}
	defer context.AfterFunc(b.ctx, halt)()
	if err := b.eachClient(func(c *benchClient) error { return c.warm(calls) }); err != nil {
		return err
	}
	if b.stop.Load() {
		return errors.New("interrupted before anything was measured")
	}
	batches, coalesced := b.tally.batches.Load(), b.tally.calls.Load()
	start := time.Now()
	defer time.AfterFunc(b.Time, halt).Stop()
	_ = b.eachClient(func(c *benchClient) error {
		c.call(calls, start, func(since time.Duration) {
			if c == b.clients[0] {
				progress.show("measuring", int64(since), int64(b.Time))
			}
		})
		return nil
	})
	progress.finish()
	var times bounded.Histogram
	for _, c := range b.clients {
		times.Add(&c.times)
		if r.Failed += c.failed; c.err != nil {
			r.Error = c.err.Error()
		}
	}
	if n := b.tally.batches.Load() - batches; n > 0 {
		r.PerBatch = float64(b.tally.calls.Load()-coalesced) / float64(n)
	}
	r.Seconds, r.Interrupted = time.Since(start).Seconds(), b.ctx.Err() != nil
	r.Decisions, r.PerSecond = uint64(times.Count), float64(times.Count)/r.Seconds
	r.Latency = benchLatency{times.Percentile(50), times.Percentile(90), times.Percentile(99), bounded.Micro(times.Most)}
	return nil
}

// eachClient calls do for all clients concurrently. It returns the first error.
func (b *bench) eachClient(do func(*benchClient) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(b.clients))
	for i, c := range b.clients {
		wg.Go(func() { errs[i] = do(c) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// benchClient calls the store without a pause.
type benchClient struct {
	*bench
	decision dipwell.Decision
	times    bounded.Histogram
	failed   uint64
	err      error // of a call that failed
}

var errNotAdmitted = errors.New("refused, although the limit should allow every call")

func (c *benchClient) take(ctx context.Context) error {
	d := &c.decision
	err := c.limiter.Do(ctx, d, store.VerbTake, dipwell.Take{Limit: c.name, Key: c.keys[rand.IntN(len(c.keys))], Cost: 1})
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

func (c *benchClient) warm(ctx context.Context) (err error) {
	for n := 0; n < benchWarmUp && err == nil && !c.stop.Load(); n++ {
		err = c.take(ctx)
	}
	return err
}

// call runs the load of a client. It reads the clock once per call: a call lasts
// from the end of the previous one.
func (c *benchClient) call(ctx context.Context, start time.Time, progress func(since time.Duration)) {
	last := time.Since(start)
	for !c.stop.Load() {
		if err := c.take(ctx); err != nil {
			c.err = err
			c.failed++
			time.Sleep(benchPause)
			last = time.Since(start)
			continue
		}
		now := time.Since(start)
		c.times.Record(now - last)
		progress(now)
		last = now
	}
}

// cleanUp removes the buckets and the limit. It continues after the first signal; a
// second one kills the program.
func (b *bench) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), benchCleanUp)
	defer cancel()
	err := b.reset(ctx)
	if err != nil {
		err = fmt.Errorf("buckets of limit %s are left: %w; once the limit is gone, sweeps delete them, and in Redis they expire", b.name, timeoutError(err))
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(b.ctx), defineTimeout)
	defer cancel()
	if bad := b.limiter.Drop(ctx, b.name, terms.OwnerAPI); bad != nil && !errors.Is(bad, dipwell.ErrUnknownLimit) { // unless somebody else removed it
		err = errors.Join(err, fmt.Errorf("limit %[1]s is left: %[2]w; remove it through a service on this store: curl -X DELETE localhost:8080/v1/limits/%[1]s", b.name, timeoutError(bad)))
	}
	return err
}

// reset removes the buckets of all keys, and stops at the first error.
func (b *bench) reset(ctx context.Context) error {
	def := b.limiter.Limit(b.name)
	for keys := range slices.Chunk(b.keys, benchResets) {
		var batch store.Batch
		for _, key := range keys {
			batch.Groups = append(batch.Groups, store.Group{Ops: []store.Op{{Def: def, Key: key, Verb: store.VerbReset}}})
		}
		if err := b.limiter.Store().Apply(ctx, &batch); err != nil {
			return err
		}
		for i := range batch.Groups {
			if err := batch.Groups[i].Err; err != nil {
				return err
			}
		}
	}
	return nil
}

// print prints the report for people.
func (r *benchReport) print(w io.Writer) error {
	var s strings.Builder
	fmt.Fprintf(&s, "dipwell %s, store %s\nclients %d, keys %d, %.2f s", r.Version, plain(r.Store), r.Clients, r.Keys, r.Seconds)
	if r.Interrupted {
		s.WriteString(", interrupted")
	}
	fmt.Fprintf(&s, "\nsent        %s", r.Sent)
	if r.Lanes > 0 {
		fmt.Fprintf(&s, ", lanes %d, %.1f calls a batch", r.Lanes, r.PerBatch)
	}
	fmt.Fprintf(&s, "\ndecisions   %d, %.0f/s\n", r.Decisions, r.PerSecond)
	if r.Decisions > 0 {
		fmt.Fprintf(&s, "latency     p50 %v, p90 %v, p99 %v, max %v\n", short(r.Latency.P50), short(r.Latency.P90), short(r.Latency.P99), short(r.Latency.Max))
	}
	fmt.Fprintf(&s, "errors      %d\n", r.Failed)
	if r.Failed > 0 {
		fmt.Fprintf(&s, "such as     %s\n", plain(r.Error))
	}
	if r.Left != "" {
		fmt.Fprintf(&s, "left        %s\n", r.Left)
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
