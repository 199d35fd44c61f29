package main

import (
	"context"
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

// Every contender enforces one a minute with a burst so large that each call
// is admitted: all of them do the work of a grant. Where there are many keys it
// is one an hour, so that no bucket is full again, and forgotten, during a run.
var (
	per   = time.Minute
	burst = 100_000_000
)

func manyKeys() { per, burst = time.Hour, 2_000_000 }

// contenders build a limiter and return its call: whether a key may go on.
var contenders = map[string]func() func(key string) bool{
	"dipwell":     dipwellTake,
	"x/time map":  xtimeMap,
	"go-limiter":  goLimiter,
	"throttled":   throttledGCRA,
	"ulule":       ululeMemory,
	"httprate":    httprateKey,
	"(loop only)": func() func(string) bool { return func(key string) bool { return key != "" } },
}

var ctx = context.Background()

func dipwellTake() func(string) bool {
	store := must(memstore.New(memstore.Config{MaxKeys: 20_000_000}))
	l := must(dipwell.New(store, dipwell.Limit{Name: "api", Rate: 1, Period: per, Burst: int64(burst), MaxDebt: dipwell.NoDebt, MaxCharge: 1}))
	return func(key string) bool {
		d, err := l.Take(ctx, "api", key, 1)
		return err == nil && d.Allowed
	}
}

// xtimeMap is what most programs write: a map of limiters behind a mutex.
func xtimeMap() func(string) bool {
	var mu sync.Mutex
	m := map[string]*rate.Limiter{}
	return func(key string) bool {
		mu.Lock()
		l := m[key]
		if l == nil {
			l = rate.NewLimiter(rate.Every(per), burst)
			m[key] = l
		}
		mu.Unlock()
		return l.Allow()
	}
}

func goLimiter() func(string) bool {
	s := must(memorystore.New(&memorystore.Config{Tokens: uint64(burst), Interval: time.Hour, SweepInterval: 24 * time.Hour, SweepMinTTL: 24 * time.Hour}))
	return func(key string) bool {
		_, _, _, ok, err := s.Take(ctx, key)
		return err == nil && ok
	}
}

func throttledGCRA() func(string) bool {
	s := must(throttledmem.NewCtx(0))
	l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerDuration(1, per), MaxBurst: burst}))
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited
	}
}

func ululeMemory() func(string) bool {
	l := ulule.New(ululemem.NewStore(), ulule.Rate{Period: time.Hour, Limit: int64(burst)})
	return func(key string) bool {
		c, err := l.Get(ctx, key)
		return err == nil && !c.Reached
	}
}

// httprateKey is httprate's call for a key, without the response headers that
// its middleware would format.
func httprateKey() func(string) bool {
	l := httprate.NewRateLimiter(burst, time.Hour, httprate.WithResponseHeaders(httprate.ResponseHeaders{}))
	r := must(http.NewRequest(http.MethodGet, "/", http.NoBody))
	return func(key string) bool { return !l.OnLimit(nil, r, key) }
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
