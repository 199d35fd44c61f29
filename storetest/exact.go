package storetest

import (
	"math/big"
	"time"
)

// exact is a token bucket of one key in exact rationals, independent of the model.
type exact struct {
	level, burst, perUS *big.Rat
	at                  time.Duration
}

func exactBucket(rate int64, per time.Duration, burst, level int64) *exact {
	return &exact{rat(level), rat(burst), big.NewRat(rate, per.Microseconds()), 0}
}

// call takes n tokens at the time at, if the bucket has them.
func (x *exact) call(at time.Duration, n int64) bool {
	x.level.Add(x.level, new(big.Rat).Mul(x.perUS, rat((at-x.at).Microseconds())))
	if x.at = at; x.level.Cmp(x.burst) > 0 {
		x.level.Set(x.burst)
	}
	if x.level.Cmp(rat(n)) < 0 {
		return false
	}
	x.level.Sub(x.level, rat(n))
	return true
}

// earned returns how many whole tokens come back in a duration.
func earned(rate int64, per, in time.Duration) int64 {
	return floor(new(big.Rat).Mul(big.NewRat(rate, per.Microseconds()), rat(in.Microseconds())))
}

// poll takes one token at each multiple of every, up to the time until. poll fails if an
// answer differs from the exact bucket's or the sum of the grants is not want.
func (e *env) poll(limit, key string, x *exact, every, until time.Duration, want int64) {
	e.Helper()
	var got int64
	for at := every; at <= until; at += every {
		e.at(at)
		d := e.take(limit, key, 1)
		if want := x.call(at, 1); d.Allowed != want {
			e.Fatalf("%s at %v: allowed %v, want %v", limit, at, d.Allowed, want)
		}
		got += d.Granted
	}
	if got != want {
		e.Fatalf("%s polled every %v until %v: %d granted, want %d", limit, every, until, got, want)
	}
}
