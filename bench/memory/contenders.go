package main

import (
	"context"
	"hash/maphash"
	"net/http"
	"sync"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledmem "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

// Every contender has a limit of one a minute with a burst so large that each
// call is allowed. With many keys the rate is one an hour, so that no bucket
// becomes full, and is deleted, during a run.
var (
	per   = time.Minute
	burst = 100_000_000
)

func manyKeys() { per, burst = time.Hour, 2_000_000 }

// A call takes n tokens of a key and reports whether that was allowed.
// Contenders without costs take 1.
type call func(key string, n int) bool

// contenders maps a name to a function that creates a limiter and returns its call.
var contenders = map[string]func() call{
	"dipwell": func() call { return dipwellTake(dipwell.Limit{Burst: int64(burst)}) },
	"dipwell, a window": func() call {
		return dipwellTake(dipwell.Limit{Algorithm: dipwell.FixedWindow, Burst: int64(burst)})
	},
	"dipwell, a window with start": func() call {
		return dipwellTake(dipwell.Limit{Algorithm: dipwell.FixedWindow, Burst: int64(burst), Start: "0s"})
	},
	"x/time map":  xtimeMap,
	"GCRA map":    gcraMap,
	"go-limiter":  goLimiter,
	"throttled":   throttledGCRA,
	"ulule":       ululeMemory,
	"httprate":    httprateKey,
	"(loop only)": func() call { return func(key string, _ int) bool { return key != "" } },
}

var ctx = context.Background()

func dipwellTake(limit dipwell.Limit) call {
	store := must(memstore.New(memstore.Config{MaxKeys: 20_000_000}))
	limit.Name, limit.Rate, limit.Period, limit.MaxDebt, limit.MaxCharge = "api", 1, per, dipwell.NoDebt, 1
	l := must(dipwell.New(store, limit))
	return func(key string, n int) bool {
		d, err := l.Take(ctx, "api", key, int64(n))
		return err == nil && d.Allowed
	}
}

// xtimeMap is a map of golang.org/x/time/rate limiters behind a mutex, the usual solution.
func xtimeMap() call {
	var mu sync.Mutex
	m := map[string]*rate.Limiter{}
	return func(key string, n int) bool {
		mu.Lock()
		l := m[key]
		if l == nil {
			l = rate.NewLimiter(rate.Every(per), burst)
			m[key] = l
		}
		mu.Unlock()
		return l.AllowN(time.Now(), n)
	}
}

// gcraMap is a minimal keyed limiter: 64 maps from a hash to the theoretical
// arrival time, each behind a mutex. gcraMap deletes and validates nothing,
// and returns only yes or no.
func gcraMap() call {
	type shard struct {
		sync.Mutex
		tat map[uint64]int64 // ns
		_   [48]byte
	}
	var shards [64]shard
	for i := range shards {
		shards[i].tat = map[uint64]int64{}
	}
	seed := maphash.MakeSeed()
	each, ahead := int64(per), int64(per)*int64(burst)
	return func(key string, n int) bool {
		h := maphash.String(seed, key)
		s := &shards[h%64]
		now := time.Now().UnixNano()
		s.Lock()
		tat := max(s.tat[h], now) + each*int64(n)
		if tat-now > ahead {
			s.Unlock()
			return false
		}
		s.tat[h] = tat
		s.Unlock()
		return true
	}
}

func goLimiter() call {
	s := must(memorystore.New(&memorystore.Config{Tokens: uint64(burst), Interval: time.Hour, SweepInterval: 24 * time.Hour, SweepMinTTL: 24 * time.Hour}))
	return func(key string, _ int) bool {
		_, _, _, ok, err := s.Take(ctx, key)
		return err == nil && ok
	}
}

func throttledGCRA() call {
	s := must(throttledmem.NewCtx(0))
	l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerDuration(1, per), MaxBurst: burst}))
	return func(key string, n int) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, n)
		return err == nil && !limited
	}
}

func ululeMemory() call {
	l := ulule.New(ululemem.NewStore(), ulule.Rate{Period: time.Hour, Limit: int64(burst)})
	return func(key string, _ int) bool {
		c, err := l.Get(ctx, key)
		return err == nil && !c.Reached
	}
}

// httprateKey is httprate's call for a key, without its middleware's
// response headers.
func httprateKey() call {
	l := httprate.NewRateLimiter(burst, time.Hour, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	r := must(http.NewRequest(http.MethodGet, "/", http.NoBody))
	return func(key string, _ int) bool { return !l.OnLimit(nil, r, key) }
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
