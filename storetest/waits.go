package storetest

import (
	"context"
	"errors"
	"math/big"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// waitCases test Limiter.Wait. The cases do not wait for real time: they set
// the store's clock, and cancel sleeps or make them 1 ms long.
var waitCases = []testCase{
	{"wait-deadline", waitDeadline},
	{"wait-bounded", waitBounded},
	{"wait-bounded-window", func(e *env) {
		b := newCaller(e, "w=5/10s,algorithm=fixed_window,start=0s,max_debt=3")
		for key, verb := range map[string]store.Verb{"k": store.VerbCharge, "reserved": store.VerbReserve} {
			b.at(3 * time.Second)
			b.take("w "+key+" 5", true)
			b.do(verb, "w "+key+" 3")
			b.retryWithin("w "+key+" 6", 9*time.Second, 18*time.Second) // full at 20 s, and the wait is due 30 s after that
		}
	}},
	{"wait-never", waitNever},
	{"wait-no-debt", waitNoDebt},
	{"wait-at-once", waitAtOnce},
}

// applySignal is a Store that sends on calls after each Apply.
type applySignal struct {
	store.Store
	calls chan struct{}
}

func (a *applySignal) Abilities() store.Abilities { return store.AbilitiesOf(a.Store) }

func (a *applySignal) Apply(ctx context.Context, b *store.Batch) error {
	err := a.Store.Apply(ctx, b)
	select {
	case a.calls <- struct{}{}:
	case <-ctx.Done():
	}
	return err
}

// Fifty waits whose contexts are cancelled while they sleep cost no tokens.
func cancelledWaitLeaks(e *env) {
	const waits = 50
	e.define(store.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 2, MaxDebt: 100})
	e.allowed("work", "k", 2, 0)
	signal := &applySignal{e.store, make(chan struct{}, 2*waits)}
	l := e.l.With(signal)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	errs := make(chan error, waits)
	var done sync.WaitGroup
	for range waits {
		done.Go(func() {
			_, err := l.Wait(ctx, "work", "k", 1)
			errs <- err
		})
	}
	for range waits {
		<-signal.calls // a wait has made its reservation, and sleeps
	}
	if d, err := e.l.Reserve(e.ctx, "work", "k", 51); err != nil || d.Allowed {
		e.Fatalf("a reservation of 51 with 50 of a debt of 100 in use: allowed %v, %v", d.Allowed, err)
	}
	cancel()
	done.Wait()
	for range waits {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			e.Fatalf("a cancelled wait returned %v", err)
		}
	}
	for range waits {
		<-signal.calls // a wait has cancelled its reservation, perhaps after it returned
	}
	e.refused("work", "k", 1, time.Hour) // refused as it would be without the waits
	e.reserve("work", "k", 100)
}

// waitOnce calls Wait and cancels its context after the first Apply: a wait that would
// sleep returns context.Canceled, and one that fails at once returns its own result.
func (e *env) waitOnce(ctx context.Context, limit string, n int64) (d dipwell.Decision, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signal := &applySignal{e.store, make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, err = e.l.With(signal).Wait(ctx, limit, "k", n)
	}()
	<-signal.calls
	cancel()
	<-done
	return d, err
}

// A wait that would end after its deadline fails at once and takes nothing.
func waitDeadline(e *env) {
	e.define(store.Limit{Name: "w", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: 10})
	e.allowed("w", "k", 1, 0)
	ctx, cancel := context.WithTimeout(e.ctx, 30*time.Minute)
	defer cancel()
	d, err := e.waitOnce(ctx, "w", 1)
	if err != nil || d.Allowed || d.Never || d.RetryAfter < 29*time.Minute || d.RetryAfter > 31*time.Minute {
		e.Fatalf("a wait of an hour with a deadline in half an hour: %+v, %v", d, err)
	}
	e.refused("w", "k", 1, time.Hour)
	if d, err := e.waitOnce(ctx, "w", 12); err != nil || !d.Never {
		e.Fatalf("a wait for more than burst and max_debt: %+v, %v", d, err)
	}
	cancel()
	if _, err := e.l.Wait(ctx, "w", "k", 1); !errors.Is(err, context.Canceled) {
		e.Fatalf("a wait with a cancelled context: %v", err)
	}
	e.refused("w", "k", 1, time.Hour)
}

// MaxDelay of a bounded reservation is exact to 1 µs.
func waitBounded(e *env) {
	def := e.define(store.Limit{Name: "w", Rate: 3, Period: 7 * time.Second, Burst: 2, MaxDebt: 4})
	e.allowed("w", "k", 2, 0)
	ask := func(cost int64, within time.Duration) *store.Group {
		e.Helper()
		b := &store.Batch{Groups: []store.Group{{
			ID:  store.Reservation{byte(cost), byte(within), byte(within >> 8), byte(within >> 16), byte(within >> 24), byte(e.clock.Load())},
			Ops: []store.Op{{Def: def, Key: "k", Verb: store.VerbReserve, Cost: cost, Bounded: true, MaxDelay: within.Microseconds()}},
		}}}
		if err := e.store.Apply(e.ctx, b); err != nil || b.Groups[0].Err != nil {
			e.Fatal(err, b.Groups[0].Err)
		}
		return &b.Groups[0]
	}
	due := time.Duration(ceil(big.NewRat(7e6, 3))) * time.Microsecond
	g := ask(1, due-time.Microsecond)
	if a := g.Ops[0].Answer; g.Allowed || g.Reserved || a.Granted != 0 || a.Retry != 1 || a.Never {
		e.Fatalf("due 1 µs after MaxDelay: %+v", a)
	}
	e.left("w", "k", 0)
	e.refused("w", "k", 1, due)
	if a := ask(5, time.Hour).Ops[0].Answer; a.Allowed || a.Retry <= 0 {
		e.Fatalf("more than max_debt allows: %+v", a)
	}
	e.advance(time.Microsecond)
	g = ask(1, due-time.Microsecond)
	if a := g.Ops[0].Answer; !g.Allowed || !g.Reserved || a.Granted != 1 || a.Delay != (due-time.Microsecond).Microseconds() {
		e.Fatalf("due at MaxDelay: %+v", a)
	}
	e.must(nil, e.l.Cancel(e.ctx, g.ID))
	e.refused("w", "k", 1, due-time.Microsecond)
}

// A bounded reservation above the burst never succeeds and has no retry time,
// if even a full bucket could not grant it within MaxDelay.
func waitNever(e *env) {
	for _, c := range []struct {
		limit store.Limit
		cost  int64
		least time.Duration // delay with a full bucket, just before a tick
	}{
		{store.Limit{Name: "bucket", Rate: 3, Period: 7 * time.Second, Burst: 2, MaxDebt: 4}, 4, time.Duration(ceil(big.NewRat(14e6, 3))) * time.Microsecond},
		{store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, MaxDebt: 20}, 11, 10*time.Second + time.Microsecond},
		{store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "06:00 UTC", MaxDebt: 20}, 11, 24*time.Hour + time.Microsecond},
		{store.Limit{Name: "week", Algorithm: store.FixedWindow, Rate: 5, Period: 7 * 24 * time.Hour, Start: "00:00 UTC", MaxDebt: 20}, 16, 14*24*time.Hour + time.Microsecond},
		{store.Limit{Name: "day in Rome", Algorithm: store.FixedWindow, Rate: 5, Period: 24 * time.Hour, Start: "00:00 Europe/Rome", MaxDebt: 20}, 11, 22*time.Hour + time.Microsecond},
		{store.Limit{Name: "month", Algorithm: store.FixedWindow, Rate: 5, Period: store.Month, MaxDebt: 20}, 11, 28*24*time.Hour + time.Microsecond},
	} {
		def := e.define(c.limit)
		e.allowed(c.limit.Name, "k", def.Rule.Burst, 0)
		for _, within := range []time.Duration{c.least - time.Microsecond, c.least} {
			b := &store.Batch{Groups: []store.Group{{ID: store.Reservation{1},
				Ops: []store.Op{{Def: def, Key: "k", Verb: store.VerbReserve, Cost: c.cost, Bounded: true, MaxDelay: within.Microseconds()}}}}}
			if err := e.store.Apply(e.ctx, b); err != nil || b.Groups[0].Err != nil {
				e.Fatal(err, b.Groups[0].Err)
			}
			if a := b.Groups[0].Ops[0].Answer; a.Allowed || a.Never != (within < c.least) || a.Never != (a.Retry == 0) {
				e.Fatalf("%s, within %v: %+v", c.limit.Name, within, a)
			}
		}
	}
}

// With max_debt 0 a Wait tries a take again at the retry time.
func waitNoDebt(e *env) {
	e.define(store.Limit{Name: "w", Rate: 1000, Period: time.Second, Burst: 1, MaxDebt: store.NoDebt})
	e.allowed("w", "k", 1, 0)
	signal := &applySignal{e.store, make(chan struct{}, 1<<16)} // the wait may call often before the clock has moved
	l := e.l.With(signal)
	got := make(chan dipwell.Decision, 1)
	failed := make(chan error, 1)
	go func() {
		d, err := l.Wait(e.ctx, "w", "k", 1)
		failed <- err
		got <- d
	}()
	<-signal.calls
	e.advance(time.Millisecond)
	<-signal.calls
	e.must(nil, <-failed)
	if d := <-got; !d.Allowed || d.Granted != 1 {
		e.Fatalf("a wait after its retry time: %+v", d)
	}
	d, err := e.l.Take(e.ctx, "w", "k", 1)
	e.must(d, err)
	if d.Allowed {
		e.Fatal("the wait took nothing")
	}
	ctx, cancel := context.WithTimeout(e.ctx, time.Hour)
	defer cancel()
	e.bucket("slow", 1, 24*time.Hour, 1)
	e.allowed("slow", "k", 1, 0)
	if d, err := e.waitOnce(ctx, "slow", 1); err != nil || d.Allowed {
		e.Fatalf("a wait of a day with a deadline in an hour: %+v, %v", d, err)
	}
}

func waitAtOnce(e *env) {
	e.define(store.Limit{Name: "w", Rate: 1, Period: time.Hour, Burst: 3})
	d, err := e.l.Wait(e.ctx, "w", "k", 3)
	if err != nil || !d.Allowed || d.Granted != 3 || d.Delay != 0 || d.Reservation != (store.Reservation{}) {
		e.Fatalf("a wait with enough tokens: %+v, %v", d, err)
	}
}
