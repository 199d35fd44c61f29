package adaptive

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

var second = Config{Floor: 103, Base: 512, Window: 1e6, Keep: 1e7, Slow: 50_000, Failed: 20_000, Unit: 2_048_000, Tick: 1}

// windows adds a sample a window, from the time 1 s on, and returns the level after each.
func windows(c *Config, s *State, samples ...Sample) (levels []int64) {
	for _, o := range samples {
		if s.Begun == 0 {
			*s = c.Add(*s, 1e6, Sample{})
		}
		*s = c.Add(*s, s.Begun+c.Window, o)
		levels = append(levels, s.History.LevelAt(s.Begun))
	}
	return levels
}

func TestSteps(t *testing.T) {
	good, slow, failed := Sample{1000, 0, 0, 1000}, Sample{1000, 900, 0, 1000}, Sample{1000, 0, 900, 1000}
	for name, c := range map[string]struct {
		samples []Sample
		want    []int64
		reason  Reason
	}{
		"grows":                       {[]Sample{good, good}, []int64{532, 552}, Used},
		"is cut once in two windows":  {[]Sample{slow, slow, slow, slow}, []int64{409, 409, 327, 327}, Slow},
		"is cut for errors":           {[]Sample{failed, good}, []int64{409, 429}, Used},
		"says why":                    {[]Sample{good, failed}, []int64{532, 425}, Failing},
		"is cut again after a good":   {[]Sample{slow, good, slow}, []int64{409, 429, 343}, Slow},
		"stands with few samples":     {[]Sample{{19, 19, 19, 1000}, {19, 0, 0, 1000}}, []int64{512, 512}, Defined},
		"is cut with enough":          {[]Sample{{20, 20, 0, 1000}}, []int64{409}, Slow},
		"stands if it is not used":    {[]Sample{{100, 0, 0, 174}}, []int64{512}, Defined},
		"grows at 7/10":               {[]Sample{{100, 0, 0, 175}}, []int64{532}, Used},
		"counts calls as tokens":      {[]Sample{{175, 0, 0, 0}}, []int64{532}, Used},
		"chance is not bad":           {[]Sample{{20, 4, 0, 1000}}, []int64{532}, Used},
		"chance explains no more":     {[]Sample{{20, 5, 0, 1000}}, []int64{409}, Slow},
		"recovers":                    {[]Sample{slow, {1000, 800, 0, 1000}, {1000, 300, 0, 1000}, {1000, 10, 0, 1000}}, []int64{409, 409, 409, 429}, Used},
		"more slow calls than calls":  {[]Sample{{100, 1 << 62, -5, -7}}, []int64{409}, Slow},
		"numbers that are too large":  {[]Sample{{1 << 62, 0, 0, 1 << 62}}, []int64{532}, Used},
		"numbers that are negative":   {[]Sample{{-1, -1, -1, -1}}, []int64{512}, Defined},
		"not below the floor":         {[]Sample{slow, good, slow, good, slow, good, slow, good, slow, good, slow, good, slow, good, slow, good, slow, good, slow}, nil, Slow},
		"not above the ceiling":       {[]Sample{good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good, good}, nil, Used},
		"the same share as before it": {[]Sample{slow, slow, slow}, []int64{409, 409, 327}, Slow},
	} {
		s := second.Begin()
		got := windows(&second, &s, c.samples...)
		for i, level := range got {
			if c.want != nil && level != c.want[i] {
				t.Errorf("%s: %v; want %v", name, got, c.want)
				break
			}
			if level < second.Floor || level > Full {
				t.Errorf("%s: level %d", name, level)
			}
		}
		if why, _ := s.Last(s.Begun); why != c.reason {
			t.Errorf("%s: because of %v; want %v", name, why, c.reason)
		}
	}
}

// Without samples the level moves to that of the limit's rate, from the end of the tenth
// window on, by 2 % of the ceiling a window.
func TestDrift(t *testing.T) {
	for _, from := range []int64{103, Full} {
		s := State{History: NewHistory(103, from, 0)}
		o := Sample{30, 0, 0, 0} // not used: the level stands
		if from == Full {
			o.Taken = 1000
		}
		windows(&second, &s, o)
		at := s.Begun
		level := func(n int64) int64 { return s.History.LevelAt(at + n*second.Window) }
		if level(9) != from || level(10) == from || level(60) != second.Base {
			t.Errorf("from %d: %d, %d, %d", from, level(9), level(10), level(60))
		}
		if d := level(12) - level(11); d != 20 && d != -20 {
			t.Errorf("from %d: %d in a window", from, d)
		}
		if why, when := s.Last(at + 12*second.Window); why != Unobserved || when != at+12*second.Window {
			t.Errorf("from %d: %v at %d", from, why, when-at)
		}
		now := at + 13*second.Window // somebody observes again: it goes on from where it is
		was := s.History.LevelAt(now)
		s = second.Add(s, now, o)
		s = second.Add(s, now+second.Window, Sample{})
		if got := s.History.LevelAt(now + second.Window); got != was-20 && got != was+20 && got != was {
			t.Errorf("from %d: %d after %d", from, got, was)
		}
		if got, stays := s.History.LevelAt(now+5*second.Window), s.History.LevelAt(now+second.Window); got != stays {
			t.Errorf("from %d: still drifts", from)
		}
	}
}

// Samples that are late, or under a clock that stepped back, begin a new window.
func TestLate(t *testing.T) {
	s := second.Begin()
	s = second.Add(s, 1e6, Sample{})
	s = second.Add(s, 50e6, Sample{1000, 1000, 0, 1000})
	if s.History.LevelAt(50e6) != second.Base || s.Begun != 50e6 || s.Seen.Count != 1000 {
		t.Errorf("late: %+v", s)
	}
	s = second.Add(s, 40e6, Sample{1000, 1000, 0, 1000})
	if s.History.LevelAt(50e6) != second.Base || s.Begun != 40e6 || s.Seen.Count != 1000 {
		t.Errorf("back: %+v", s)
	}
}

// A window without samples is a window, too: after it, a missed target is cut at once, and
// is not compared with the window before it.
func TestCutAfterIdle(t *testing.T) {
	slow, falls := Sample{1000, 900, 0, 1000}, Sample{1000, 300, 0, 1000}
	for _, idle := range []int64{1, 2, 5} {
		for name, o := range map[string]Sample{"slow": slow, "fewer": falls} {
			s := second.Begin()
			windows(&second, &s, slow)
			cut := s.History.LevelAt(s.Begun)
			s = second.Add(s, s.Begun+idle*second.Window, Sample{})
			windows(&second, &s, o)
			if got := s.History.LevelAt(s.Begun); got != cut*4/5 {
				t.Errorf("%s after %d windows: %d after %d", name, idle, got, cut)
			}
		}
	}
	s := second.Begin()
	windows(&second, &s, slow)
	cut := s.History.LevelAt(s.Begun)
	s = second.Add(s, s.Begun-10, Sample{}) // the clock steps back: still the second of two windows
	windows(&second, &s, slow)
	if got := s.History.LevelAt(s.Begun); got != cut {
		t.Errorf("after a step back of the clock: %d after %d", got, cut)
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

// The sums of a window stay in bounds, whatever is added.
func TestSampleBounds(t *testing.T) {
	var s Sample
	for _, o := range []Sample{{1, 1, 1, 1}, {1<<63 - 1, 1<<63 - 1, 1<<63 - 1, 1<<63 - 1}, {-1 << 63, -1 << 63, -1 << 63, -1 << 63}} {
		s.Add(o)
	}
	if s != (Sample{maxCount, maxCount, maxCount, maxCount}) {
		t.Errorf("%+v", s)
	}
}
