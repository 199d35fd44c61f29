package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/internal/bounded"
)

// tailLoad is the load at which latencies are measured, as a share of
// the store's capacity.
const tailLoad = 0.3

// tail measures latencies at loads far below capacity. Calls arrive at
// random times, whether or not earlier ones were answered.
func (b *bench) tail(ctx context.Context) error {
	w, s, err := b.durable(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	defer s.Close()
	fmt.Fprintf(&b.out, "## Answer times at %.0f %% load, logged\n\n", tailLoad*100)
	fmt.Fprintf(&b.out, "Each caller's calls arrive at random (Poisson); a call that must wait for the one before it is timed from its arrival. All callers together send %.0f %% of what the store alone decides for as many that never pause. \"%s\" is pgstore over a pool of %d connections.\n\n", tailLoad*100, aloneName, poolConns)
	alone := called(aloneName, w.pooled())
	onStack := contender{name: stackName, open: w.schema.all(s.limiter), ours: true}
	for _, callers := range []int{1, 4, 16} {
		full, err := b.round(ctx, load.Load{Clients: callers, Keys: b.keys, Length: b.length}, fromGo, alone)
		if err != nil {
			return err
		}
		rate := full.PerSecond * tailLoad
		fs, err := b.rounds(ctx, "tail, "+plural(callers, "caller"), load.Load{Clients: callers, Keys: b.keys}, arrivals{rate}.run, alone, onStack)
		if err != nil {
			return err
		}
		b.compareTail(fmt.Sprintf("%s, %.0f calls a second", plural(callers, "caller"), rate), fs)
	}
	return nil
}

func (b *bench) compareTail(title string, fs map[string]*figures) {
	fmt.Fprintf(&b.out, "### %s\n\n", title)
	var rows [][]string
	for _, name := range []string{aloneName, stackName} {
		f := fs[name]
		row := []string{name, count(f.rate()), count(report.Median(f.p50)), count(report.Median(f.p99)), count(report.Median(f.p999)), "", "", ""}
		if name == stackName {
			r := report.Median(f.p999) / report.Median(fs[aloneName].p999)
			row[5], row[6], row[7] = fmt.Sprintf("%.2f", r), "≤ 1.3", b.reached(r <= 1.3)
		}
		rows = append(rows, row)
	}
	report.Table(&b.out, []string{"", "decisions/s", "p50 µs", "p99 µs", "p99.9 µs", "p99.9 ÷ the store's", "target", "reached"}, rows)
}

// arrivals is a runner whose calls arrive at a given rate.
type arrivals struct{ perSecond float64 }

func (a arrivals) run(ctx context.Context, l load.Load, c contender) (r load.Result, err error) {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	times := make([]bounded.Histogram, l.Clients)
	start := time.Now()
	for i := range l.Clients {
		wg.Go(func() {
			s, err := c.open(ctx)
			if err == nil {
				err = a.caller(s, l, float64(l.Clients), start, &times[i])
				s.Close()
			}
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	for i := range times {
		r.Times.Add(&times[i])
	}
	r.Length, r.PerSecond = took, float64(r.Times.Count)/took.Seconds()
	if e := failed.Load(); e != nil {
		err = *e
	}
	return r, err
}

// caller makes one caller's calls. A late timer delays the arrival; a call
// still running when the next one arrives does not.
func (a arrivals) caller(s load.Session, l load.Load, callers float64, start time.Time, times *bounded.Histogram) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	mean := callers / a.perSecond * float64(time.Second)
	for next := time.Duration(0); ; {
		next += time.Duration(random.ExpFloat64() * mean)
		if next > l.Length {
			return nil
		}
		arrival := next
		if early := next - time.Since(start); early > 0 {
			time.Sleep(early)
			arrival = time.Since(start)
		}
		if _, err := s.Take(context.Background(), load.Key(random.IntN(l.Keys))); err != nil {
			return err
		}
		times.Record(time.Since(start) - arrival)
	}
}

// mixedShare is how many of a hundred callers take 1 to 5 tokens from one key.
const mixedShare = 5

// mixed measures the effect on other callers of callers that take different
// costs from one key.
func (b *bench) mixed(ctx context.Context) error {
	w, s, err := b.durable(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	defer s.Close()
	const callers = 256
	plain := contender{name: "the others, on their own", open: w.schema.all(s.limiter), ours: true}
	beside := called("the others, beside them", plain)
	beside.during = func(ctx context.Context) error {
		return mixedCallers(ctx, s, callers*mixedShare/100)
	}
	l := load.Load{Clients: callers - callers*mixedShare/100, Keys: b.keys}
	fs, err := b.rounds(ctx, "mixed costs", l, fromGo, plain, beside)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b.out, "## %d %% of the callers ask one key with costs of 1 to 5, logged\n\n", mixedShare)
	b.compare(plural(l.Clients, "caller")+" of 10,000 keys", fs, []string{beside.name, plain.name}, []string{beside.name}, target{over: plain.name, ratio: 0.85})
	return nil
}

// mixedCallers makes the calls of these callers until ctx ends.
func mixedCallers(ctx context.Context, s *stacked, n int) error {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for i := range n {
		wg.Go(func() {
			for cost := int64(i); ctx.Err() == nil; cost++ {
				if _, err := s.limiter.Take(context.Background(), apiLimit, load.Key(0), 1+cost%5); err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return *e
	}
	return nil
}
