package lockstep

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/randseed"
	"github.com/dipwell/dipwell/store"
)

// TestAdaptive checks that every store decides as memory does while rates move: random
// histories of takes, reservations, charges, groups and observations, with rows that are
// older than a rate, and new versions.
func TestAdaptive(t *testing.T) {
	seeds := []uint64{randseed.New(t)}
	if !randseed.IsSet() {
		seeds = append(seeds, 1)
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { walkAdaptive(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func walkAdaptive(t *testing.T, rnd *rand.Rand) {
	now := new(atomic.Int64)
	now.Store(epoch)
	limits := make([]store.Limit, 3)
	for i, text := range []string{
		"up=250/1s,burst=100,max_debt=100,adaptive=floor=50;ceiling=500;latency=200ms;errors=2%",
		"slow=250/1s,burst=100,max_charge=3000,adaptive=floor=50;ceiling=500;latency=200ms;window=3s",
		"fixed=1/1h,burst=1000",
	} {
		var err error
		limits[i], err = dipwell.ParseLimit(text)
		ok(t, err)
	}
	var sides []*dipwell.Limiter
	for _, s := range stores {
		l, err := dipwell.New(s.open(t, now.Load), limits...)
		ok(t, err)
		sides = append(sides, l)
	}
	for n := range 300 {
		now.Add(rnd.Int64N([]int64{1000, 1e5, 1e6, 1e6, 2e6, 3e7}[rnd.IntN(6)]))
		var takes []dipwell.Take
		for range 1 + rnd.IntN(2) {
			takes = append(takes, dipwell.Take{Limit: limits[rnd.IntN(3)].Name, Key: "k" + strconv.Itoa(rnd.IntN(3)), Cost: 1 + rnd.Int64N(120)})
		}
		verb := []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReserve, store.VerbTakeUpTo, store.VerbCharge, store.VerbRefund}[rnd.IntN(6)]
		seen := store.Observation{Count: rnd.Int64N(200), Taken: rnd.Int64N(500)}
		seen.Slow = seen.Count * rnd.Int64N(2) * rnd.Int64N(2)
		changed := limits[0]
		changed.Rate = 60 + int64(n)%200
		what := rnd.IntN(11)
		ask := func(l *dipwell.Limiter) string {
			var d dipwell.Decision
			var err error
			switch {
			case what < 3 && verb < store.VerbCharge && verb != store.VerbTakeUpTo:
				err = l.DoAll(t.Context(), &d, verb, takes)
			case what < 6:
				err = l.Do(t.Context(), &d, verb, takes[0])
			case what < 10:
				err = store.AbilitiesOf(l.Store()).Observe(t.Context(), l.Limit(takes[0].Limit), seen)
			case n%4 == 0:
				_, err = l.Define(t.Context(), changed, store.OwnerCode)
			}
			words := []string{fmt.Sprint(err)}
			for _, one := range append(d.Limits, d) {
				words = append(words, fmt.Sprint(one.Limit, one.Allowed, one.Never, one.Granted, one.Remaining, one.RetryAfter, one.ResetAfter, one.Delay))
			}
			return strings.Join(words, "; ")
		}
		want := ask(sides[0])
		for i, l := range sides[1:] {
			if got := ask(l); got != want {
				t.Fatalf("%d: %v %v (%d) at %d:\n%s: %s\n%s: %s", n, verb, takes, what, now.Load()-epoch, stores[0].name, want, stores[1+i].name, got)
			}
		}
	}
}
