package adaptive

import "math"

// Full is the fraction at which all of the rate is used.
const Full = 1024

// A Config is the target of a limit and the bounds of its fraction.
type Config struct {
	Floor  int64 // the lowest fraction, from 1 to Full
	Window int64 // µs
	Slow   int64 // millionths of the calls that may be slow; negative: latency does not count
	Failed int64 // millionths of the calls that may fail; negative: errors do not count
}

// The controller's constants: the fraction is multiplied by 4/5 when the target is missed,
// and grows by 2 % of the rate when it is met and little remained.
const (
	minSamples = 20 // with fewer calls, a share of a few percent cannot be measured
	step       = 21
	longest    = 10 // number of windows in which minSamples are awaited
	unlikely   = 0.01
)

// A Sample counts calls to what is behind a limit.
type Sample struct {
	Count  int64 // calls that ended
	Slow   int64 // number of these calls that were slower than the target's latency
	Failed int64 // number of these calls that failed
}

// MaxCount bounds the sums of a window, so that unlikelyMany stays exact enough.
const MaxCount = 1 << 40

func (s *Sample) add(o Sample) {
	s.Count = min(s.Count+o.Count, MaxCount)
	s.Slow = min(s.Slow+o.Slow, s.Count)
	s.Failed = min(s.Failed+o.Failed, s.Count)
}

// A Reason says why the fraction changed last.
type Reason string

const (
	Defined    Reason = "defined"    // the fraction has not changed yet
	Slow       Reason = "latency"    // more calls were slow than the target allows
	Failing    Reason = "errors"     // more calls failed than the target allows
	Used       Reason = "used"       // the target was met, and little remained
	Unobserved Reason = "unobserved" // nothing was observed for ten windows
)

// A State is the fraction, and what was observed in the present window.
type State struct {
	Fraction int64
	Begun    int64  // when the present window began, in µs
	Seen     Sample // what was observed in the present window
	Low      bool   // at most 30 % of the capacity remained once in the present window
	Cut      bool   // the previous window ended with a cut
	Reason   Reason
	Changed  int64 // when the fraction last changed, for Reason, in µs
}

// Begin returns the state of a limit of which nothing was observed yet.
func Begin(now int64) State { return State{Fraction: Full, Begun: now, Reason: Defined, Changed: now} }

// Add adds a sample at the time now, in µs. A sample of no calls is only the time.
func (c *Config) Add(s State, now int64, o Sample) State {
	s = c.until(s, now)
	s.Seen.add(o)
	if s.Seen.Count >= minSamples && now-s.Begun >= c.Window {
		c.end(&s, now)
	}
	return s
}

// until ends the windows that are over by the time now.
func (c *Config) until(s State, now int64) State {
	for {
		length := longest * c.Window
		if s.Seen.Count >= minSamples {
			length = c.Window
		}
		if now-s.Begun < length {
			return s
		}
		if s.Seen.Count == 0 && s.Fraction == Full { // nothing can change any more
			s.Begun += (now - s.Begun) / length * length
			s.Low, s.Cut = false, false
			return s
		}
		c.end(&s, s.Begun+length)
	}
}

// end ends a window at a time, and sets the fraction for the next one.
func (c *Config) end(s *State, at int64) {
	was, cut := s.Fraction, false
	switch why, bad := c.missed(&s.Seen); {
	case s.Seen.Count == 0:
		s.set(min(Full, was+step), Unobserved, at)
	case bad > 0 && s.Seen.Count < minSamples:
	case why != "":
		if cut = !s.Cut; cut {
			s.set(max(c.Floor, was*4/5), why, at)
		}
	case s.Low:
		s.set(min(Full, was+step), Used, at)
	}
	s.Begun, s.Seen, s.Low, s.Cut = at, Sample{}, false, cut
}

func (s *State) set(fraction int64, why Reason, at int64) {
	if fraction != s.Fraction {
		s.Fraction, s.Reason, s.Changed = fraction, why, at
	}
}

// missed returns which target the samples miss by more than chance explains, or "", and how
// many of the calls were bad.
func (c *Config) missed(s *Sample) (why Reason, bad int64) {
	if c.Slow >= 0 {
		if bad += s.Slow; unlikelyMany(s.Slow, s.Count, c.Slow) {
			why = Slow
		}
	}
	if c.Failed >= 0 {
		if bad += s.Failed; unlikelyMany(s.Failed, s.Count, c.Failed) {
			why = Failing
		}
	}
	return why, bad
}

// unlikelyMany reports whether it is unlikely, with a probability below 1 %, that at
// least k of n calls have a property that each has with a probability of millionths /
// 10^6. It sums the upper tail of the binomial distribution, from k on.
func unlikelyMany(k, n, millionths int64) bool {
	p := float64(millionths) / 1e6
	if float64(k) <= p*float64(n) {
		return false // about half of the distribution is at or above k
	}
	if p == 0 {
		return true
	}
	logTerm := logFactorial(n) - logFactorial(k) - logFactorial(n-k) + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p)
	term := math.Exp(logTerm)
	sum := term
	for ; k < n && sum < unlikely && term > sum*1e-9; k++ { // above the mean, each term is smaller than the one before
		term *= float64(n-k) / float64(k+1) * p / (1 - p)
		sum += term
	}
	return sum < unlikely
}

func logFactorial(n int64) float64 {
	lg, _ := math.Lgamma(float64(n) + 1)
	return lg
}
