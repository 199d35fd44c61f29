package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// An exactRow gives back as a row does, but it forgets nothing: it has as many lows as
// there are.
type exactRow struct {
	rate, burst, used float64
	lows              []exactLow
	next              int
}

type exactLow struct {
	number int
	used   float64
}

func (r *exactRow) step(seconds float64) {
	r.used = max(r.used-r.rate*seconds, 0)
	if n := len(r.lows); n > 0 {
		r.lows[n-1].used = min(r.lows[n-1].used, r.used)
		r.normalize()
	}
}

func (r *exactRow) take(n float64) (number int, ok bool) {
	if r.used+n > r.burst {
		return 0, false
	}
	r.used += n
	r.next++
	r.lows = append(r.lows, exactLow{r.next, r.used})
	return r.next, true
}

func (r *exactRow) giveBack(number int, n float64) {
	i := len(r.lows) - 1
	for i > 0 && r.lows[i].number > number {
		i--
	}
	for ; i < len(r.lows); i++ {
		n = min(n, r.lows[i].used)
		r.lows[i].used -= n
	}
	r.used -= n
	r.normalize()
}

func (r *exactRow) normalize() {
	out := r.lows[:0]
	for _, e := range r.lows {
		for len(out) > 0 && out[len(out)-1].used >= e.used {
			e.number = out[len(out)-1].number
			out = out[:len(out)-1]
		}
		out = append(out, e)
	}
	r.lows = out
}

// A limit that is saturated by holds of 5 to 30 s, which cost 0.2 to 1 of their
// estimates, is used nearly as much as if a row forgot nothing. A row has at most
// MaxLows lows.
func TestHoldsUseTheRate(t *testing.T) {
	for _, c := range []struct{ burst, largest int64 }{{300, 200}, {1000, 200}, {1000, 20}, {3000, 200}, {3000, 20}} {
		t.Run(fmt.Sprintf("burst %d, estimates up to %d", c.burst, c.largest), func(t *testing.T) { useTheRate(t, c.burst, c.largest) })
	}
}

func useTheRate(t *testing.T, burst, largest int64) {
	const rate, seconds, perSecond = 100, 150, 20
	b := newBench(t, fmt.Sprintf("a=%d/1s,burst=%d", rate, burst))
	exact := exactRow{rate: rate, burst: float64(burst)}
	rnd := rand.New(rand.NewPCG(1, 2))
	type hold struct {
		id       string
		number   int // in the exact row
		end      int64
		est, act int64
	}
	var live, exactLive []hold
	var used, exactUsed int64
	begin := b.now
	for i := 0; b.now < begin+seconds*second; i++ {
		b.now += second / perSecond
		exact.step(1. / perSecond)
		ended := func(h hold) bool { return h.end <= b.now }
		live = without(live, ended, func(h hold) {
			b.settle(h.id, h.act)
			used += h.act
		})
		exactLive = without(exactLive, ended, func(h hold) {
			exact.giveBack(h.number, float64(h.est-h.act))
			exactUsed += h.act
		})
		for k, more := 0, true; more; k++ {
			est := largest/10 + rnd.Int64N(largest*9/10)
			h := hold{id: fmt.Sprintf("%d.%d", i, k), end: b.now + 5*second + rnd.Int64N(25*second), est: est, act: int64(float64(est) * (0.2 + 0.8*rnd.Float64()))}
			g, err := b.tryHold(h.id, 60*second, fmt.Sprintf("a k %d", est))
			if err != nil {
				t.Fatal(err)
			}
			if more = g.Allowed; more {
				live = append(live, h)
			}
			var ok bool
			if h.number, ok = exact.take(float64(est)); ok {
				exactLive, more = append(exactLive, h), true
			}
		}
	}
	t.Logf("%.4f of the rate; %.4f if nothing was forgotten", float64(used)/rate/seconds, float64(exactUsed)/rate/seconds)
	if float64(used) < 0.97*float64(exactUsed) {
		t.Errorf("%d tokens were used; %d if nothing was forgotten", used, exactUsed)
	}
}

// without removes the elements that f is true of, and calls each with them.
func without[T any](list []T, f func(T) bool, each func(T)) (out []T) {
	for _, x := range list {
		if f(x) {
			each(x)
		} else {
			out = append(out, x)
		}
	}
	return out
}
