package lockstep

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// holdings says what of a limit is held by the callers of a test. Each adds what it
// holds after the store has said so, and takes it off before it gives it back, so
// that the sum is never more than what the store counts.
type holdings struct{ now, most atomic.Int64 }

func (h *holdings) add(n int64) {
	sum := h.now.Add(n)
	for {
		most := h.most.Load()
		if sum <= most || h.most.CompareAndSwap(most, sum) {
			return
		}
	}
}

// TestHoldersNeverExceed: callers hold an estimate of 1 to 4 slots of a concurrency
// limit, some of them die, and the rest release. What is held is never above the
// limit, and when the holds of the dead have expired all of it is free again.
func TestHoldersNeverExceed(t *testing.T) {
	const slots, callers = 10, 32
	eachHoldStore(t, func(t *testing.T, open func(now func() int64) store.Store) {
		var clock atomic.Int64
		clock.Store(time.Now().UnixMicro())
		l, err := dipwell.New(open(clock.Load), dipwell.Limit{Name: "jobs", Algorithm: dipwell.Concurrency, Burst: slots})
		ok(t, err)
		var held holdings
		var taken, died atomic.Int64
		var group sync.WaitGroup
		for w := range callers {
			group.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(w), 7))
				for range 40 {
					n := 1 + rnd.Int64N(4)
					d, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: "jobs", Key: "k", Cost: n})
					if err != nil {
						t.Error(err)
						return
					}
					if !d.Allowed {
						continue
					}
					held.add(n)
					taken.Add(1)
					if n == 1 && rnd.IntN(2) == 0 && died.Add(1) <= 3 { // it dies with its hold
						return
					}
					held.add(-n)
					if _, err := l.Settle(t.Context(), d.Hold); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		if held.most.Load() > slots {
			t.Errorf("%d of %d slots were held at once", held.most.Load(), slots)
		}
		if taken.Load() < callers/2 {
			t.Errorf("%d holds in all", taken.Load())
		}
		d, err := l.Check(t.Context(), "jobs", "k", slots)
		ok(t, err)
		if d.Allowed != (held.now.Load() == 0) {
			t.Errorf("%d slots are held by the dead; a check of all: %+v", held.now.Load(), d)
		}
		clock.Add(time.Minute.Microseconds())
		d, err = l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: "jobs", Key: "k", Cost: slots})
		ok(t, err)
		if !d.Allowed {
			t.Errorf("a minute later a hold of all slots is refused: %+v", d)
		}
	})
}

// TestEstimatesNeverExceed: 1,000 calls at once have a true cost of 0.2 to 1.5 of what they
// hold, twice. Most of them work until all have asked, so that the limit is full.
// What is held and not settled is never above the burst. In the end what is used is the
// sum of the true costs, and the little that the list of lows, which is bounded, has
// forgotten.
func TestEstimatesNeverExceed(t *testing.T) {
	const burst, calls = 10_000, 1000
	eachHoldStore(t, func(t *testing.T, open func(now func() int64) store.Store) {
		var clock atomic.Int64
		clock.Store(time.Now().UnixMicro())
		// The clock stands still during a round: tokens come back only by settling.
		l, err := dipwell.New(open(clock.Load), dipwell.Limit{Name: "tokens", Rate: burst, Period: time.Hour, Burst: burst, MaxCharge: burst, Timeout: time.Minute})
		ok(t, err)
		for round := range uint64(2) {
			var held holdings
			var used, beyond atomic.Int64
			var asked, done sync.WaitGroup
			asked.Add(calls)
			for w := range uint64(calls) {
				done.Go(func() {
					rnd := rand.New(rand.NewPCG(w, round))
					n := 10 + rnd.Int64N(40)
					d, err := l.Hold(t.Context(), time.Hour, "", dipwell.Take{Limit: "tokens", Key: "k", Cost: n})
					if err == nil && d.Allowed {
						held.add(n)
					}
					asked.Done()
					if err != nil || !d.Allowed {
						ok(t, err)
						return
					}
					if w%8 != 0 {
						asked.Wait()
					}
					actual := n * (20 + rnd.Int64N(131)) / 100
					if actual > n {
						beyond.Add(1)
					}
					held.add(-n)
					if s, err := l.Settle(t.Context(), d.Hold, actual); err != nil || s.Repeated {
						t.Errorf("settle: %+v, %v", s, err)
					}
					used.Add(actual)
				})
			}
			done.Wait()
			if most := held.most.Load(); most > burst || most < burst*8/10 {
				t.Errorf("%d of %d tokens were held at once", most, burst)
			}
			if beyond.Load() == 0 {
				t.Error("no call cost more than it held")
			}
			d, err := l.Check(t.Context(), "tokens", "k", 0)
			ok(t, err)
			got := int64(d.ResetAfter * burst / time.Hour)
			if want := used.Load(); got < want || got > want+burst/20 || d.Remaining != max(0, burst-got) {
				t.Errorf("%d tokens are used and %d are left; the true costs are %d", got, d.Remaining, want)
			}
			clock.Add(d.ResetAfter.Microseconds())
		}
	})
}

// TestSettleAtOnce: a settle that is sent many times at once is done once.
func TestSettleAtOnce(t *testing.T) {
	const times = 1000
	eachHoldStore(t, func(t *testing.T, open func(now func() int64) store.Store) {
		now := time.Now().UnixMicro()
		l, err := dipwell.New(open(func() int64 { return now }), dipwell.Limit{Name: "tokens", Rate: 1, Period: time.Hour, Burst: 1000})
		ok(t, err)
		_, err = l.Hold(t.Context(), time.Minute, "id-1", dipwell.Take{Limit: "tokens", Key: "k", Cost: 500})
		ok(t, err)
		var first atomic.Int64
		var group sync.WaitGroup
		start := make(chan struct{})
		for i := range times {
			group.Go(func() {
				<-start
				cost := int64(200)
				if i%10 == 9 {
					cost = 201 // another cost is an error, unless it comes first
				}
				switch d, err := l.Settle(t.Context(), "id-1", cost); {
				case err == nil && !d.Repeated:
					first.Add(cost)
				case err != nil && !errors.Is(err, store.ErrHoldConflict):
					t.Errorf("settle %d: %v", i, err)
				}
			})
		}
		close(start)
		group.Wait()
		d, err := l.Check(t.Context(), "tokens", "k", 0)
		ok(t, err)
		if n := first.Load(); n != 200 && n != 201 || d.Remaining != 1000-n {
			t.Errorf("%d tokens were settled first; %d are left of 1000", n, d.Remaining)
		}
	})
}

// eachHoldStore runs a test on every store, and under all decorators of the service.
func eachHoldStore(t *testing.T, do func(t *testing.T, open func(now func() int64) store.Store)) {
	for _, s := range stores {
		for _, under := range []string{"", "all"} {
			t.Run(fmt.Sprint(s.name, " ", under), func(t *testing.T) {
				t.Parallel()
				do(t, func(now func() int64) store.Store {
					st := s.open(t, now)
					if under != "" {
						st = all(t, st, now)
					}
					return st
				})
			})
		}
	}
}
