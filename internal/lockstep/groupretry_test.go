package lockstep

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/randseed"
)

// TestGroupRetryAfterOverrides checks that Limiters over all stores say the same retry of a
// refused group while overrides of its keys end.
func TestGroupRetryAfterOverrides(t *testing.T) {
	seed := randseed.New(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	now := new(atomic.Int64)
	now.Store(epoch)
	limits := []dipwell.Limit{
		{Name: "user", Rate: 2, Period: time.Second, Burst: 5, Plans: dipwell.NewPlans(dipwell.Plan{Name: "free", Mode: dipwell.Unlimited})},
		{Name: "all", Rate: 3, Period: 2 * time.Second, Burst: 7},
	}
	var sides []*dipwell.Limiter
	for _, s := range stores {
		l, err := dipwell.New(s.open(t, now.Load), limits...)
		ok(t, err)
		sides = append(sides, l)
	}
	for range 200 {
		now.Add(rnd.Int64N(1e6))
		takes := []dipwell.Take{{Limit: "user", Key: "k", Cost: rnd.Int64N(5)}, {Limit: "all", Key: "k", Cost: rnd.Int64N(5)}}
		o := dipwell.Override{Key: "k", Rate: 1 + rnd.Int64N(5), Burst: 5 + rnd.Int64N(9), Until: now.Load() + 1 + rnd.Int64N(3e6)}
		if rnd.IntN(3) == 0 {
			o = dipwell.Override{Key: "k", Plan: "free", Until: o.Until}
		}
		sets := rnd.IntN(5) == 0
		var want string
		for i, l := range sides {
			if sets {
				_, err := l.SetOverride(t.Context(), "user", o)
				ok(t, err)
			}
			d, err := l.TakeAll(t.Context(), takes...)
			got := fmt.Sprint(d.Allowed, d.Limit, d.RetryAfter, d.Never, err)
			if i == 0 {
				want = got
			} else if got != want {
				t.Fatalf("%s: %s; %s: %s", stores[i].name, got, stores[0].name, want)
			}
		}
	}
}
