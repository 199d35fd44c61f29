package adaptive

import (
	"math"
	"slices"
)

// A Config is the target of a limit and the bounds of its level. All fields are whole
// numbers that are computed from the settings of the limit.
type Config struct {
	Floor, Base int64 // levels, 1 to Full; Base is where the level begins, and where it drifts to
	Window      int64 // µs
	Keep        int64 // µs for a row to go from empty to full at the floor
	Slow        int64 // millionths of the calls that may be slow; negative: latency does not count
	Failed      int64 // millionths of the calls that may fail; negative: errors do not count
	Unit, Tick  int64 // of the rule: units in a token, and units that come back at a tick
}

// The controller's constants: the level is multiplied by 4/5 when the target is missed,
// and grows by 2 % of the ceiling when it is met and 7/10 of the rate are used.
const (
	MinSamples  = 20 // with fewer, a share of a few percent cannot be measured
	step        = Full * 2 / 100
	idleWindows = 10 // windows without samples after which the level drifts back to Base
	unlikely    = 0.01
)

// A Sample counts calls behind a limit.
type Sample struct {
	Count  int64 // calls that ended
	Slow   int64 // of them, slower than the latency of the target
	Failed int64 // of them, failed
	Taken  int64 // tokens that were taken
}

// maxCount bounds the sums of a window, so that unlikelyMany stays exact enough.
const maxCount = 1 << 40

// Add adds the counts of o. Impossible counts are corrected: of 10 calls at most 10 can
// be slow.
func (s *Sample) Add(o Sample) {
	count := clamp(o.Count, maxCount)
	s.Count = min(s.Count+count, maxCount)
	s.Slow = min(s.Slow+clamp(o.Slow, count), s.Count)
	s.Failed = min(s.Failed+clamp(o.Failed, count), s.Count)
	s.Taken = min(s.Taken+clamp(o.Taken, maxCount), maxCount)
}

func clamp(n, most int64) int64 { return max(0, min(n, most)) }

// A Reason says why the level changed last.
type Reason uint8

const (
	Defined    Reason = iota // it has not changed since the limit was defined
	Slow                     // more calls were slow than the target allows
	Failing                  // more calls failed than the target allows
	Used                     // the target was met, and most of the rate was used
	Unobserved               // nothing was observed for ten windows
)

var reasons = []string{"defined", "latency", "errors", "used", "unobserved"}

func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return "unknown"
}

// ReasonOf returns the reason that String writes as name, or Defined.
func ReasonOf(name string) Reason { return Reason(max(0, slices.Index(reasons, name))) }

// A State is what is kept for a limit: the samples of the present window, and the
// history.
type State struct {
	Begun   int64  // µs: when the present window began; 0: nothing was observed yet
	Seen    Sample // samples of the present window
	Before  Sample // samples of the previous window
	Cut     bool   // the previous window ended with a cut
	Reason  Reason
	Changed int64 // µs: when the level changed, for Reason
	Drifts  int64 // µs: when the level begins to drift if nothing is observed; 0: never
	History History
}

// Begin returns the state of a limit that was just defined.
func (c *Config) Begin() State { return State{History: NewHistory(c.Floor, c.Base, 0)} }

// Last returns why, and when in µs, the level last changed before now.
func (s *State) Last(now int64) (Reason, int64) {
	if s.Drifts != 0 && s.Drifts <= now {
		if i := s.History.index(now); i >= 0 && s.History.changes[i].At >= s.Drifts {
			return Unobserved, s.History.changes[i].At
		}
	}
	return s.Reason, s.Changed
}

// Add adds samples at the time now, in µs on the store's clock. If the window is over, it
// ends it and sets the level for the next one.
func (c *Config) Add(s State, now int64, o Sample) State {
	idle := s.Seen.Count == 0 && now-s.Begun >= 2*c.Window
	if s.Begun == 0 || now < s.Begun || idle {
		s.Begun, s.Seen = now, Sample{}
	}
	if idle {
		s.Cut, s.Before = false, Sample{}
	}
	if s.Seen.Add(o); now-s.Begun < c.Window {
		return s
	}
	if s.Seen.Count > 0 {
		c.end(&s, now)
	} else {
		s.Cut = false
	}
	s.Begun, s.Seen, s.Before = now, Sample{}, s.Seen
	return s
}

// end ends a window that has samples, and sets the level for the next one.
func (c *Config) end(s *State, now int64) {
	level := s.History.LevelAt(now)
	next, cut := level, false
	why := c.missed(&s.Seen)
	switch {
	case s.Seen.Count < MinSamples:
	case why != Defined:
		if cut = !s.Cut && !s.recovers(why); cut {
			next = max(c.Floor, level*4/5)
		}
	case c.used(s, level, now):
		next, why = min(Full, level+step), Used
	}
	if s.Reason, s.Changed = s.Last(now); next != level {
		s.Reason, s.Changed = why, now
	}
	s.Cut, s.Drifts = cut, now+idleWindows*c.Window
	s.History = s.History.set(now, next, c.Keep).drift(s.Drifts, c.Window, c.Base)
}

// missed returns which target the samples miss by more than chance explains, or Defined.
func (c *Config) missed(s *Sample) Reason {
	switch {
	case c.Failed >= 0 && unlikelyMany(s.Failed, s.Count, c.Failed):
		return Failing
	case c.Slow >= 0 && unlikelyMany(s.Slow, s.Count, c.Slow):
		return Slow
	}
	return Defined
}

// recovers reports whether fewer calls miss the target than in the previous window, by
// more than chance explains. The calls that were waiting since the last cut are then
// being served.
func (s *State) recovers(why Reason) bool {
	now, before := s.Seen.Slow, s.Before.Slow
	if why == Failing {
		now, before = s.Seen.Failed, s.Before.Failed
	}
	return before > 0 && unlikelyMany(s.Seen.Count-now, s.Seen.Count, 1e6-int64(float64(before)/float64(s.Before.Count)*1e6))
}

// used reports whether at least 7/10 of what the level allows was taken in the window.
// Each observed call counts as at least one token, because its token may have been taken
// elsewhere.
func (c *Config) used(s *State, level, now int64) bool {
	ticks := float64(level) * float64(min(now-s.Begun, 2*c.Window))
	return float64(max(s.Seen.Taken, s.Seen.Count))*float64(c.Unit) >= 0.7*ticks*float64(c.Tick)
}

// unlikelyMany reports whether it is unlikely, with a probability below 1 %, that at
// least k of n calls have a property that each has with a probability of millionths /
// 10^6. It sums the upper tail of the binomial distribution, from k on.
func unlikelyMany(k, n, millionths int64) bool {
	p := float64(millionths) / 1e6
	if float64(k) <= p*float64(n) {
		return false // about half of the distribution is above k
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
