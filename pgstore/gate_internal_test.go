package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/store"
)

// empty reports whether nobody is in any gate or waits for one.
func (t *gates) empty() bool {
	for i := range t.slots {
		if g := &t.slots[i]; g.taken != 0 || g.waiting.Len() > 0 {
			return false
		}
	}
	return true
}

// TestGateOrder: as many calls of a key as there are seats have different ones, and the
// others get theirs in the order in which they came.
func TestGateOrder(t *testing.T) {
	for _, n := range []int{1, 3, 64} {
		synctest.Test(t, func(t *testing.T) {
			gates := newGates()
			in := map[int]seat{}
			for range n {
				at, err := gates.enter(t.Context(), 1, "k", n, rowWait, waiter{})
				if err != nil || at.gate == nil || at.n < 0 || at.n >= n || in[at.n].gate != nil {
					t.Fatalf("%+v of %d seats, %v; %v are taken", at, n, err, in)
				}
				in[at.n] = at
			}
			var served []int
			for i := range 5 {
				go func() {
					at, err := gates.enter(t.Context(), 1, "k", n, rowWait, waiter{})
					if err != nil || at.gate == nil {
						t.Error(at, err)
					}
					served = append(served, i)
					at.leave()
				}()
				synctest.Wait()
			}
			if len(served) > 0 {
				t.Fatalf("%v were served while all seats were taken", served)
			}
			for _, at := range in {
				at.leave()
				synctest.Wait()
			}
			for i := range served {
				if served[i] != i {
					t.Errorf("served in the order %v", served)
				}
			}
			if len(served) != 5 || !gates.empty() {
				t.Errorf("%v were served; empty: %v", served, gates.empty())
			}
		})
	}
}

// TestGateLeftEarly: a call whose context ends while it waits gets an error that says
// that nothing was sent, and the one behind it is served. One that has waited for
// rowWait goes on without a seat.
func TestGateLeftEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := newGates()
		first, _ := gates.enter(t.Context(), 1, "k", 1, rowWait, waiter{})
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), rowWait/2)
		defer cancel()
		if at, err := gates.enter(ctx, 1, "k", 1, rowWait, waiter{}); at.gate != nil || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v after the end of the context", at, err)
		}
		if at, err := gates.enter(t.Context(), 1, "k", 1, rowWait, waiter{}); at.gate != nil || err != nil {
			t.Errorf("%+v, %v after rowWait", at, err)
		}
		if waited := time.Since(begun); waited != rowWait/2+rowWait {
			t.Errorf("waited for %v", waited)
		}
		got := make(chan seat, 1)
		go func() {
			at, err := gates.enter(t.Context(), 1, "k", 1, rowWait, waiter{})
			if err != nil {
				t.Error(err)
			}
			got <- at
		}()
		synctest.Wait()
		first.leave()
		(<-got).leave()
		if !gates.empty() {
			t.Error("somebody is left in a gate")
		}
	})
}

// TestGateOfAnotherKey: keys never wait for each other, even if they share a slot, and
// neither does a store without gates.
func TestGateOfAnotherKey(t *testing.T) {
	gates, met := newGates(), 0
	var in []seat
	for i := range 2 * gateSlots {
		at, err := gates.enter(t.Context(), int32(i%2), strconv.Itoa(i/2), 1, rowWait, waiter{})
		if err != nil {
			t.Fatal(err)
		}
		if at.gate == nil {
			met++
		}
		in = append(in, at)
	}
	if met == 0 || met == len(in) {
		t.Errorf("%d of %d keys found the slot taken", met, len(in))
	}
	for _, at := range in {
		at.leave()
	}
	if !gates.empty() {
		t.Error("somebody is left in a gate")
	}
	gates = nil
	for range 2 {
		at, err := gates.enter(t.Context(), 1, "k", 1, rowWait, waiter{})
		if err != nil {
			t.Fatal(err)
		}
		defer at.leave()
	}
}

// TestGateUnderLoad: no two calls have a seat at the same time, whoever gives up, and
// nothing is left behind.
func TestGateUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := newGates()
		var seats [3][4]atomic.Int32 // by key
		var late, gone, served atomic.Int32
		var all sync.WaitGroup
		for w := range 16 {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(w), 1))
				for range 200 {
					key := random.IntN(3)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.Int64N(int64(3*rowWait))))
					at, err := gates.enter(ctx, 1, strconv.Itoa(key), 1+key, rowWait, waiter{})
					cancel()
					switch {
					case err != nil:
						gone.Add(1)
						continue
					case at.gate == nil:
						late.Add(1)
						continue
					}
					if n := seats[key][at.n].Add(1); n != 1 || at.n > key {
						t.Errorf("%d calls have seat %d of key %d", n, at.n, key)
					}
					time.Sleep(time.Duration(random.Int64N(int64(rowWait / 4))))
					seats[key][at.n].Add(-1)
					served.Add(1)
					at.leave()
				}
			})
		}
		all.Wait()
		if late.Load() == 0 || gone.Load() == 0 || served.Load() == 0 || !gates.empty() {
			t.Errorf("%d went without a seat, %d gave up, %d had one; empty: %v", late.Load(), gone.Load(), served.Load(), gates.empty())
		}
	})
}
