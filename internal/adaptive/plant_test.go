package adaptive

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// A plant is a server behind a limit, in virtual time: it serves calls one after the other
// at its capacity, and keeps those that wait in a queue, up to a bound. Calls take a time
// of their own besides.
type plant struct {
	rng      *rand.Rand
	capacity float64 // calls a second: the knee
	queue    float64 // seconds of work that may wait; a call beyond fails at once
	errors   float64 // share of calls that fail whatever the load is
	down     bool    // each call fails
	slow     float64 // share of calls that are slow whatever the load is
	free     float64 // s: when the calls that wait are served
}

// call serves a call that arrives at the time t, in s, and returns how long it took.
func (p *plant) call(t float64) (latency float64, ok bool) {
	if p.down {
		return 0.01, false
	}
	own := 0.1 + 0.02*p.rng.ExpFloat64()
	if p.rng.Float64() < p.slow {
		own = 0.5
	}
	if p.free = max(p.free, t); p.free-t > p.queue {
		return 0.001, false
	}
	p.free += 1 / p.capacity * (0.75 + p.rng.Float64()/2)
	return p.free - t + own, p.rng.Float64() >= p.errors
}

// A rig is a limit over a plant, with callers in some processes that always want more.
type rig struct {
	*plant
	Config
	ceiling float64 // a second
	state   State
	demand  float64 // calls a second

	now     int64     // µs
	pending []pending // calls that have not ended
	seen    []Sample  // of each process, not yet sent
	sent    []int64
	next    float64 // µs: when the next call wants in
	last    int64
	tokens  float64

	inFlight *gradient2 // limits the calls in place of the rate; nil: the rate does
	fixed    float64    // rate in place of the adaptive one; 0: none
	served   int        // calls that were good and fast, in all
	rtt      float64    // s, of all calls of the window
	ends     int
}

type pending struct {
	at   int64
	took float64 // s
	slow bool
	ok   bool
}

const usOf = 1e6

// newRig makes a rig with one-second windows and a ceiling of 500 a second.
func newRig(seed uint64, knee float64, processes int) *rig {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := &rig{plant: &plant{rng: rng, capacity: knee, queue: math.Inf(1), slow: 0.01}, ceiling: 500, demand: 1000}
	r.Config = Config{Floor: 103, Base: 512, Window: usOf, Keep: 10 * usOf, Slow: 50_000, Failed: 20_000, Unit: 2_048_000, Tick: 1}
	r.state = r.Begin()
	r.now = 1 << 50
	r.next, r.last = float64(r.now), r.now
	r.seen, r.sent = make([]Sample, processes), make([]int64, processes)
	for i := range r.sent {
		r.sent[i] = r.now - int64(i)*usOf/4/int64(processes)
	}
	return r
}

// start sets the level at which the limit begins.
func (r *rig) start(level int64) { r.state.History = NewHistory(r.Floor, level, 0) }

// rate returns the present rate, in calls a second.
func (r *rig) rate() float64 {
	return float64(r.state.History.LevelAt(r.now)) * r.ceiling / Full
}

// run runs some windows and returns the rate at the end of each.
func (r *rig) run(windows int) (rates []float64) {
	for range windows {
		r.window()
		rates = append(rates, r.rate())
	}
	return rates
}

func (r *rig) window() {
	for end := r.now + r.Window; r.now < end; {
		r.now = min(end, r.now+5000)
		r.calls()
		r.ended()
		for i := range r.sent {
			if r.now-r.sent[i] >= r.Window/4 {
				r.state = r.Add(r.state, r.now, r.seen[i])
				r.seen[i], r.sent[i] = Sample{}, r.now
			}
		}
	}
}

// calls makes the calls up to now. The bucket has a burst of a tenth of a second.
func (r *rig) calls() {
	for ; r.next < float64(r.now); r.next += usOf / r.demand * 2 * r.rng.Float64() {
		at := max(int64(r.next), r.last)
		if !r.admits(at) {
			continue
		}
		p := &r.seen[r.rng.IntN(len(r.seen))]
		p.Taken++
		latency, ok := r.call(float64(at-1<<50) / usOf)
		r.pending = append(r.pending, pending{at + int64(latency*usOf), latency, latency > 0.2, ok})
	}
}

// admits takes a token at a time.
func (r *rig) admits(at int64) bool {
	rate, ticks := r.rate(), float64(r.state.History.Tick(at)-r.state.History.Tick(r.last))
	if r.fixed > 0 {
		rate, ticks = r.fixed, r.fixed*float64(at-r.last)/usOf*float64(r.Unit)
	}
	r.tokens, r.last = min(r.tokens+ticks/float64(r.Unit), rate/10), at
	if r.inFlight != nil {
		return float64(len(r.pending)) < r.inFlight.limit
	}
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

// ended observes the calls that have ended.
func (r *rig) ended() {
	rest := r.pending[:0]
	for _, c := range r.pending {
		if c.at > r.now {
			rest = append(rest, c)
			continue
		}
		s := Sample{Count: 1}
		r.rtt, r.ends = r.rtt+c.took, r.ends+1
		if c.ok && !c.slow {
			r.served++
		}
		if c.slow {
			s.Slow = 1
		}
		if !c.ok {
			s.Failed = 1
		}
		r.seen[r.rng.IntN(len(r.seen))].Add(s)
	}
	r.pending = rest
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

func peaks(xs []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, x := range xs {
		low, high = min(low, x), max(high, x)
	}
	return low, high
}

// settled checks that the rates of 20 windows stay near the knee.
func settled(t *testing.T, what string, rates []float64, knee float64) {
	t.Helper()
	low, high := peaks(rates)
	if off := mean(rates)/knee - 1; math.Abs(off) > 0.1 {
		t.Errorf("%s: the mean of 20 windows is off by %.3f", what, off)
	}
	if swing := (high - low) / knee; swing > 0.25 {
		t.Errorf("%s: the rate swings by %.3f of the knee", what, swing)
	}
}

// From its floor and from its ceiling the rate finds the knee within 60 windows, and stays
// there, with one process that observes and with several.
func TestKnee(t *testing.T) {
	for _, processes := range []int{1, 2, 16} {
		for knee, seeds := range map[float64]uint64{400: 100, 450: 20} {
			for _, start := range []int64{103, Full} {
				for seed := range seeds {
					r := newRig(seed, knee, processes)
					r.start(start)
					r.run(60)
					settled(t, fmt.Sprintf("seed %d, %d processes, knee %v, from %d", seed, processes, knee, start), r.run(20), knee)
				}
			}
		}
	}
}

// A knee far below the ceiling is found as well. The steps up are of the ceiling, so that
// the rate swings more around it.
func TestLowKnee(t *testing.T) {
	for _, c := range []struct {
		knee, swing float64
		seeds       uint64
	}{{300, 0.27, 20}, {250, 0.28, 20}, {200, 0.45, 100}, {150, 0.45, 20}} {
		for seed := range c.seeds {
			r := newRig(seed, c.knee, 2)
			r.run(60)
			rates := r.run(20)
			if off := mean(rates)/c.knee - 1; math.Abs(off) > 0.1 {
				t.Errorf("seed %d, knee %v: the mean of 20 windows is off by %.3f", seed, c.knee, off)
			}
			if low, high := peaks(rates); (high-low)/c.knee > c.swing {
				t.Errorf("seed %d, knee %v: the rate swings by %.3f of the knee", seed, c.knee, (high-low)/c.knee)
			}
		}
	}
}

// While all calls fail the rate falls to the floor. Within 60 windows after an outage of 30
// it is at 90 % of the knee again.
func TestOutage(t *testing.T) {
	for _, processes := range []int{1, 2, 16} {
		for seed := range uint64(100) {
			const knee = 400
			r := newRig(seed, knee, processes)
			r.run(20)
			r.down = true
			r.run(30)
			if got := r.rate(); got > 51 {
				t.Errorf("seed %d, %d processes: %.0f a second at the end of an outage", seed, processes, got)
			}
			r.down = false
			if _, high := peaks(r.run(60)); high < 0.9*knee {
				t.Errorf("seed %d, %d processes: %.0f a second after an outage", seed, processes, high)
			}
		}
	}
}

// Errors below the target are none: 1 % of the calls fail, and 2 % may.
func TestErrorsBelowTarget(t *testing.T) {
	for _, processes := range []int{1, 2, 16} {
		for seed := range uint64(100) {
			r := newRig(seed, 1000, processes)
			r.errors = 0.01
			r.start(Full)
			if got := mean(r.run(100)) / r.ceiling; got < 0.9 {
				t.Errorf("seed %d, %d processes: %.3f of the ceiling", seed, processes, got)
			}
		}
	}
}

// Errors beyond the target bring the rate down, though they do not depend on it.
func TestErrorsBeyondTarget(t *testing.T) {
	for seed := range uint64(20) {
		r := newRig(seed, 1000, 1)
		r.errors = 0.1
		r.start(Full)
		if r.run(60); r.rate() > 0.3*r.ceiling {
			t.Errorf("seed %d: %.0f a second", seed, r.rate())
		}
	}
}

// A limit that few use does not grow: nothing shows that more would be served.
func TestUnused(t *testing.T) {
	r := newRig(1, 1000, 1)
	r.demand = 130 // of 250
	r.run(60)
	if r.rate() != 250 {
		t.Errorf("%.0f a second", r.rate())
	}
	r.demand = 200
	if r.run(60); r.rate() < 260 {
		t.Errorf("%.0f a second when 4/5 of it are used", r.rate())
	}
}
