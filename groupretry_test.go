package dipwell_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/randseed"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestRetryAfterAnOverrideEnds checks that the retry of a refused group is exact if the
// override of a key, which allows its take now, ends before the others allow theirs.
func TestRetryAfterAnOverrideEnds(t *testing.T) {
	now := int64(1e15)
	st, err := memstore.New(memstore.Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, dipwell.Limit{Name: "user", Rate: 1, Period: time.Minute, Burst: 2},
		dipwell.Limit{Name: "all", Rate: 1, Period: 10 * time.Second, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	mustTake := func(d dipwell.Decision, err error) {
		if err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if _, err := l.SetOverride(t.Context(), "user", dipwell.Override{Key: "k", Rate: 1, Period: time.Minute, Burst: 100, Until: now + 5e6}); err != nil {
		t.Fatal(err)
	}
	mustTake(l.Take(t.Context(), "user", "k", 2))
	mustTake(l.Take(t.Context(), "all", "k", 5))
	d, err := l.TakeAll(t.Context(), take("user", "k", 1), take("all", "k", 1))
	if err != nil || d.Allowed || d.Limit != "all" || d.RetryAfter != time.Minute || d.Limits[1].RetryAfter != 10*time.Second {
		t.Errorf("%+v, %v", d, err)
	}
	d, err = l.TakeAll(t.Context(), take("user", "k", 3), take("all", "k", 1))
	if err != nil || d.Allowed || !d.Never || d.RetryAfter != 0 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestGroupRetryIsExact checks the retry of groups whose keys have overrides that end: a
// microsecond earlier the group is refused, and then it is allowed.
func TestGroupRetryIsExact(t *testing.T) {
	seed := randseed.New(t)
	rng := rand.New(rand.NewPCG(seed, seed))
	refused := 0
	for range 300 {
		now := int64(1e15) + rng.Int64N(1e9)
		st, err := memstore.New(memstore.Config{Clock: func() int64 { return now }, MaxKeys: 16})
		if err != nil {
			t.Fatal(err)
		}
		l, names := randomLimits(t, rng, st)
		for range 30 {
			now += rng.Int64N(3e6)
			call := make([]dipwell.Take, len(names))
			for i, name := range names {
				call[i] = take(name, "k", rng.Int64N(5))
				if rng.IntN(4) == 0 {
					call[i].Plan = "pro"
				}
				if rng.IntN(10) == 0 {
					setRandomOverride(t, rng, l, name, now)
				}
			}
			d, err := l.TakeAll(t.Context(), call...)
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed && !d.Never {
				refused++
				at := now
				for _, late := range []int64{0, 1} {
					now = at + d.RetryAfter.Microseconds() - 1 + late
					if then, err := check(t, l, call); err != nil || then.Allowed != (late == 1) {
						t.Fatalf("%+v is refused for %v; %d µs after it: %+v, %v", call, d.RetryAfter, late-1, then, err)
					}
				}
				now = at
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if refused < 1000 {
		t.Errorf("only %d refusals", refused)
	}
}

func check(t *testing.T, l *dipwell.Limiter, takes []dipwell.Take) (d dipwell.Decision, err error) {
	err = l.DoAll(t.Context(), &d, store.VerbCheck, takes)
	return d, err
}

func randomLimits(t *testing.T, rng *rand.Rand, st store.Store) (l *dipwell.Limiter, names []string) {
	var limits []dipwell.Limit
	for _, name := range []string{"a", "b", "c"} {
		limit := dipwell.Limit{Name: name, Rate: 1 + rng.Int64N(5), Period: time.Duration(1+rng.IntN(5)) * time.Second, Burst: 5 + rng.Int64N(5), MaxDebt: dipwell.NoDebt,
			Plans: dipwell.NewPlans(dipwell.Plan{Name: "pro", Rate: 1 + rng.Int64N(9), Burst: 5 + rng.Int64N(10)}, dipwell.Plan{Name: "free", Mode: dipwell.Unlimited}, dipwell.Plan{Name: "ban", Mode: dipwell.Blocked, OverrideOnly: true})}
		if limit.Burst > limit.Rate && rng.IntN(3) == 0 {
			limit.Algorithm = dipwell.FixedWindow
		}
		limits, names = append(limits, limit), append(names, name)
	}
	l, err := dipwell.New(st, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l, names
}

func setRandomOverride(t *testing.T, rng *rand.Rand, l *dipwell.Limiter, limit string, now int64) {
	o := dipwell.Override{Key: "k", Until: now + 1 + rng.Int64N(5e6)}
	switch rng.IntN(4) {
	case 0:
		o.Plan = "free"
	case 1:
		o.Plan = "ban"
	default:
		o.Rate, o.Burst = 1+rng.Int64N(9), 4+rng.Int64N(20)
	}
	if _, err := l.SetOverride(t.Context(), limit, o); err != nil {
		t.Fatal(err)
	}
}
