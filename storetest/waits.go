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

// waitCases are about calls that sleep. Nothing here waits for time to pass:
// the store's clock is the case's, and sleeps are cut short or a millisecond.
var waitCases = []testCase{
	{"wait-deadline", waitDeadline},
	{"wait-bounded", waitBounded},
	{"wait-never", waitNever},
	{"wait-no-debt", waitNoDebt},
	{"wait-at-once", waitAtOnce},
}

// answered tells when a store has answered a call.
type answered struct {
	store.Store
	calls chan struct{}
}

func (a *answered) Abilities() store.Abilities { return store.AbilitiesOf(a.Store) }

func (a *answered) Apply(ctx context.Context, b *store.Batch) error {
	err := a.Store.Apply(ctx, b)
	select {
	case a.calls <- struct{}{}:
	case <-ctx.Done():
	}
	return err
}

// Fifty waits that are given up while they sleep cost nothing.
func cancelledWaitLeaks(e *env) {
	const waits = 50
	e.define(store.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 2, MaxDebt: 100})
	e.allowed("work", "k", 2, 0)
	spy := &answered{e.store, make(chan struct{}, 2*waits)}
	l := e.l.With(spy)
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
		<-spy.calls // it has its reservation, and sleeps
	}
	if d, err := e.l.Reserve(e.ctx, "work", "k", 51); err != nil || d.Allowed {
		e.Fatalf("50 of a debt of 100 are taken, and 51 more were granted: %v, %v", d.Allowed, err)
	}
	cancel()
	done.Wait()
	for range waits {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			e.Fatalf("a cancelled wait answered %v", err)
		}
	}
	for range waits {
		<-spy.calls // it has cancelled, which may take longer than its caller is kept
	}
	e.refused("work", "k", 1, time.Hour) // as if they had never come
	e.reserve("work", "k", 100)
}

// givenUp waits, and gives up as soon as the store has answered: who fails at
// once does not notice, and who sleeps answers that the context is over.
func (e *env) givenUp(ctx context.Context, limit string, n int64) (d dipwell.Decision, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spy := &answered{e.store, make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d, err = e.l.With(spy).Wait(ctx, limit, "k", n)
	}()
	<-spy.calls
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
	d, err := e.givenUp(ctx, "w", 1)
	if err != nil || d.Allowed || d.Never || d.RetryAfter < 29*time.Minute || d.RetryAfter > 31*time.Minute {
		e.Fatalf("a wait of an hour with half an hour to go: %+v, %v", d, err)
	}
	e.refused("w", "k", 1, time.Hour)
	if d, err := e.givenUp(ctx, "w", 12); err != nil || !d.Never {
		e.Fatalf("a wait for more than there can be: %+v, %v", d, err)
	}
	cancel()
	if _, err := e.l.Wait(ctx, "w", "k", 1); !errors.Is(err, context.Canceled) {
		e.Fatalf("a wait on a context that is over: %v", err)
	}
	e.refused("w", "k", 1, time.Hour)
}

// The bound of a reservation is exact to the µs.
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
		e.Fatalf("due 1 µs too late: %+v", a)
	}
	e.left("w", "k", 0)
	e.refused("w", "k", 1, due)
	if a := ask(5, time.Hour).Ops[0].Answer; a.Allowed || a.Retry <= 0 {
		e.Fatalf("more than debt allows: %+v", a)
	}
	e.pass(time.Microsecond)
	g = ask(1, due-time.Microsecond)
	if a := g.Ops[0].Answer; !g.Allowed || !g.Reserved || a.Granted != 1 || a.Delay != (due-time.Microsecond).Microseconds() {
		e.Fatalf("due in time: %+v", a)
	}
	e.must(nil, e.l.Cancel(e.ctx, g.ID))
	e.refused("w", "k", 1, due-time.Microsecond)
}

// A reservation above the burst that even a full bucket would give too late has
// no retry time.
func waitNever(e *env) {
	for _, c := range []struct {
		limit store.Limit
		cost  int64
		least time.Duration // of a full bucket just before a tick
	}{
		{store.Limit{Name: "bucket", Rate: 3, Period: 7 * time.Second, Burst: 2, MaxDebt: 4}, 4, time.Duration(ceil(big.NewRat(14e6, 3))) * time.Microsecond},
		{store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, MaxDebt: 20}, 11, 10*time.Second + time.Microsecond},
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

// Without debt a wait asks again at the retry time.
func waitNoDebt(e *env) {
	e.define(store.Limit{Name: "w", Rate: 1000, Period: time.Second, Burst: 1, MaxDebt: store.NoDebt})
	e.allowed("w", "k", 1, 0)
	spy := &answered{e.store, make(chan struct{}, 1<<16)} // it may ask more than once before the clock has moved
	l := e.l.With(spy)
	got := make(chan dipwell.Decision, 1)
	failed := make(chan error, 1)
	go func() {
		d, err := l.Wait(e.ctx, "w", "k", 1)
		failed <- err
		got <- d
	}()
	<-spy.calls
	e.pass(time.Millisecond)
	<-spy.calls
	e.must(nil, <-failed)
	if d := <-got; !d.Allowed || d.Granted != 1 {
		e.Fatalf("after its retry time: %+v", d)
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
	if d, err := e.givenUp(ctx, "slow", 1); err != nil || d.Allowed {
		e.Fatalf("a wait of a day with an hour to go: %+v, %v", d, err)
	}
}

func waitAtOnce(e *env) {
	e.define(store.Limit{Name: "w", Rate: 1, Period: time.Hour, Burst: 3})
	d, err := e.l.Wait(e.ctx, "w", "k", 3)
	if err != nil || !d.Allowed || d.Granted != 3 || d.Delay != 0 || d.Reservation != (store.Reservation{}) {
		e.Fatalf("a wait for what is there: %+v, %v", d, err)
	}
}
