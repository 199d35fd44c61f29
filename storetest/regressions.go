package storetest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// regressions test for mistakes of published limiters; names are ids in the contract.
var regressions = []testCase{
	{"round-up-grants", roundUpGrants},
	{"denial-starves", denialStarves},
	{"two-clocks", twoClocks},
	{"first-insert", firstInsert},
	{"ambiguous-zero", ambiguousZero},
	{"lost-partial-interval", lostPartialInterval},
	{"cost-tested-twice", costTestedTwice},
	{"early-expiry", earlyExpiry},
	{"caller-clock", callerClock},
	{"lock-wait-double-credit", lockWaitDoubleCredit},
	{"negative-mints", negativeMints},
	{"never-finite-retry", neverFiniteRetry},
	{"zero-means-unlimited", zeroMeansUnlimited},
	{"peek-consumes", peekConsumes},
	{"cas-collapse", casCollapse},
	{"overflow-bypass", overflowBypass},
	{"late-writer-wipes", lateWriterWipes},
	{"false-local-denial", falseLocalDenial},
	{"cancelled-wait-leaks", cancelledWaitLeaks},
	{"double-cancel-mints", doubleCancelMints},
	{"fast-rate-truncation", fastRateTruncation},
	{"stale-after-change", staleAfterChange},
	{"window-restart", windowRestart},
	{"clock-back", clockBack},
	{"sweep-race", sweepRace},
}

// A bucket that rounds up to whole tokens at each call would grant every call.
func roundUpGrants(e *env) {
	e.bucket("slow", 1, time.Second, 2)
	e.allowed("slow", "k", 2, 0)
	e.poll("slow", "k", exactBucket(1, time.Second, 2, 0), 600*time.Millisecond, 18*time.Second, 18)
	e.at(0)
	e.bucket("fast", 2, time.Second, 2)
	e.allowed("fast", "k", 2, 0)
	e.poll("fast", "k", exactBucket(2, time.Second, 2, 0), 260*time.Millisecond, 78*time.Second, 156)
}

// If refusals stored the time, a caller that polls faster than the rate would
// never get a token.
func denialStarves(e *env) {
	for i, every := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, time.Second} {
		e.at(0)
		name := string(rune('a' + i))
		e.bucket(name, 1, time.Second, 2)
		e.allowed(name, "k", 2, 0)
		e.poll(name, "k", exactBucket(1, time.Second, 2, 0), every, 20*time.Second, 20)
	}
}

// A store that reads the clock twice, once to add tokens and once for TS, adds
// too many if the second reading is earlier.
func twoClocks(e *env) {
	for _, pattern := range [][]time.Duration{
		{10 * time.Second, 0},
		{0, 10 * time.Second, 10 * time.Second},
		{10 * time.Second, 10 * time.Second, 0, 0},
		{5 * time.Second, 10 * time.Second, 0},
	} {
		var reads atomic.Int64
		w := e.with(func() int64 {
			return epoch + pattern[int(reads.Add(1)-1)%len(pattern)].Microseconds()
		})
		w.must(w.l.Define(e.ctx, store.Limit{Name: "long", Rate: 1, Period: time.Second, Burst: 10}, store.OwnerCode))
		var granted int64
		for range 60 {
			d, err := w.l.Take(e.ctx, "long", "k", 1)
			w.must(d, err)
			granted += d.Granted
		}
		if bound := 10 + earned(1, time.Second, 10*time.Second); granted > bound {
			e.Fatalf("clock readings %v: %d granted, want at most %d", pattern, granted, bound)
		}
	}
}

// A grant of the last token and the refusal after it both answer 0 remaining.
func ambiguousZero(e *env) {
	e.bucket("one", 1, time.Second, 1)
	e.allowed("one", "k", 1, 0)
	if d := e.refused("one", "k", 1, time.Second); d.Remaining != 0 {
		e.Fatalf("%d remaining after a refusal, want 0", d.Remaining)
	}
}

// If TS were set to now instead of the tick, no interval would pass between
// calls that come every 9.9 s.
func lostPartialInterval(e *env) {
	e.define(store.Limit{Name: "grid", Algorithm: store.Interval, Rate: 5, Period: 10 * time.Second, Burst: 20, Start: "0s"})
	e.define(store.Limit{Name: "spread", Algorithm: store.Interval, Rate: 5, Period: 10 * time.Second, Burst: 20})
	for _, limit := range []string{"grid", "spread"} {
		for cost := int64(1); cost <= 4; cost++ {
			key := string(rune('0' + cost))
			for k := range 60 / e.part {
				e.at(time.Duration(k) * 9900 * time.Millisecond)
				if d := e.take(limit, key, cost); !d.Allowed {
					e.Fatalf("%s: call %d of cost %d was refused", limit, k, cost)
				}
			}
		}
	}
}

func costTestedTwice(e *env) {
	e.bucket("ten", 10, time.Hour, 10)
	for left := int64(9); left >= 0; left-- {
		e.allowed("ten", "singles", 1, left)
	}
	e.allowed("ten", "six", 6, 4)
	e.allowed("ten", "six", 4, 0)
	e.allowed("ten", "all", 10, 0)
}

// A row that expires before its bucket is full would give back all tokens.
func earlyExpiry(e *env) {
	e.bucket("slow", 10, time.Hour, 10)
	e.allowed("slow", "k", 10, 0)
	one := time.Duration(ceil(rat(3600e6/10))) * time.Microsecond
	for _, idle := range []time.Duration{61 * time.Second, one - time.Microsecond} {
		e.at(idle)
		e.sweep()
		e.refused("slow", "k", 1, one-idle)
	}
	e.at(one)
	e.sweep()
	e.left("slow", "k", 1)
	e.at(10*one - time.Microsecond)
	e.sweep()
	e.left("slow", "k", 9)
	e.at(10 * one)
	e.sweep()
	e.left("slow", "k", 10)
}

// Clock readings that are ten minutes off, forward or back, grant no more tokens
// than came back, and do not cause refusals for good.
func callerClock(e *env) {
	const skew = 10 * time.Minute
	var base atomic.Int64
	var skews atomic.Int64
	w := e.with(func() int64 {
		off := []time.Duration{0, skew, -skew, skew / 2, -skew / 3}[skews.Add(1)%5]
		return epoch + base.Load() + off.Microseconds()
	})
	w.must(w.l.Define(e.ctx, store.Limit{Name: "skewed", Rate: 1, Period: time.Second, Burst: 60}, store.OwnerCode))
	var granted int64
	const calls = int64(400) // with 200 calls the mistake "clock runs back" stays within the bound
	for k := range calls {
		base.Store(k * 1e6)
		d, err := w.l.Take(e.ctx, "skewed", "k", 5)
		w.must(d, err)
		granted += d.Granted
	}
	if bound := 60 + earned(1, time.Second, time.Duration(calls)*time.Second+2*skew); granted > bound {
		e.Fatalf("%d granted with skewed clocks, want at most %d", granted, bound)
	}
	base.Store(calls*1e6 + 4*skew.Microseconds())
	if d, err := w.l.Take(e.ctx, "skewed", "k", 60); err != nil || !d.Allowed {
		e.Fatalf("a take of a full bucket after the skew: %+v, %v", d, err)
	}
}

// Concurrent callers whose clock readings are out of order get no more tokens
// than came back.
func lockWaitDoubleCredit(e *env) {
	var reads, latest atomic.Int64
	w := e.with(func() int64 {
		n := reads.Add(1)
		x := epoch + n*1000 + (rand.Int64N(200)-100)*1000
		for {
			old := latest.Load()
			if x <= old || latest.CompareAndSwap(old, x) {
				return x
			}
		}
	})
	for round := range e.rounds {
		limit := store.Limit{Name: "late" + string(rune('a'+round)), Rate: 100, Period: time.Second, Burst: 3}
		w.must(w.l.Define(e.ctx, limit, store.OwnerCode))
		start := latest.Load() - 201*1000
		granted := race(e, 32, 5, func(int, int) (int64, error) {
			d, err := w.l.Take(e.ctx, limit.Name, "k", 1)
			return d.Granted, err
		})
		bound := 3 + earned(100, time.Second, time.Duration(latest.Load()-start)*time.Microsecond)
		if granted > bound {
			e.Fatalf("round %d: %d granted, want at most %d", round, granted, bound)
		}
	}
}

func negativeMints(e *env) {
	e.bucket("pos", 1, time.Hour, 5)
	e.allowed("pos", "k", 3, 2)
	for verb := store.VerbTake; verb <= store.VerbRefund; verb++ {
		var d dipwell.Decision
		for _, n := range []int64{-1, -1 << 63, store.MaxInt + 1, 1<<63 - 1} {
			if err := e.l.Do(e.ctx, &d, verb, dipwell.Take{Limit: "pos", Key: "k", Cost: n}); err == nil {
				e.Fatalf("%s of %d was accepted", verb, n)
			}
		}
	}
	e.left("pos", "k", 2)
	e.do(store.VerbRefund, "pos", "k", 100)
	e.left("pos", "k", 5)
	e.do(store.VerbRefund, "pos", "k", store.MaxInt)
	e.allowed("pos", "k", 5, 0)
	e.refused("pos", "k", 1, 12*time.Minute*5)
}

func neverFiniteRetry(e *env) {
	e.define(store.Limit{Name: "small", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 3})
	e.define(store.Limit{Name: "none", Rate: 1, Period: time.Second, Burst: store.NoBurst, MaxDebt: 3})
	for _, key := range []string{"fresh", "drained"} {
		if key == "drained" {
			e.allowed("small", key, 5, 0)
		}
		e.takeNever("small", key, 6)
		for verb, n := range map[store.Verb]int64{store.VerbTake: 6, store.VerbCheck: 6, store.VerbReserve: 9} {
			if d := e.do(verb, "small", key, n); d.Allowed || !d.Never || d.RetryAfter != 0 {
				e.Fatalf("%s of %d: allowed %v, never %v, retry %v", verb, n, d.Allowed, d.Never, d.RetryAfter)
			}
		}
		if d := e.reserve("small", key, 8); d.Never {
			e.Fatal("a reservation of burst + max_debt: never")
		}
	}
	if d := e.do(store.VerbTakeUpTo, "none", "k", 1); !d.Never {
		e.Fatal("take_up_to with a burst of 0: not never")
	}
}

func zeroMeansUnlimited(e *env) {
	e.define(store.Limit{Name: "nodebt", Rate: 1, Period: time.Second, Burst: 2, MaxDebt: store.NoDebt})
	if d := e.reserve("nodebt", "k", 2); !d.Allowed || d.Delay != 0 {
		e.Fatalf("reserve with enough tokens: allowed %v, delay %v", d.Allowed, d.Delay)
	}
	if d := e.reserve("nodebt", "k", 1); d.Allowed || d.RetryAfter != time.Second {
		e.Fatalf("reserve 1 of a drained limit with max_debt 0: allowed %v, retry %v", d.Allowed, d.RetryAfter)
	}
	if d := e.reserve("nodebt", "k", 3); d.Allowed || !d.Never {
		e.Fatalf("reserve more than the burst with max_debt 0: allowed %v, never %v", d.Allowed, d.Never)
	}
}

// The largest costs are neither granted nor overflow.
func overflowBypass(e *env) {
	const most = int64(store.MaxInt)
	e.define(store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: most, Period: time.Microsecond, Start: "0s"})
	e.allowed("window", "k", most, 0)
	for _, n := range []int64{1, most / 2, most - 1, most} {
		e.refused("window", "k", n, time.Microsecond)
	}
	e.advance(time.Microsecond)
	e.allowed("window", "k", most, 0)

	e.at(time.Minute) // a multiple of the limit's ticks, which are longer than 1 µs
	e.bucket("bytes", 1<<30, 24*time.Hour, 1<<30)
	e.allowed("bytes", "k", 1<<30, 0)
	e.refused("bytes", "k", 1<<30, 24*time.Hour)
	for _, n := range []int64{1<<30 + 1, 1 << 31, 1 << 32, 1 << 40, 1<<53 - 1} {
		e.takeNever("bytes", "k", n)
	}
	e.do(store.VerbRefund, "bytes", "k", most)
	e.left("bytes", "k", 1<<30)

	e.bucket("odd", 999983, 30*24*time.Hour, 999983)
	e.allowed("odd", "k", 999983, 0)
	e.refused("odd", "k", 999983, 30*24*time.Hour)
	for verb := store.VerbTake; verb <= store.VerbRefund; verb++ {
		var d dipwell.Decision
		if err := e.l.Do(e.ctx, &d, verb, dipwell.Take{Limit: "odd", Key: "k", Cost: most + 1}); err == nil {
			e.Fatalf("%s of 2^53 was accepted", verb)
		}
	}
}

// A call with a clock reading from the last window arrives after the first call
// of the new window.
func lateWriterWipes(e *env) {
	e.define(store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, Start: "0s"})
	e.at(time.Minute - 2)
	e.allowed("window", "k", 3, 2)
	e.at(time.Minute)
	e.allowed("window", "k", 4, 1)
	e.at(time.Minute - time.Microsecond)
	e.refused("window", "k", 2, time.Minute+time.Microsecond)
	e.allowed("window", "k", 1, 0)
	e.at(time.Minute + time.Microsecond)
	e.refused("window", "k", 1, time.Minute-time.Microsecond)
	e.at(2 * time.Minute)
	e.left("window", "k", 5)
}

func falseLocalDenial(e *env) {
	e.bucket("big", 20, time.Hour, 20)
	e.allowed("big", "k", 5, 15)
	if d := e.take("big", "k", 18); d.Allowed || d.Remaining != 15 {
		e.Fatalf("take 18 of 15: allowed %v, %d remaining", d.Allowed, d.Remaining)
	}
	e.allowed("big", "k", 1, 14)
	e.refused("big", "k", 18, 12*time.Minute)
	e.allowed("big", "k", 14, 0)
}

func doubleCancelMints(e *env) {
	e.define(store.Limit{Name: "work", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 5})
	e.allowed("work", "k", 5, 0)
	d := e.reserve("work", "k", 3)
	if err := e.cancel(d.Reservation); err != nil {
		e.Fatal(err)
	}
	for range 3 {
		if err := e.cancel(d.Reservation); err == nil {
			e.Fatal("a reservation was cancelled twice")
		}
	}
	e.refused("work", "k", 1, time.Second)

	d = e.reserve("work", "k", 3)
	e.do(store.VerbReset, "work", "k", 0)
	e.allowed("work", "k", 4, 1)
	if err := e.cancel(d.Reservation); err == nil {
		e.Fatal("a reservation was cancelled after a reset of its key")
	}
	e.left("work", "k", 1)
}

// Rates above one per µs, or with a period per token that is not a whole number
// of µs, are exact.
func fastRateTruncation(e *env) {
	for i, rate := range []int64{300_000, 700_001, 999_983, 3_000_000} {
		name := "fast" + string(rune('a'+i))
		burst := max(2, rate/1_000_000+1)
		e.at(0)
		e.bucket(name, rate, time.Second, burst)
		e.allowed(name, "k", burst, 0)
		span := 500 * time.Microsecond / time.Duration(e.part)
		var granted int64
		for {
			d := e.check(name, "k", 1)
			e.clock.Add(d.RetryAfter.Microseconds())
			if e.since() > span {
				break
			}
			d = e.do(store.VerbTakeUpTo, name, "k", burst)
			granted += d.Granted
			if d.Granted == 0 {
				e.Fatalf("%d a second: nothing granted at the retry time %v", rate, e.since())
			}
		}
		if want := earned(rate, time.Second, span); granted != want {
			e.Fatalf("%d a second: %d granted in %v, want %d", rate, granted, span, want)
		}
	}
}

func windowRestart(e *env) {
	e.define(store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, Start: "0s"})
	e.at(3 * time.Second)
	e.allowed("window", "k", 5, 0)
	e.do(store.VerbRefund, "window", "k", 5)
	e.sweep()
	e.at(9 * time.Second)
	e.allowed("window", "k", 5, 0)
	e.refused("window", "k", 1, time.Second)
	e.at(10 * time.Second)
	e.allowed("window", "k", 5, 0)
	e.at(13 * time.Second)
	e.refused("window", "k", 1, 7*time.Second)
}

func clockBack(e *env) {
	const back = 30 * time.Second
	e.bucket("b", 1, time.Second, 5)
	e.define(store.Limit{Name: "w", Algorithm: store.FixedWindow, Rate: 5, Period: 10 * time.Second, Start: "0s"})
	for _, limit := range []string{"b", "w"} {
		e.at(time.Minute)
		e.allowed(limit, "k", 5, 0)
		normal := e.check(limit, "k", 1).RetryAfter
		for _, d := range []time.Duration{time.Microsecond, time.Second, back} {
			e.at(time.Minute - d)
			e.refused(limit, "k", 1, normal+d)
		}
		for range 5 { // forward and back over time that has already been counted
			e.at(time.Minute)
			e.refused(limit, "k", 1, normal)
			e.at(time.Minute - back)
			e.refused(limit, "k", 1, normal+back)
		}
		e.at(time.Minute + normal - time.Microsecond)
		e.refused(limit, "k", 1, time.Microsecond)
		e.at(time.Minute + normal)
		if d := e.take(limit, "k", 1); !d.Allowed {
			e.Fatalf("%s: refused at the retry time after the clock had stepped back", limit)
		}
	}
	e.at(2 * time.Minute) // the clock steps back by 5 s and passes the same 5 s twice
	e.allowed("b", "twice", 5, 0)
	e.advance(5 * time.Second)
	e.allowed("b", "twice", 4, 1)
	e.advance(-5 * time.Second)
	e.allowed("b", "twice", 1, 0)
	e.advance(5 * time.Second)
	e.refused("b", "twice", 1, time.Second)
}
