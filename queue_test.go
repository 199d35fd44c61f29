package dipwell_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// oneAtATime fails if two calls are in the store at one time. Each takes 1 ms.
type oneAtATime struct {
	store.Store
	t      *testing.T
	inside atomic.Int32
	calls  int
}

func (s *oneAtATime) Apply(ctx context.Context, b *store.Batch) error {
	if s.inside.Add(1) != 1 {
		s.t.Error("two waiters ask the store at one time")
	}
	defer s.inside.Add(-1)
	s.calls++
	time.Sleep(time.Millisecond)
	return s.Store.Apply(ctx, b)
}

// newWaits returns a limiter without debt, 100 a second up to 100, over a store
// that admits one call at a time.
func newWaits(t *testing.T) (*dipwell.Limiter, *oneAtATime) {
	epoch := time.Now()
	mem, err := memstore.New(memstore.Config{Clock: func() int64 { return 1e15 + time.Since(epoch).Microseconds() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	st := &oneAtATime{Store: mem, t: t}
	l, err := dipwell.New(st, dipwell.Limit{Name: "work", Rate: 100, Period: time.Second, MaxDebt: dipwell.NoDebt})
	if err != nil {
		t.Fatal(err)
	}
	return l, st
}

// 64 callers wait, with costs of 1 and 40; one in ten gives up. The others are
// served in the order in which they came, the store is asked by one at a time,
// and nearly all of the rate is used.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newWaits(t)
		rnd := rand.New(rand.NewPCG(1, 2))
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		var (
			mu      sync.Mutex
			served  []int
			granted int64
			wg      sync.WaitGroup
		)
		start := time.Now()
		for i := range 640 {
			ctx, cancel := context.WithCancel(t.Context())
			cost := int64(1)
			if i%2 == 0 {
				cost = 40
			}
			if i%10 == 9 {
				time.AfterFunc(time.Duration(rnd.IntN(100_000))*time.Millisecond, cancel)
			}
			wg.Go(func() {
				defer cancel()
				d, err := l.Wait(ctx, "work", "k", cost)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && d.Allowed:
					served, granted = append(served, i), granted+cost
				case !errors.Is(err, context.Canceled) || d.Allowed || d.Granted != 0:
					t.Errorf("waiter %d: %+v, %v", i, d, err)
				}
			})
			synctest.Wait() // it is in the queue
		}
		wg.Wait()
		for i := 1; i < len(served); i++ {
			if served[i] < served[i-1] {
				t.Errorf("%d was served before %d", served[i-1], served[i])
			}
		}
		if len(served) < 570 {
			t.Errorf("%d of 640 were served", len(served))
		}
		if share := float64(granted) / (100 * time.Since(start).Seconds()); share < 0.97 || share > 1 {
			t.Errorf("%v of the rate was used", share)
		}
		if st.calls > 3*640 {
			t.Errorf("%d calls for 640 waiters", st.calls)
		}
	})
}

// 50 waiters that give up at once cost nothing, and leave no queue behind.
func TestWaitersGiveUpAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newWaits(t)
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		for range 50 {
			go func() {
				_, err := l.Wait(ctx, "work", "k", 100)
				errs <- err
			}()
		}
		synctest.Wait()
		cancel()
		for range 50 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter that gave up: %v", err)
			}
		}
		if st.calls > 2 {
			t.Errorf("%d calls of the store", st.calls)
		}
		time.Sleep(time.Second)
		start := time.Now()
		if d, err := l.Wait(t.Context(), "work", "k", 100); err != nil || !d.Allowed || time.Since(start) > 2*time.Millisecond {
			t.Errorf("after they gave up: %+v, %v after %v", d, err, time.Since(start))
		}
	})
}

// A caller in the queue that has no time left gets the context's error; one that
// can never be served is refused at once, whoever waits.
func TestWaitInQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newWaits(t)
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		first := make(chan error)
		go func() {
			d, err := l.Wait(t.Context(), "work", "k", 100)
			if err == nil && !d.Allowed {
				err = fmt.Errorf("refused: %+v", d)
			}
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		if d, err := l.Wait(ctx, "work", "k", 1); !errors.Is(err, context.DeadlineExceeded) || d.Allowed || d.Cost != 1 || time.Since(start) != 100*time.Millisecond {
			t.Errorf("in the queue until its deadline: %+v, %v after %v", d, err, time.Since(start))
		}
		start = time.Now()
		if d, err := l.Wait(t.Context(), "work", "k", 101); err != nil || !d.Never || time.Since(start) > 2*time.Millisecond {
			t.Errorf("more than the burst: %+v, %v after %v", d, err, time.Since(start))
		}
		if _, err := l.Wait(t.Context(), "work", "k", -1); err == nil || time.Since(start) > 2*time.Millisecond {
			t.Errorf("a cost of -1: %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// silentContext is a context that ends without its Done channel being closed, as
// if a waiter's select had picked another channel.
type silentContext struct {
	context.Context
	ended atomic.Bool
}

func (*silentContext) Done() <-chan struct{} { return nil }

func (c *silentContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// A caller whose context has ended when its turn comes, or when its sleep ends,
// takes nothing.
func TestWaitEndsWithItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newWaits(t)
		if d, err := l.Take(t.Context(), "work", "k", 100); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		sleeps, queues := &silentContext{Context: t.Context()}, &silentContext{Context: t.Context()}
		var wg sync.WaitGroup
		for _, ctx := range []*silentContext{sleeps, queues} {
			wg.Go(func() {
				if d, err := l.Wait(ctx, "work", "k", 10); !errors.Is(err, context.Canceled) || d.Allowed || d.Granted != 0 || d.Cost != 10 || d.Limit != "work" {
					t.Errorf("%+v, %v", d, err)
				}
			})
			synctest.Wait() // it sleeps, or is in the queue
		}
		time.Sleep(time.Millisecond) // of the store
		calls := st.calls
		sleeps.ended.Store(true)
		queues.ended.Store(true)
		wg.Wait()
		if st.calls != calls {
			t.Errorf("%d calls of the store after the contexts ended", st.calls-calls)
		}
	})
}
