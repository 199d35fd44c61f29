package lease_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/store"
)

const few = "api=20/1s,burst=20,lease=20ms,max_debt=0"

// refused takes all tokens of a key of few, and waits until the refusal is forgotten and
// one token has come back, but not longer than a lease.
func (p *process) refused() {
	p.Helper()
	for range 19 {
		p.take(1)
	}
	time.Sleep(45*time.Millisecond - 20*2*time.Millisecond)
	if d := p.take(1); d.Allowed || d.RetryAfter > 9*time.Millisecond {
		p.Fatalf("%+v", d)
	}
	time.Sleep(8 * time.Millisecond)
}

// takes returns how many Takes the store decided.
func (w *world) takes() int {
	n, _ := w.remote.verbs(store.VerbTake)
	return n
}

// Of calls that come at the same time after a refusal one asks at a time, until one is
// refused: that is the answer of all.
func TestCallsWaitForAnAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(few)
		p.refused()
		before, began := w.takes(), time.Now()
		var granted atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				d := p.take(1)
				if d.Allowed {
					granted.Add(1)
				} else if d.RetryAfter <= 0 || d.Capacity != 19 {
					t.Errorf("%+v", d)
				}
			})
		}
		wg.Wait()
		if n := w.takes() - before; n != 2 || granted.Load() != 1 || time.Since(began) > 4*time.Millisecond {
			t.Errorf("%d trips in %v, %d granted", n, time.Since(began), granted.Load())
		}
		p.close()
	})
}

// A refusal is not the answer of a call that came after it was sent, nor of a cheaper one.
func TestRefusalOfEarlierCall(t *testing.T) {
	for name, c := range map[string]struct {
		cost  int64
		after time.Duration
		trips int
	}{
		"as much, later": {2, 500 * time.Microsecond, 1}, // the deny cache answers

		"less": {1, 500 * time.Microsecond, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start(few)
				p.refused()
				before := w.takes()
				var wg sync.WaitGroup
				wg.Go(func() { p.take(2) })
				time.Sleep(c.after)
				if d := p.take(c.cost); d.Source == store.SourceStore != (c.trips == 2) || d.Allowed != (c.cost == 1) {
					t.Errorf("%+v", d)
				}
				wg.Wait()
				if n := w.takes() - before; n != c.trips {
					t.Errorf("%d trips", n)
				}
				p.close()
			})
		})
	}
}

// A call that waits for the answer of another leaves when its context ends, and was not
// sent.
func TestWaitingCallLeaves(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(few)
		p.refused()
		before, began := w.takes(), time.Now()
		w.remote.there = func() time.Duration { return time.Second }
		var wg sync.WaitGroup
		wg.Go(func() { p.take(1) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Millisecond)
		defer cancel()
		if _, err := p.l.Take(ctx, p.name, p.key, 1); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Error(err)
		}
		if took := time.Since(began); took != 5*time.Millisecond {
			t.Errorf("it left after %v", took)
		}
		wg.Wait()
		if n := w.takes() - before; n != 1 {
			t.Errorf("%d trips", n)
		}
		p.close()
	})
}

// When the store fails, calls that wait ask at once rather than one after another.
func TestWaitingCallsOfFailure(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start(few)
		p.refused()
		w.remote.err = errors.New("down")
		began := time.Now()
		var failed atomic.Int64
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := p.l.Take(w.Context(), p.name, p.key, 1); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 4*time.Millisecond || failed.Load() != 20 {
			t.Errorf("%d calls failed after %v", failed.Load(), took)
		}
		p.close()
	})
}

// overloaded calls a leased key without debt at twice its rate for a second, and then
// leaves it with no tokens and no calls.
func (w *world) overloaded() (p *process, slowest time.Duration, refused int64) {
	w.Helper()
	p = w.start("api=2000/1s,burst=2000,lease=200ms,max_debt=0")
	var calls sync.WaitGroup
	var mu sync.Mutex
	for i := range 12_000 {
		calls.Go(func() {
			asked := time.Now()
			d := p.take(1)
			mu.Lock()
			defer mu.Unlock()
			if slowest = max(slowest, time.Since(asked)); !d.Allowed {
				refused++
				if d.Source == store.SourceStore && (d.RetryAfter <= 0 || d.RetryAfter > time.Millisecond || d.Remaining != 0) {
					w.Errorf("%+v", d)
				}
			}
		})
		if time.Sleep(250 * time.Microsecond); i == 7_999 {
			p.trips.n.Store(0)
		}
	}
	calls.Wait()
	return p, slowest, refused
}

// Above the limit calls wait for the next request, which comes within two fifths of a
// lease. Its answer is a refusal of those that came before.
func TestCallsWaitForTheNextRequest(t *testing.T) {
	inWorld(t, func(w *world) {
		p, slowest, refused := w.overloaded()
		if slowest > 90*time.Millisecond || slowest < 50*time.Millisecond || refused < 3000 {
			t.Errorf("%d calls refused; the slowest took %v", refused, slowest)
		}
		if n := p.trips.n.Load(); n > 4*5 {
			t.Errorf("%d trips in five leases", n)
		}
		p.close()
	})
}

// A call whose context ends before the next request asks the store itself.
func TestCallsThatCannotWait(t *testing.T) {
	inWorld(t, func(w *world) {
		p, _, _ := w.overloaded()
		for range 50 {
			ctx, cancel := context.WithTimeout(w.Context(), 9*time.Millisecond)
			if _, err := p.l.Take(ctx, p.name, p.key, 1); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		p.close()
	})
}

// At most 1,024 calls of a key wait for the next request. On a busy machine some of the others
// ask later than all at once.
func TestMostCallsThatWait(t *testing.T) {
	inWorld(t, func(w *world) {
		p, _, _ := w.overloaded()
		began := time.Now()
		var soon atomic.Int64
		var calls sync.WaitGroup
		for range 5000 {
			calls.Go(func() {
				if p.take(1); time.Since(began) < 15*time.Millisecond {
					soon.Add(1)
				}
			})
		}
		if calls.Wait(); soon.Load() < 2000 || time.Since(began) < 40*time.Millisecond {
			t.Errorf("%d of 5000 calls had an answer within 15 ms, the last after %v", soon.Load(), time.Since(began))
		}
		p.close()
	})
}

// A remembering store says of each check that is refused with a request that it was refused
// from memory, as a deny cache says that has heard of a refusal since the request was planned.
type remembering struct {
	store.Store
	checks atomic.Int64
}

func (r *remembering) Abilities() store.Abilities { return store.AbilitiesOf(r.Store) }

func (r *remembering) Apply(ctx context.Context, b *store.Batch) error {
	err := r.Store.Apply(ctx, b)
	if len(b.Groups) > 1 && !b.Groups[1].Allowed {
		b.Groups[1].Ops[0].Source = store.SourceDenyCache
		r.checks.Add(1)
	}
	return err
}

// Callers who waited for a request are not refused by what a deny cache said of the check
// that went with it: that is as old as the request, and their tokens may have come back.
func TestOldRefusalOfWaitingCalls(t *testing.T) {
	inWorld(t, func(w *world) {
		cache := &remembering{}
		p := w.startWith("api=2000/1s,burst=2000,lease=200ms,max_debt=0", func(trips store.Store) store.Store {
			cache.Store = trips
			return cache
		})
		var calls sync.WaitGroup
		for range 4000 {
			calls.Go(func() {
				if d := p.take(1); d.Source == store.SourceDenyCache {
					t.Errorf("%+v", d)
				}
			})
			time.Sleep(250 * time.Microsecond)
		}
		if calls.Wait(); cache.checks.Load() == 0 {
			t.Error("no check was refused")
		}
		p.close()
	})
}
