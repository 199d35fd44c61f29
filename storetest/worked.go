package storetest

import (
	"math/big"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// worked has the worked examples of the contract, in the contract's order.
var worked = []testCase{
	{"worked-1-sixty-a-second", worked1},
	{"worked-2-grid", worked2},
	{"worked-3-ten-then-one", worked3},
	{"worked-4-debt", worked4},
	{"worked-5-user-and-tenant", worked5},
	{"worked-6-no-more-than-burst", worked6},
	{"worked-7-perfectly-spaced", worked7},
}

// sixtieth returns the time of call k at 60 calls a second, rounded up to 1 µs.
func sixtieth(k int64) time.Duration {
	return time.Duration(ceil(big.NewRat(k*1e6, 60))) * time.Microsecond
}

func worked1(e *env) {
	e.bucket("w1", 10, time.Second, 50)
	x := exactBucket(10, time.Second, 50, 50)
	var granted, first int64 = 0, -1
	for k := range int64(60) {
		e.at(sixtieth(k))
		d := e.take("w1", "k", 1)
		if d.Allowed != x.call(sixtieth(k), 1) {
			e.Fatalf("call %d: allowed %v", k, d.Allowed)
		}
		if granted += d.Granted; !d.Allowed && first < 0 {
			first = k
		}
	}
	if granted != 59 || first != 59 {
		e.Fatalf("%d granted in the first second, the first refusal at %d/60 s; want 59 and 59/60 s", granted, first)
	}
	granted = 0
	for k := range int64(60) {
		e.at(sixtieth(60 + k))
		granted += e.take("w1", "k", 1).Granted
	}
	if granted != 10 {
		e.Fatalf("%d of the next 60 were granted, want one in six", granted)
	}
	e.at(sixtieth(119) + 5*time.Second)
	e.left("w1", "k", 50)
}

func worked2(e *env) {
	e.define(store.Limit{Name: "w2", Algorithm: store.Interval, Rate: 5, Period: 10 * time.Second, Burst: 20, Start: "0s"})
	e.allowed("w2", "k", 5, 15)
	e.at(10 * time.Second)
	e.left("w2", "k", 20)
	e.at(15 * time.Second)
	e.allowed("w2", "k", 18, 2)
	e.at(20*time.Second - time.Microsecond)
	e.left("w2", "k", 2)
	e.at(20 * time.Second)
	e.left("w2", "k", 7)
}

func worked3(e *env) {
	e.bucket("w3", 1, time.Second, 10)
	x := exactBucket(1, time.Second, 10, 10)
	for k := range 10 {
		at := time.Duration(k) * 100 * time.Millisecond
		e.at(at)
		if !e.take("w3", "k", 1).Allowed || !x.call(at, 1) {
			e.Fatalf("call %d of the first second was refused", k)
		}
	}
	var granted int64
	for k := 10; k < 110; k++ {
		at := time.Duration(k) * 100 * time.Millisecond
		e.at(at)
		d := e.take("w3", "k", 1)
		if granted += d.Granted; d.Allowed != x.call(at, 1) {
			e.Fatalf("call %d: allowed %v", k, d.Allowed)
		}
	}
	if granted != 10 {
		e.Fatalf("%d granted in ten seconds, want one a second", granted)
	}
	e.at(10900*time.Millisecond + 4*time.Second)
	d := e.do(store.VerbTakeUpTo, "w3", "k", 10)
	if d.Granted != 4 {
		e.Fatalf("%d granted after 4 s without calls, want 4", d.Granted)
	}
}

func worked4(e *env) {
	e.define(store.Limit{Name: "w4", Rate: 1, Period: time.Second, Burst: 5, MaxDebt: 5})
	e.allowed("w4", "k", 2, 3)
	d := e.reserve("w4", "k", 5)
	if want := 2 * time.Second; !d.Allowed || d.Delay != want || d.Granted != 5 {
		e.Fatalf("reserve 5 of 3: allowed %v, granted %d, delay %v; want a delay of %v", d.Allowed, d.Granted, d.Delay, want)
	}
	e.refused("w4", "k", 1, 3*time.Second)
	e.advance(2 * time.Second)
	e.left("w4", "k", 0)
	e.advance(time.Second)
	e.allowed("w4", "k", 1, 0)
}

func worked5(e *env) {
	e.bucket("user", 5, time.Minute, 5)
	e.bucket("tenant", 2, time.Minute, 2)
	takes := []dipwell.Take{{Limit: "user", Key: "u7", Cost: 1}, {Limit: "tenant", Key: "acme", Cost: 1}}
	for range 2 {
		if d := e.doAll(store.VerbTake, takes...); !d.Allowed {
			e.Fatal("refused with tokens left")
		}
	}
	d := e.doAll(store.VerbTake, takes...)
	if d.Allowed || d.Limit != "tenant" {
		e.Fatalf("allowed %v by %s; want a refusal by tenant", d.Allowed, d.Limit)
	}
	e.left("user", "u7", 3)
	e.left("tenant", "acme", 0)
}

func worked6(e *env) {
	e.bucket("w6", 60, time.Hour, 10)
	e.allowed("w6", "k", 10, 0)
	if n := earned(60, time.Hour, 15*time.Minute); n != 15 {
		e.Fatalf("earned(60, 1h, 15m) = %d, want 15", n)
	}
	e.advance(15 * time.Minute)
	e.left("w6", "k", 10)
	e.takeNever("w6", "k", 15)
	e.allowed("w6", "k", 10, 0)
}

// takeNever takes n and fails unless the answer is never.
func (e *env) takeNever(limit, key string, n int64) {
	e.Helper()
	if d := e.take(limit, key, n); d.Allowed || !d.Never || d.RetryAfter != 0 {
		e.Fatalf("take %s %d: allowed %v, never %v, retry %v; want never", limit, n, d.Allowed, d.Never, d.RetryAfter)
	}
}

func worked7(e *env) {
	e.define(store.Limit{Name: "w7", Rate: 3, Period: 7 * time.Second, Burst: store.NoBurst, MaxDebt: 100})
	for k := int64(1); k <= 100; k++ {
		d := e.reserve("w7", "k", 1)
		want := time.Duration(ceil(big.NewRat(k*7e6, 3))) * time.Microsecond
		if !d.Allowed || d.Delay != want {
			e.Fatalf("reservation %d: allowed %v, due in %v; want %v", k, d.Allowed, d.Delay, want)
		}
	}
	if d := e.reserve("w7", "k", 1); d.Allowed || d.Never {
		e.Fatalf("a debt of 101: allowed %v, never %v", d.Allowed, d.Never)
	}
	e.takeNever("w7", "k", 1)
}
