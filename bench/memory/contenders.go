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

// Every contender enforces 100 a second with a burst so large that each call is
// admitted: all of them do the work of a grant.
const (
	perSecond = 100
	burst     = 1_000_000_000
)

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
	l := must(dipwell.New(store, dipwell.Limit{Name: "api", Rate: perSecond, Period: time.Second, Burst: burst}))
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
			l = rate.NewLimiter(perSecond, burst)
			m[key] = l
		}
		mu.Unlock()
		return l.Allow()
	}
}

func goLimiter() func(string) bool {
	s := must(memorystore.New(&memorystore.Config{Tokens: burst, Interval: time.Hour, SweepInterval: 24 * time.Hour, SweepMinTTL: 24 * time.Hour}))
	return func(key string) bool {
		_, _, _, ok, err := s.Take(ctx, key)
		return err == nil && ok
	}
}

func throttledGCRA() func(string) bool {
	s := must(throttledmem.NewCtx(0))
	l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerSec(perSecond), MaxBurst: 10_000_000}))
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited
	}
}

func ululeMemory() func(string) bool {
	l := ulule.New(ululemem.NewStore(), ulule.Rate{Period: time.Hour, Limit: burst})
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
