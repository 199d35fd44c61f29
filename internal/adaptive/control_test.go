package adaptive

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

var second = Config{Floor: 103, Window: 1e6, Slow: 50_000, Failed: 20_000}

var (
	good   = Sample{1000, 0, 0}
	slow   = Sample{1000, 900, 0}
	failed = Sample{1000, 0, 900}
)

// windows ends a window with each sample, after which little remained, and returns the
// fractions.
func windows(c *Config, s *State, samples ...Sample) (fractions []int64) {
	for _, o := range samples {
		s.Low = true
		*s = c.Add(*s, s.Begun+c.Window, o)
		fractions = append(fractions, s.Fraction)
	}
	return fractions
}

func TestSteps(t *testing.T) {
	for name, c := range map[string]struct {
		samples []Sample
		want    []int64
		reason  Reason
	}{
		"grows":                      {[]Sample{good, good}, []int64{533, 554}, Used},
		"is cut once in two windows": {[]Sample{slow, slow, slow, slow}, []int64{409, 409, 327, 327}, Slow},
		"is cut for errors":          {[]Sample{failed, good}, []int64{409, 430}, Used},
		"says why":                   {[]Sample{good, failed}, []int64{533, 426}, Failing},
		"is cut again after a good":  {[]Sample{slow, good, slow}, []int64{409, 430, 344}, Slow},
		"is cut with enough":         {[]Sample{{20, 20, 0}}, []int64{409}, Slow},
		"chance is not bad":          {[]Sample{{20, 4, 0}}, []int64{533}, Used},
		"chance explains no more":    {[]Sample{{20, 5, 0}}, []int64{409}, Slow},
		"more slow calls than calls": {[]Sample{{100, 1 << 40, 0}}, []int64{409}, Slow},
		"many":                       {[]Sample{{MaxCount, 0, 0}}, []int64{533}, Used},
	} {
		s := State{Fraction: 512, Begun: 5e6, Reason: Defined}
		got := windows(&second, &s, c.samples...)
		for i, f := range got {
			if f != c.want[i] {
				t.Errorf("%s: %v; want %v", name, got, c.want)
				break
			}
		}
		if s.Reason != c.reason {
			t.Errorf("%s: because of %v; want %v", name, s.Reason, c.reason)
		}
	}
}

// The fraction stays between the floor and all of the rate.
func TestBounds(t *testing.T) {
	s := Begin(0)
	if got := windows(&second, &s, good, good); got[1] != Full {
		t.Errorf("%v", got)
	}
	for range 40 {
		windows(&second, &s, slow)
	}
	if s.Fraction != second.Floor {
		t.Errorf("%d after 40 slow windows", s.Fraction)
	}
}

// A limit of which much remains does not grow: nothing shows that more would be served.
func TestUnused(t *testing.T) {
	s := State{Fraction: 512}
	if s = second.Add(s, 1e6, good); s.Fraction != 512 || s.Begun != 1e6 {
		t.Errorf("%+v", s)
	}
}

// A window goes on until it has 20 samples, but at most ten times as long: it is then good
// only if nothing in it was bad.
func TestFewSamples(t *testing.T) {
	for name, c := range map[string]struct {
		sample Sample
		want   int64
	}{
		"good": {Sample{19, 0, 0}, 533}, "one slow": {Sample{19, 1, 0}, 512}, "all slow": {Sample{19, 19, 0}, 512}, "one failed": {Sample{19, 0, 1}, 512}, "none": {Sample{}, 533},
	} {
		s := State{Fraction: 512, Low: true}
		if s = second.Add(s, 3e6, c.sample); s.Fraction != 512 || s.Begun != 0 {
			t.Errorf("%s: %+v before the window has ended", name, s)
		}
		if s = second.Add(s, 10e6-1, Sample{}); s.Fraction != 512 {
			t.Errorf("%s: %+v before the window has ended", name, s)
		}
		if s = second.Add(s, 10e6, Sample{}); s.Fraction != c.want || s.Begun != 10e6 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	s := second.Add(State{Fraction: 512}, 3e6, Sample{19, 19, 0})
	if s = second.Add(s, 4e6, Sample{1, 0, 0}); s.Fraction != 409 || s.Begun != 4e6 {
		t.Errorf("%+v once there are enough", s)
	}
	c := Config{Floor: 103, Window: 1e6, Slow: -1, Failed: 20_000}
	if s = c.Add(State{Fraction: 512, Low: true}, 1e6, Sample{19, 19, 0}); c.Add(s, 10e6, Sample{}).Fraction != 533 {
		t.Errorf("%+v: latency does not count", s)
	}
}

// Without samples the fraction grows to all of the rate, a step in ten windows.
func TestUnobserved(t *testing.T) {
	s := State{Fraction: 512, Cut: true}
	for ten := int64(1); ten <= 30; ten++ {
		if s = second.Add(s, ten*10e6, Sample{}); s.Fraction != min(Full, 512+21*ten) || s.Reason != Unobserved || s.Cut {
			t.Fatalf("%+v after %d windows", s, 10*ten)
		}
	}
	if s.Changed != 250e6 {
		t.Errorf("changed at %d", s.Changed)
	}
	late := second.Add(State{Fraction: 512}, 1e15+5, Sample{1, 1, 0})
	if late.Fraction != Full || late.Begun != 1e15 || late.Seen.Count != 1 {
		t.Errorf("%+v after a long time", late)
	}
}

// Samples that come after the end of their window are in a later one.
func TestLate(t *testing.T) {
	s := second.Add(State{Fraction: 512}, 0.5e6, slow)
	if s = second.Add(s, 7e6, slow); s.Fraction != 409 || s.Begun != 7e6 || s.Cut {
		t.Errorf("%+v", s) // cut at 1 s; the next window, from then on, is one after a cut
	}
}

// unlikelyMany is one tail of the binomial distribution, exactly.
func TestUnlikelyMany(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for range 400 {
		n, millionths := 20+rng.Int64N(300), []int64{0, 1000, 20_000, 50_000, 500_000, 990_000, 1_000_000}[rng.IntN(7)]
		k := min(n, n*millionths/1e6+rng.Int64N(20))
		p := big.NewRat(millionths, 1e6)
		q := new(big.Rat).Sub(big.NewRat(1, 1), p)
		sum := new(big.Rat)
		for i := k; i <= n; i++ {
			term := new(big.Rat).SetInt(new(big.Int).Binomial(n, i))
			term.Mul(term, power(p, i))
			sum.Add(sum, term.Mul(term, power(q, n-i)))
		}
		want := sum.Cmp(big.NewRat(1, 100)) < 0
		if got := unlikelyMany(k, n, millionths); got != want {
			f, _ := sum.Float64()
			t.Errorf("%d of %d at %d millionths: %v; the tail is %g", k, n, millionths, got, f)
		}
	}
	if !unlikelyMany(1<<39, 1<<40, 400_000) || unlikelyMany(4<<37, 1<<40, 500_000) || !unlikelyMany(1<<40, 1<<40, 0) {
		t.Error("large numbers")
	}
}

func power(r *big.Rat, n int64) *big.Rat {
	e := big.NewInt(n)
	return new(big.Rat).SetFrac(new(big.Int).Exp(r.Num(), e, nil), new(big.Int).Exp(r.Denom(), e, nil))
}
