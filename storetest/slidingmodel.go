package storetest

import (
	"math/big"

	"github.com/dipwell/dipwell/store"
)

// This file has the model's code for sliding windows. Their used number is a whole
// number: the tokens of the present window plus 2^26 times those of the one before.

const half = 1 << 26

func halves(used *big.Rat) (prev, cur int64) { return floor(used) / half, floor(used) % half }

func slid(used *big.Rat, ticks int64) *big.Rat {
	_, cur := halves(used)
	switch ticks {
	case 0:
		return used
	case 1:
		return rat(cur * half)
	}
	return rat(0)
}

// counts returns the tokens that count at t: for a sliding window, those of the window
// before count by the thousandths of the present one that are left, rounded.
func (r *rule) counts(used *big.Rat, t int64, k rowKey, up bool) *big.Rat {
	if !r.sliding {
		return used
	}
	prev, cur := halves(used)
	passed := floor(big.NewRat(1000*(t-r.boundary(r.tick(t, k), k)), r.every))
	part := big.NewRat(prev*(1000-passed), 1000)
	if up {
		return rat(cur + ceil(part))
	}
	return rat(cur + floor(part))
}

func (r *rule) slidingReset(used *big.Rat, t, now int64, k rowKey) int64 {
	switch prev, cur := halves(used); {
	case cur > 0:
		return r.boundary(r.tick(t, k)+2, k) - now
	case prev > 0:
		return r.boundary(r.tick(t, k)+1, k) - now
	}
	return 0
}

// slidingRetry returns the first time after t at which the given number of tokens is free.
// The tokens that count change at each thousandth of a window.
func (r *rule) slidingRetry(used *big.Rat, t, n int64, k rowKey) int64 {
	for window := range int64(3) {
		begin, later := r.boundary(r.tick(t, k)+window, k), slid(used, window)
		for thousandth := range int64(1000) {
			at := begin + ceil(big.NewRat(thousandth*r.every, 1000))
			if at > t && at < begin+r.every && floor(r.counts(later, at, k, false)) <= r.burst-n {
				return at
			}
		}
	}
	panic("storetest: a sliding window is not free in three windows")
}

func (r *rule) slide(res result, t, now int64, verb store.Verb, n int64, k rowKey) result {
	_, cur := halves(res.before)
	add := func(n int64) { res.after = new(big.Rat).Add(res.before, rat(n)) }
	switch verb {
	case store.VerbCharge:
		res.allowed, res.granted = true, n
		add(min(n, half-1-cur))
		return res
	case store.VerbRefund:
		res.allowed = true
		add(-min(n, cur))
		return res
	case store.VerbReset:
		res.allowed, res.after = true, rat(0)
		return res
	}
	need, free := n, r.burst-floor(r.counts(res.before, t, k, false))
	if verb == store.VerbTakeUpTo {
		need, res.sums = min(n, 1), false
	}
	switch {
	case need > r.burst:
		res.never = true
	case need > free:
		res.retry = r.slidingRetry(res.before, t, need, k) - now
	default:
		if res.allowed = true; verb != store.VerbCheck {
			res.granted = min(n, free)
			add(res.granted)
		}
	}
	return r.inShadow(res)
}

// change converts the tokens in use at t to the next version, rounded up.
func (r *rule) change(used *big.Rat, t int64, k rowKey, policy store.ChangePolicy) *big.Rat {
	to := r.next
	if r.sliding && to.sliding && r.every == to.every && r.origin(k) == to.origin(k) {
		prev, cur := halves(used)
		return new(big.Rat).Add(new(big.Rat).Mul(r.convert(rat(prev), policy), rat(half)), r.convert(rat(cur), policy))
	}
	return r.convert(r.counts(used, t, k, true), policy)
}
