package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// raceCases make concurrent calls on one key, all started at a barrier. The
// clock stands still unless a case moves it, so the sums are exact.
var raceCases = []testCase{
	{"race-take", raceTake},
	{"race-take-up-to", raceTakeUpTo},
	{"race-reserve-cancel", raceReserveCancel},
	{"race-group", raceGroup},
	{"race-refill", raceRefill},
	{"race-change", raceChange},
}

// race makes calls from concurrent callers, which start together, and returns
// the sum of their results. An error fails the case.
func race(e *env, callers, calls int, call func(caller, call int) (int64, error)) int64 {
	e.Helper()
	var sum atomic.Int64
	var failed atomic.Pointer[error]
	var done sync.WaitGroup
	start := make(chan struct{})
	for c := range callers {
		done.Go(func() {
			<-start
			for i := range calls {
				n, err := call(c, i)
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				sum.Add(n)
			}
		})
	}
	close(start)
	done.Wait()
	if err := failed.Load(); err != nil {
		e.Fatal(*err)
	}
	return sum.Load()
}

// sweeping calls Sweep in a loop until stop is called.
func (e *env) sweeping() (stop func()) {
	sweep := store.AbilitiesOf(e.store).Sweep
	if sweep == nil {
		return func() {}
	}
	quit := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		for {
			select {
			case <-quit:
				failed <- nil
				return
			default:
			}
			if _, err := sweep(e.ctx, 100); err != nil {
				failed <- err
				return
			}
		}
	}()
	return func() {
		close(quit)
		if err := <-failed; err != nil {
			e.Fatalf("sweep: %v", err)
		}
	}
}

func (e *env) taker(limit, key string, n int64) func(int, int) (int64, error) {
	return func(int, int) (int64, error) {
		d, err := e.l.Take(e.ctx, limit, key, n)
		return d.Granted, err
	}
}

func firstInsert(e *env) {
	e.bucket("fresh", 1, time.Hour, 20)
	defer e.sweeping()()
	for round := range e.rounds {
		if got := race(e, 64, 1, e.taker("fresh", fmt.Sprint("k", round), 1)); got != 20 {
			e.Fatalf("round %d: 64 concurrent first takes with a burst of 20: %d granted", round, got)
		}
	}
}

func casCollapse(e *env) {
	calls := 20 / e.part
	e.bucket("hot", 1, time.Hour, 32*int64(calls))
	if got := race(e, 64, calls, e.taker("hot", "k", 1)); got != 32*int64(calls) {
		e.Fatalf("64 concurrent callers of one key: %d granted, want %d", got, 32*calls)
	}
}

// Concurrent checks do not change how many tokens takes get.
func peekConsumes(e *env) {
	e.bucket("peek", 1, time.Hour, 20)
	for range 50 {
		e.check("peek", "alone", 1)
	}
	e.left("peek", "alone", 20)
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		got := race(e, 32, 4, func(caller, call int) (int64, error) {
			if caller%2 == 0 {
				d, err := e.l.Check(e.ctx, "peek", key, 1)
				return d.Granted, err
			}
			d, err := e.l.Take(e.ctx, "peek", key, 1)
			return d.Granted, err
		})
		if got != 20 {
			e.Fatalf("round %d: %d granted with concurrent checks, want 20", round, got)
		}
	}
}

// Takes from full keys run at the same time as sweeps. A sweep that finds a
// full row and deletes it later would lose the takes in between.
func sweepRace(e *env) {
	e.bucket("swept", 1, time.Hour, 40)
	defer e.sweeping()()
	sweep := store.AbilitiesOf(e.store).Sweep
	const keys, takers = 8, 16
	for round := range e.rounds {
		name := func(call int) string { return fmt.Sprint("k", round, ".", call) }
		take := func(call int) error { _, err := e.l.Take(e.ctx, "swept", name(call), 1); return err }
		refund := func(call int) error { _, err := e.l.Refund(e.ctx, "swept", name(call), 1); return err }
		calls := []func(int) error{take, refund, take}
		if round%2 == 0 {
			// The refund comes last, because a refund on a deleted row would hide that loss.
			calls = []func(int) error{take, take, refund}
			for k := range keys {
				e.must(nil, take(k))
			}
			e.advance(time.Hour)
		}
		race(e, 2*takers, keys, func(caller, call int) (int64, error) {
			if caller >= takers {
				if sweep == nil {
					return 0, nil
				}
				_, err := sweep(e.ctx, 100)
				return 0, err
			}
			for _, f := range calls {
				if err := f(call); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
		for k := range keys {
			d, err := e.l.Check(e.ctx, "swept", name(k), 0)
			if e.must(d, err); d.Remaining != 40-takers {
				e.Fatalf("round %d: %d remaining of 40 after %d were taken", round, d.Remaining, takers)
			}
		}
	}
}

// Calls of one key overlap changes of its limit and sweeps, which delete old
// versions. Tokens are whole and the clock stands still, so all versions count
// alike and the sum is exact.
func raceChange(e *env) {
	const callers = 12
	changes, calls := 300/e.part, 25*300/callers/e.part
	limits := [2]store.Limit{
		{Name: "x", Rate: 1, Period: 24 * time.Hour, Burst: 20_000},
		{Name: "x", Rate: 1, Period: time.Hour, Burst: 20_000},
	}
	e.define(limits[0])
	defer e.sweeping()()
	verbs := []func(context.Context, string, string, int64) (dipwell.Decision, error){e.l.Take, e.l.Charge, e.l.Reserve, e.l.TakeUpTo}
	change := make(chan struct{})
	changed := make(chan error, 1)
	quit, stop := context.WithCancel(e.ctx)
	defer stop()
	go func() {
		for i := range changes {
			select {
			case <-change:
			case <-quit.Done():
				changed <- nil
				return
			}
			if _, err := e.l.Define(e.ctx, limits[(i+1)%2], store.OwnerCode); err != nil {
				changed <- err
				stop() // so that no caller waits for the channel change
				return
			}
		}
		stop()
		changed <- nil
	}()
	granted := race(e, callers, calls, func(caller, call int) (int64, error) {
		if (caller+call)%25 == 0 {
			select {
			case change <- struct{}{}:
			case <-quit.Done():
			}
		}
		d, err := verbs[(caller+call)%len(verbs)](e.ctx, "x", "k", 1)
		return d.Granted, err
	})
	stop()
	e.must(nil, <-changed)
	if d, err := e.l.Check(e.ctx, "x", "k", 0); err != nil || d.Remaining != 20_000-granted {
		e.Fatalf("%d granted of 20000 with %d changes, %d remaining: %+d too many; %v", granted, changes, d.Remaining, d.Remaining+granted-20_000, err)
	}
}

func raceTake(e *env) {
	e.bucket("mixed", 1, time.Hour, 100)
	defer e.sweeping()()
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		got := race(e, 16, 8, func(caller, call int) (int64, error) {
			d, err := e.l.Take(e.ctx, "mixed", key, int64(1+caller%3))
			return d.Granted, err
		})
		d, err := e.l.Check(e.ctx, "mixed", key, 0)
		if err != nil {
			e.Fatal(err)
		}
		if got+d.Remaining != 100 || d.Remaining > 2 {
			e.Fatalf("round %d: %d taken and %d remaining of 100", round, got, d.Remaining)
		}
	}
}

func raceTakeUpTo(e *env) {
	e.bucket("some", 1, time.Hour, 50)
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		got := race(e, 16, 3, func(int, int) (int64, error) {
			d, err := e.l.TakeUpTo(e.ctx, "some", key, 3)
			return d.Granted, err
		})
		if got != 50 {
			e.Fatalf("round %d: %d of 50 granted", round, got)
		}
	}
}

// Two callers cancel each reservation concurrently. One of them succeeds.
func raceReserveCancel(e *env) {
	e.define(store.Limit{Name: "work", Rate: 1, Period: time.Hour, Burst: 4, MaxDebt: 16})
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		var ids [20]store.Reservation
		made := race(e, 20, 1, func(caller, _ int) (int64, error) {
			d, err := e.l.Reserve(e.ctx, "work", key, 1)
			ids[caller] = d.Reservation
			return d.Granted, err
		})
		worked := race(e, 40, 1, func(caller, _ int) (int64, error) {
			if ids[caller%20] == (store.Reservation{}) {
				return 0, nil
			}
			switch err := e.l.Cancel(e.ctx, ids[caller%20]); {
			case err == nil:
				return 1, nil
			case errors.Is(err, store.ErrReservation):
				return 0, nil
			default:
				return 0, err
			}
		})
		d, err := e.l.Check(e.ctx, "work", key, 0)
		if err != nil {
			e.Fatal(err)
		}
		if made != 20 || worked != 16 || d.Remaining != 0 {
			e.Fatalf("round %d: %d of 20 reserved, %d of 16 cancels succeeded, %d remaining; want 0", round, made, worked, d.Remaining)
		}
	}
}

// Groups with the same keys in different orders neither deadlock nor charge only
// some of the keys.
func raceGroup(e *env) {
	e.bucket("a", 1, time.Hour, 30)
	e.bucket("b", 1, time.Hour, 20)
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		got := race(e, 16, 4, func(caller, _ int) (int64, error) {
			takes := []dipwell.Take{{Limit: "a", Key: key, Cost: 1}, {Limit: "b", Key: key, Cost: 1}, {Limit: "a", Key: key + "'", Cost: 1}}
			if caller%2 == 1 {
				takes[0], takes[2] = takes[2], takes[0]
				takes[1], takes[2] = takes[2], takes[1]
			}
			d, err := e.l.TakeAll(e.ctx, takes...)
			if !d.Allowed {
				return 0, err
			}
			return 1, err
		})
		a, errA := e.l.Check(e.ctx, "a", key, 0)
		b, errB := e.l.Check(e.ctx, "b", key, 0)
		if errA != nil || errB != nil {
			e.Fatal(errA, errB)
		}
		if got != 20 || a.Remaining != 10 || b.Remaining != 0 {
			e.Fatalf("round %d: %d calls granted, %d and %d remaining; want 20, 10, 0", round, got, a.Remaining, b.Remaining)
		}
	}
}

// The clock advances during concurrent takes: no more is granted than the burst
// and the tokens that came back.
func raceRefill(e *env) {
	e.bucket("run", 1000, time.Second, 10)
	defer e.sweeping()()
	for round := range e.rounds {
		key := fmt.Sprint("k", round)
		start := e.clock.Load()
		got := race(e, 16, 10, func(int, int) (int64, error) {
			d, err := e.l.Take(e.ctx, "run", key, 1)
			e.clock.Add(37)
			return d.Granted, err
		})
		bound := 10 + earned(1000, time.Second, time.Duration(e.clock.Load()-start)*time.Microsecond)
		if got > bound {
			e.Fatalf("round %d: %d granted, want at most %d", round, got, bound)
		}
	}
}
