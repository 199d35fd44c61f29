package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/randseed"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// upstream is 250 a second at first, 50 at least and 500 at most.
func upstream(t testing.TB) store.Limit {
	t.Helper()
	l, err := dipwell.ParseLimit("up=250/1s,burst=100,max_debt=100,adaptive=floor=50;ceiling=500;latency=200ms;errors=2%")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func observe(t testing.TB, s store.Store, d *store.Definition, o store.Observation) {
	t.Helper()
	if err := store.AbilitiesOf(s).Observe(t.Context(), d, o); err != nil {
		t.Fatal(err)
	}
}

// counter counts the commands that a client sends.
type counter struct{ sent atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

// TestRateOfOthers checks that programs add up their samples, and that the next call of
// each is decided by the rate that another has set, in one call of a script.
func TestRateOfOthers(t *testing.T) {
	t.Parallel()
	now := new(atomic.Int64)
	now.Store(1.7e15)
	db, sent := connect(t, redistest.Shared(t).URL()), new(counter)
	c := redisstore.Config{Prefix: "others", Clock: now.Load, Poll: -1}
	a, db2 := newStore(t, client(t), c), db
	la := limiter(t, a, upstream(t))
	db2.AddHook(sent)
	b := newStore(t, db2, c)
	lb, err := dipwell.New(b)
	if err != nil {
		t.Fatal(err)
	}
	d := la.Limit("up")
	take := func(l *dipwell.Limiter, key string) dipwell.Decision {
		t.Helper()
		answer, err := l.Take(t.Context(), "up", key, 100)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	take(lb, "first") // the script is cached now
	observe(t, a, d, store.Observation{Count: 15, Slow: 15})
	observe(t, b, d, store.Observation{Count: 15, Slow: 15}) // 15 alone would not be judged
	now.Add(1e6)
	observe(t, a, d, store.Observation{})
	take(lb, "k")
	before := sent.sent.Load()
	if refused := take(lb, "k"); refused.Allowed || refused.RetryAfter != 500734*time.Microsecond {
		t.Fatalf("%+v", refused)
	}
	if n := sent.sent.Load() - before; n != 1 {
		t.Errorf("%d commands", n)
	}
	for range 5 {
		now.Add(1e6)
		observe(t, a, d, store.Observation{Count: 1000, Taken: 1000})
		before := sent.sent.Load()
		if !take(lb, "k").Allowed {
			t.Fatal("refused")
		}
		if n := sent.sent.Load() - before; n != 1 {
			t.Errorf("%d commands after the rate changed", n)
		}
	}
}

// TestRateIsForgotten checks that the key of a rate goes with its limit, and that a limit
// that is adaptive again begins at its rate.
func TestRateIsForgotten(t *testing.T) {
	t.Parallel()
	now := new(atomic.Int64)
	now.Store(1.7e15)
	db := client(t)
	s := newStore(t, db, redisstore.Config{Prefix: "forgotten", Clock: now.Load, Poll: -1})
	limit := upstream(t)
	l := limiter(t, s, limit)
	exists := func() bool { return db.Exists(t.Context(), "forgotten.rate:up").Val() == 1 }
	slow := func() {
		for range 2 {
			observe(t, s, l.Limit("up"), store.Observation{Count: 100, Slow: 100})
			now.Add(1e6)
		}
		observe(t, s, l.Limit("up"), store.Observation{})
	}
	slow()
	if !exists() {
		t.Fatal("there is no rate")
	}
	fixed := limit
	fixed.Adaptive = store.Adaptive{}
	if _, err := l.Define(t.Context(), fixed, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if exists() {
		t.Error("a limit that is not adaptive any more has a rate")
	}
	if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	slow()
	if err := l.Drop(t.Context(), "up", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if exists() {
		t.Error("a limit that was dropped has a rate")
	}
	if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if rate, reason, _ := l.Limit("up").CurrentRate(now.Load()); rate != 250 || reason != "defined" {
		t.Errorf("begins at %d (%s)", rate, reason)
	}
}

// TestRateReachesCluster checks that programs on a cluster learn of a rate that another
// has set, and decide by it.
func TestRateReachesCluster(t *testing.T) {
	t.Parallel()
	url := redistest.SharedCluster(t).URL()
	c := redisstore.Config{Prefix: "reaches"}
	limit := upstream(t)
	limit.Adaptive.Window = 100 * time.Millisecond
	a, b := newStore(t, connect(t, url), c), newStore(t, connect(t, url), c)
	la := limiter(t, a, limit)
	lb, err := dipwell.New(b)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "defined for the other program", func() bool { return lb.Limit("up") != nil })
	eventually(t, "lowered for the other program", func() bool {
		observe(t, a, la.Limit("up"), store.Observation{Count: 100, Slow: 100})
		at, err := b.Abilities().Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rate, reason, _ := lb.Limit("up").CurrentRate(at)
		return rate < 250 && reason == "latency"
	})
	if d, err := lb.Take(t.Context(), "up", "k", 100); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
}

// TestBucketOutlivesRate checks that a bucket does not expire before it is full, however
// low the rate falls.
func TestBucketOutlivesRate(t *testing.T) {
	t.Parallel()
	db, prefix := client(t), fmt.Sprint("outlives", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix})
	limit := upstream(t)
	limit.Burst = 10_000
	l := limiter(t, s, limit)
	for key, take := range map[string]func() error{
		"{script}": func() error { _, err := l.Take(t.Context(), "up", "script", 10_000); return err },
		"{go}": func() error {
			_, err := l.Hold(t.Context(), time.Minute, "", dipwell.Take{Limit: "up", Key: "go", Cost: 10_000})
			return err
		},
	} {
		from := db.Time(t.Context()).Val()
		if err := take(); err != nil {
			t.Fatal(err)
		}
		to := db.Time(t.Context()).Val()
		at := time.UnixMilli(db.PExpireTime(t.Context(), prefix+":up:"+key).Val().Milliseconds())
		if at.Before(from.Add(190*time.Second)) || at.After(to.Add(199*time.Second)) { // at 50.3 a second
			t.Errorf("the bucket %s lives for %v to %v", key, at.Sub(to), at.Sub(from))
		}
	}
}

// TestAdaptiveTwins checks that the script decides random histories as Go does: at random
// levels, with rows older than the levels, debts, groups and clocks that step back.
func TestAdaptiveTwins(t *testing.T) {
	t.Parallel()
	first := randseed.New(t)
	for i := range uint64(rounds(6)) {
		t.Run(fmt.Sprint("seed=", first+i), func(t *testing.T) {
			rnd, now := rand.New(rand.NewPCG(first+i, 0)), new(atomic.Int64)
			now.Store(1.7e15)
			r := newStore(t, client(t), redisstore.Config{Clock: now.Load, Poll: -1})
			limits := []store.Limit{upstream(t), upstream(t), drained("fixed", 1000)}
			limits[1].Name, limits[1].Adaptive.Window, limits[1].MaxCharge = "slow", 3*time.Second, 3000
			var sides []*dipwell.Limiter
			// In memory a row may be forgotten once it is full, before the clock steps back.
			for _, s := range []store.Store{limittest.NewModel(now.Load), r} {
				sides = append(sides, limiter(t, s, limits...))
			}
			for n := range 300 {
				now.Add(rnd.Int64N([]int64{1000, 1e5, 1e6, 1e6, 2e6, 3e7}[rnd.IntN(6)]) - rnd.Int64N(2)*rnd.Int64N(2)*rnd.Int64N(1e6))
				var takes []dipwell.Take
				for range 1 + rnd.IntN(2) {
					takes = append(takes, dipwell.Take{Limit: limits[rnd.IntN(3)].Name, Key: "k" + strconv.Itoa(rnd.IntN(3)), Cost: 1 + rnd.Int64N(120)})
				}
				verb := []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReserve, store.VerbTakeUpTo, store.VerbCharge, store.VerbRefund}[rnd.IntN(6)]
				if verb != store.VerbTake && verb != store.VerbCheck && verb != store.VerbReserve {
					takes = takes[:1]
				}
				seen := store.Observation{Count: rnd.Int64N(200), Taken: rnd.Int64N(500)}
				seen.Slow = seen.Count * rnd.Int64N(2) * rnd.Int64N(2)
				what := rnd.IntN(10)
				var answers []string
				for _, l := range sides {
					var d dipwell.Decision
					var err error
					switch {
					case what < 6:
						err = l.DoAll(t.Context(), &d, verb, takes)
					case what < 9:
						err = store.AbilitiesOf(l.Store()).Observe(t.Context(), l.Limit(takes[0].Limit), seen)
					case n%4 == 0:
						changed := limits[0]
						changed.Rate = 60 + int64(n)%200
						_, err = l.Define(t.Context(), changed, store.OwnerCode)
					}
					text := fmt.Sprint(err)
					for _, one := range append(d.Limits, d) {
						text += fmt.Sprintf("; %s %v %v %d %d %v %v %v", one.Limit, one.Allowed, one.Never, one.Granted, one.Remaining, one.RetryAfter, one.ResetAfter, one.Delay)
					}
					answers = append(answers, text)
				}
				if answers[0] != answers[1] {
					t.Fatalf("%d: %v %v at %d: the model and Redis answer\n%s", n, verb, takes, now.Load(), strings.Join(answers, "\n"))
				}
			}
		})
	}
}
