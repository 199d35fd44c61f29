package lockstep

import (
	"context"
	"errors"
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

// oneAtATime counts the calls of a store that run at once.
type oneAtATime struct {
	store.Store
	running, most atomic.Int64
}

func (s *oneAtATime) Apply(ctx context.Context, b *store.Batch) error {
	s.most.Store(max(s.most.Load(), s.running.Add(1)))
	defer s.running.Add(-1)
	time.Sleep(50 * time.Microsecond) // a store takes time
	return s.Store.Apply(ctx, b)
}

func (s *oneAtATime) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }

// TestWaiters: 64 callers wait for 1 or 40 tokens, again and again, and one wait in
// ten is cancelled. With debt the callers use at least 0.94 of the rate, and what is
// granted never exceeds the burst and the rate. Without debt they are served in the
// order of their arrival, one of them asks the store at a time, and they use at least
// 0.97 of the rate.
func TestWaiters(t *testing.T) {
	const rate, burst, callers, length = 100, 100, 64, 10 * time.Minute
	for _, c := range []struct {
		name  string
		debt  int64
		share float64
	}{{"with debt", 100_000, 0.94}, {"without debt", dipwell.NoDebt, 0.97}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
				ok(t, err)
				defer func() { ok(t, mem.Close()) }()
				s := &oneAtATime{Store: mem}
				l, err := dipwell.New(s, dipwell.Limit{Name: "l", Rate: rate, Period: time.Second, Burst: burst, MaxDebt: c.debt})
				ok(t, err)
				begin := time.Now()
				end := begin.Add(length)
				var mu sync.Mutex
				var used, arrivals, last, inversions int64
				var group sync.WaitGroup
				for w := range callers {
					group.Go(func() {
						rnd := rand.New(rand.NewPCG(uint64(w), 3))
						// No two callers arrive in the same microsecond.
						time.Sleep(time.Duration(w+1) * 3 * time.Microsecond)
						for time.Now().Before(end) {
							n := int64(1)
							if rnd.IntN(2) == 0 {
								n = 40
							}
							ctx, cancel := context.WithCancel(t.Context())
							if rnd.IntN(10) == 0 {
								time.AfterFunc(time.Duration(rnd.Int64N(int64(12*time.Second))), cancel)
							}
							mu.Lock()
							arrivals++
							turn := arrivals
							mu.Unlock()
							d, err := l.Wait(ctx, "l", "k", n)
							cancel()
							switch {
							case err == nil && d.Allowed:
								mu.Lock()
								if used += n; turn < last {
									inversions++
								}
								last = max(last, turn)
								if most := burst + time.Since(begin).Microseconds()*rate/1e6; used > most {
									t.Errorf("after %v %d tokens were granted, which is more than %d", time.Since(begin), used, most)
								}
								mu.Unlock()
							case err != nil && !errors.Is(err, context.Canceled):
								t.Error(err)
								return
							}
							time.Sleep(time.Duration(1+rnd.IntN(1000)) * time.Microsecond)
						}
					})
				}
				group.Wait()
				share := float64(used) / (rate*time.Since(begin).Seconds() + burst)
				t.Logf("%.4f of the rate was used; %d of %d out of order; at most %d calls of the store at once", share, inversions, arrivals, s.most.Load())
				if share < c.share {
					t.Errorf("%.4f of the rate was used", share)
				}
				if c.debt == dipwell.NoDebt && (inversions > 0 || s.most.Load() > 1) {
					t.Errorf("%d callers out of order; %d calls of the store at once", inversions, s.most.Load())
				}
			})
		})
	}
}
