package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

type BenchCmd struct {
	Store   string        `placeholder:"URL" env:"DIPWELL_STORE" help:"Store to measure (default memory:)."`
	Clients int           `default:"64" placeholder:"N" help:"Concurrent clients, each without a pause between calls: 1 to 4096. Default 64."`
	Keys    int           `default:"10000" placeholder:"N" help:"Number of keys; each call uses a random one: 1 to 1000000. Default 10000."`
	Time    time.Duration `default:"5s" placeholder:"DURATION" help:"How long to measure, 10ms to 1h. Default 5s."`
}

const (
	benchName       = "dipwell-bench-"
	maxBenchClients = 4096
	maxBenchKeys    = 1_000_000 // each key may have a bucket to remove at the end
	minBenchTime    = 10 * time.Millisecond
	maxBenchTime    = time.Hour
	benchWarmUp     = 10                    // calls of each client before measuring, which open connections and prepare statements and plans
	benchGrace      = 10 * time.Second      // time for calls in flight at the end
	benchPause      = 10 * time.Millisecond // after a failed call, to spare a store in trouble
	benchCleanUp    = 10 * time.Minute      // time for removing the buckets of all keys
	benchResets     = 1000                  // buckets removed at the same time
)

// limit returns a limit that allows ten million calls a second of one key, or as
// many as 2^53 allows. Tokens come back as late as possible, within a minute, so
// that calls find used buckets, as with real limits.
func (c *BenchCmd) limit(name string) dipwell.Limit {
	const most, perSecond = 8_000_000_000, 10_000_000 // most: calls × seconds that fit in 2^53
	per := min(max(int64(most/(perSecond*c.Time.Seconds())), 1), 60)
	return dipwell.Limit{Name: name, Rate: 1, Period: time.Duration(per) * time.Second, Burst: most / per, MaxDebt: dipwell.NoDebt, MaxCharge: 1}
}

func (c *BenchCmd) Run(e *env) error {
	c.Store = cmp.Or(c.Store, "memory:")
	err := cmp.Or(between("clients", c.Clients, 1, maxBenchClients), between("keys", c.Keys, 1, maxBenchKeys),
		between("time", c.Time, minBenchTime, maxBenchTime), knownStore(c.Store))
	if err != nil {
		return err
	}
	b := &bench{BenchCmd: c, env: e}
	s, err := openStore(e.ctx, c.Store, storeOptions{denyMaxAge: -1, report: func(err error) { b.heard.Store(&err) }})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if b.limiter, err = dipwell.New(s.Store); err == nil {
		err = b.define()
	}
	if err != nil {
		return err
	}
	err = b.load()
	return cmp.Or(b.cleanUp(), err)
}

type bench struct {
	*BenchCmd
	*env
	limiter *dipwell.Limiter
	name    string
	keys    []string
	heard   atomic.Pointer[error] // last error that the store reported outside of a call
}

// The limit's owner is the API: if it is left behind, any service on the store can remove it.
func (b *bench) define() error {
	ctx, cancel := context.WithTimeout(b.ctx, defineTimeout)
	defer cancel()
	for b.name == "" || b.limiter.Limit(b.name) != nil {
		b.name = benchName + fmt.Sprintf("%04x", rand.N(1<<16)) // few names, because stores may remember names for ever
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

// load returns errRefused if calls failed.
func (b *bench) load() error {
	clients := make([]benchClient, b.Clients)
	clients[0].bar = *newBar(b.stderr)
	err := each(clients, func(c *benchClient) (err error) {
		c.bench = b
		for n := 0; n < benchWarmUp && err == nil; n++ {
			err = c.take(b.ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	calls, giveUp := context.WithCancel(context.WithoutCancel(b.ctx)) // so that calls in flight may finish
	defer giveUp()
	until, stop := context.WithTimeout(b.ctx, b.Time)
	defer stop()
	context.AfterFunc(until, func() { time.AfterFunc(benchGrace, giveUp) })
	start := time.Now()
	_ = each(clients, func(c *benchClient) error {
		c.call(until, calls, start)
		return nil
	})
	clients[0].bar.finish()
	return b.print(clients, time.Since(start))
}

func each(clients []benchClient, do func(*benchClient) error) error {
	var group errgroup.Group
	for i := range clients {
		group.Go(func() error { return do(&clients[i]) })
	}
	return group.Wait()
}

type benchClient struct {
	*bench
	bar      bar // the first client's bar shows the progress
	decision dipwell.Decision
	times    bounded.Histogram
	failed   uint64
	err      error // error of a call that failed
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

// call reads the clock once per call: a call lasts from the end of the previous one.
func (c *benchClient) call(until, calls context.Context, start time.Time) {
	last := time.Since(start)
	for until.Err() == nil {
		if err := c.take(calls); err != nil {
			c.err = err
			c.failed++
			time.Sleep(benchPause)
			last = time.Since(start)
			continue
		}
		now := time.Since(start)
		c.times.Record(now - last)
		c.bar.show("measuring", int64(now), int64(c.Time))
		last = now
	}
}

func (b *bench) print(clients []benchClient, took time.Duration) (err error) {
	var times bounded.Histogram
	var failed uint64
	var such error
	for i := range clients {
		c := &clients[i]
		times.Add(&c.times)
		failed, such = failed+c.failed, cmp.Or(such, c.err)
	}
	w := b.stdout
	fmt.Fprintf(w, "dipwell %s, store %s\nclients %d, keys %d, %.2f s", version(), plain(redact(b.Store)), b.Clients, b.Keys, took.Seconds())
	if b.ctx.Err() != nil {
		fmt.Fprint(w, ", interrupted")
	}
	fmt.Fprintf(w, "\ndecisions   %d, %.0f/s\n", times.Count, float64(times.Count)/took.Seconds())
	fmt.Fprintf(w, "latency     p50 %v, p90 %v, p99 %v, max %v\n", short(times.Percentile(50)), short(times.Percentile(90)), short(times.Percentile(99)), short(bounded.Micro(times.Most)))
	fmt.Fprintf(w, "errors      %d\n", failed)
	if such != nil {
		fmt.Fprintf(w, "such as     %s\n", plain(such.Error()))
		err = errRefused
	}
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

// cleanUp continues after the first signal; a second one kills the program.
func (b *bench) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), benchCleanUp)
	defer cancel()
	err := b.reset(ctx)
	if err != nil {
		err = fmt.Errorf("buckets of limit %s are left: %w; once the limit is gone, sweeps delete them, and in Redis they expire", b.name, timeoutError(err))
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(b.ctx), defineTimeout)
	defer cancel()
	if bad := b.limiter.Drop(ctx, b.name, terms.OwnerAPI); bad != nil && !errors.Is(bad, dipwell.ErrUnknownLimit) { // ErrUnknownLimit means that somebody else removed it
		err = errors.Join(err, fmt.Errorf("limit %[1]s is left: %[2]w; remove it through a service on this store: curl -X DELETE localhost:8080/v1/limits/%[1]s", b.name, timeoutError(bad)))
	}
	return err
}

func (b *bench) reset(ctx context.Context) error {
	def := b.limiter.Limit(b.name)
	for keys := range slices.Chunk(b.keys, benchResets) {
		var batch store.Batch
		for _, key := range keys {
			batch.Groups = append(batch.Groups, store.Group{Ops: []store.Op{{Def: def, Key: key, Verb: store.VerbReset}}})
		}
		err := b.limiter.Store().Apply(ctx, &batch)
		for i := range batch.Groups {
			err = cmp.Or(err, batch.Groups[i].Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
