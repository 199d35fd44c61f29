package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/store"
)

// limits are the limits that dipwell's contenders use. The last limit
// is drained at the start.
var limits = []dipwell.Limit{
	{Name: commonLimit, Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: "tenant", Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: "global", Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: windowLimit, Algorithm: dipwell.FixedWindow, Rate: burst, Period: time.Second},
	{Name: drainedLimit, Rate: 1, Period: 24 * time.Hour},
	{Name: plansLimit, Rate: perSecond, Period: time.Second, Burst: burst, Plans: store.NewPlans(store.Plan{Name: "pro", Burst: 2 * burst})},
	{Name: "globe", Rate: perSecond, Period: time.Second, Burst: burst, Shared: true},
	{Name: "team", Rate: perSecond, Period: time.Second, Burst: burst, Parent: "globe"},
	{Name: "member", Rate: perSecond, Period: time.Second, Burst: burst, Parent: "team"},
	{Name: "held", Rate: 1, Period: time.Second, Burst: burst}, // held tokens do not come back by time
	{Name: "jobs", Algorithm: dipwell.Concurrency, Burst: 100},
}

// crowdKey is a key of the limit held that has as many live holds as the constant crowd says.
const (
	crowdKey = "crowd"
	crowd    = 1000
)

// overridden is the number of keys of plansLimit that have an override.
const overridden = 1000

// prepare sets the overrides and makes the holds that the verbs need.
func (b *bench) prepare(ctx context.Context) error {
	for i := range overridden {
		if _, err := b.single.SetOverride(ctx, plansLimit, dipwell.Override{Key: overriddenKey(i), Burst: 2 * burst}); err != nil {
			return err
		}
	}
	for range crowd {
		if _, err := b.single.Hold(ctx, time.Hour, "", dipwell.Take{Limit: "held", Key: crowdKey, Cost: 1}); err != nil {
			return err
		}
	}
	return nil
}

func overriddenKey(i int) string { return "vip" + load.Key(i) }

// overridesOf takes from the keys that have an override, in turn.
func overridesOf() caller {
	var n atomic.Int64
	return func(ctx context.Context, l *dipwell.Limiter, _ string) (bool, error) {
		d, err := l.Take(ctx, plansLimit, overriddenKey(int(n.Add(1)%overridden)), 1)
		return d.Allowed, err
	}
}

func planned(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
	d, err := l.TakeAll(ctx, dipwell.Take{Limit: plansLimit, Key: key, Plan: "pro", Cost: 1})
	return d.Allowed, err
}

func levels(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
	d, err := l.Take(ctx, "member", key[:len(key)-2]+"/"+key[len(key)-2:], 1)
	return d.Allowed, err
}

// holdAndSettle holds 10 tokens and settles to 7, of the given key, or of key if that is
// empty.
func holdAndSettle(limit, of string) caller {
	return func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
		if of != "" {
			key = of
		}
		d, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: limit, Key: key, Cost: 10})
		if err != nil || !d.Allowed {
			return false, err
		}
		d, err = l.Settle(ctx, d.Hold, 7)
		return d.Allowed, err
	}
}

// A verb is one kind of call. target is the most processor time that it may
// use, as a multiple of a Take's; least is the rate that it must reach
// coalesced, as a multiple of that of coalesced Takes. 0: no target.
type verb struct {
	name          string
	call          caller
	target, least float64
	alone         bool // the verb is not measured coalesced
}

// A caller makes one call for a key, and reports whether it was allowed.
type caller func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error)

func one(v store.Verb) caller { return of(commonLimit, v) }

func of(limit string, v store.Verb) caller {
	return func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
		var d dipwell.Decision
		err := l.Do(ctx, &d, v, dipwell.Take{Limit: limit, Key: key, Cost: 1})
		return d.Allowed, err
	}
}

func takeAll(limits ...string) caller {
	return func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
		takes := make([]dipwell.Take, len(limits))
		for i, name := range limits {
			takes[i] = dipwell.Take{Limit: name, Key: key, Cost: 1}
		}
		d, err := l.TakeAll(ctx, takes...)
		return d.Allowed, err
	}
}

var verbs = []verb{
	{name: "Take", call: one(store.VerbTake)},
	{name: twoName, call: takeAll(commonLimit, "tenant"), target: 1.5},
	{name: "TakeAll of 3", call: takeAll(commonLimit, "tenant", "global")},
	{name: "TakeUpTo", call: one(store.VerbTakeUpTo), target: 1.5, least: 0.6},
	{name: "Reserve", call: one(store.VerbReserve), target: 1.5, least: 0.6},
	{name: "Charge", call: one(store.VerbCharge), target: 1.5, least: 0.6},
	{name: "Refund", call: one(store.VerbRefund)},
	{name: "Take of a window", call: of(windowLimit, store.VerbTake)},
	{name: "Check", call: one(store.VerbCheck), target: 1.5},
	{name: "Take under a plan", call: planned, target: 1.11},
	{name: "Take under an override", call: overridesOf(), target: 1.11},
	{name: "Take of three levels", call: levels, target: 2.6, least: 0.25},
	{name: holdName, call: holdAndSettle("held", ""), target: 2.2, alone: true},
	{name: "Hold and settle beside 1,000 holds", call: holdAndSettle("held", crowdKey), target: 2.2, alone: true},
	{name: slotName, call: holdAndSettle("jobs", ""), target: 2.2, alone: true},
}

// mixedCosts takes from 1 to 5 tokens from a key.
func mixedCosts() caller {
	var n atomic.Int64
	return func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
		d, err := l.Take(ctx, commonLimit, key, 1+n.Add(1)%5)
		return d.Allowed, err
	}
}

// tenants takes from a user and from one of a few tenants.
func tenants(few int64) caller {
	var n atomic.Int64
	return func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
		d, err := l.TakeAll(ctx, dipwell.Take{Limit: commonLimit, Key: key, Cost: 1}, dipwell.Take{Limit: "tenant", Key: load.Key(int(n.Add(1) % few)), Cost: 1})
		return d.Allowed, err
	}
}

// fivePercent has one call in twenty take mixed costs from one hot key.
func fivePercent(rare caller) caller {
	var n atomic.Int64
	return func(ctx context.Context, l *dipwell.Limiter, key string) (bool, error) {
		if n.Add(1)%20 == 0 {
			return rare(ctx, l, hotKey)
		}
		d, err := l.Take(ctx, commonLimit, key, 1)
		return d.Allowed, err
	}
}

// over returns a contender that makes the call c through the limiter l.
func over(l *dipwell.Limiter, c caller) contender {
	return func(ctx context.Context, key string) (bool, error) { return c(ctx, l, key) }
}

// addCalls adds contenders for each verb, coalesced and alone, and those of mixed calls.
func (b *bench) addCalls() {
	for _, v := range verbs {
		b.contenders[v.name] = over(b.coalesced, v.call)
		b.contenders[v.name+alone] = over(b.single, v.call)
	}
	b.contenders[mixedName] = over(b.coalesced, mixedCosts())
	b.contenders[tenantsName] = over(b.coalesced, tenants(10))
	b.contenders[rareMixedName] = over(b.coalesced, fivePercent(mixedCosts()))
	b.contenders[rareName] = over(b.coalesced, fivePercent(one(store.VerbTake)))
}

// singleVerbs writes the processor time of each verb with one caller.
func (b *bench) singleVerbs(ctx context.Context, w io.Writer, rounds int, length time.Duration) (reached, asked int, err error) {
	server, client := make([][]float64, len(verbs)), make([][]float64, len(verbs))
	for round := range rounds {
		for i := range verbs {
			at := (i + round) % len(verbs)
			s, c, err := b.timeVerb(ctx, verbs[at].call, length)
			if err != nil {
				return 0, 0, fmt.Errorf("%s: %w", verbs[at].name, err)
			}
			server[at], client[at] = append(server[at], s), append(client[at], c)
		}
	}
	var rows [][]string
	var take float64
	for i, v := range verbs {
		s, c := report.Median(server[i]), report.Median(client[i])
		if i == 0 {
			take = s + c
		}
		row := []string{v.name, fmt.Sprintf("%.1f", s), fmt.Sprintf("%.1f", c), fmt.Sprintf("%.2f", (s+c)/take), "", ""}
		if v.target > 0 {
			ok := (s+c)/take <= v.target
			row[4], row[5] = fmt.Sprintf("≤ %g", v.target), report.Verdict(ok)
			if asked++; ok {
				reached++
			}
		}
		rows = append(rows, row)
	}
	fmt.Fprint(w, "## Each verb alone, 10,000 keys, one goroutine\n\n")
	report.Table(w, []string{"", "server µs a call", "client µs a call", "both × Take", "target", "reached"}, rows)
	return reached, asked, nil
}

// timeVerb makes calls for a while from one goroutine, and returns the
// processor time of a call in µs: the server's, and that of this process.
func (b *bench) timeVerb(ctx context.Context, call caller, length time.Duration) (server, client float64, err error) {
	const warmUp = 200
	random := rand.New(rand.NewPCG(1, 2))
	calls := 0
	var s0, c0 time.Duration
	var end time.Time
	for ; calls <= warmUp || time.Now().Before(end); calls++ {
		if calls == warmUp {
			if s0, err = redisTime(ctx, b.redis); err != nil {
				return 0, 0, err
			}
			c0, end = cpu.Own(), time.Now().Add(length)
		}
		if allowed, err := call(ctx, b.single, load.Key(random.IntN(numKeys))); err != nil || !allowed {
			return 0, 0, fmt.Errorf("allowed: %v, %w", allowed, err)
		}
	}
	n := float64(calls-warmUp) * 1000
	c1 := cpu.Own()
	s1, err := redisTime(ctx, b.redis)
	return float64(s1-s0) / n, float64(c1-c0) / n, err
}

// redisTime returns the processor time that Redis has used.
func redisTime(ctx context.Context, db *redis.Client) (sum time.Duration, err error) {
	info, err := db.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		s, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(s * 1e9)
	}
	return sum, nil
}
