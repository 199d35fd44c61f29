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
	states  []State // of each process
	demand  float64 // calls a second

	now     int64     // µs
	pending []pending // calls that have not ended
	next    float64   // µs: when the next call wants in
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
	by   int // process
}

const usOf = 1e6

// newRig makes a rig with one-second windows and a ceiling of 500 a second.
func newRig(seed uint64, knee float64, processes int) *rig {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := &rig{plant: &plant{rng: rng, capacity: knee, queue: math.Inf(1), slow: 0.01}, ceiling: 500, demand: 1000}
	r.Config = Config{Floor: 103, Window: usOf, Slow: 50_000, Failed: 20_000}
	r.now = 1 << 50
	r.next, r.last = float64(r.now), r.now
	for i := range processes {
		r.states = append(r.states, Begin(r.now-int64(i)*usOf/int64(processes)))
	}
	r.start(512)
	return r
}

// start sets the fraction at which the processes begin.
func (r *rig) start(fraction int64) {
	for i := range r.states {
		r.states[i].Fraction = fraction
	}
}

// rate returns the mean of the rates that the processes use, in calls a second.
func (r *rig) rate() (sum float64) {
	for _, s := range r.states {
		sum += float64(s.Fraction) * r.ceiling / Full / float64(len(r.states))
	}
	return sum
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
	}
}

// calls makes the calls up to now. The bucket has a burst of a tenth of a second.
func (r *rig) calls() {
	for ; r.next < float64(r.now); r.next += usOf / r.demand * 2 * r.rng.Float64() {
		at := max(int64(r.next), r.last)
		p := r.rng.IntN(len(r.states))
		if !r.admits(at, p) {
			continue
		}
		latency, ok := r.call(float64(at-1<<50) / usOf)
		r.pending = append(r.pending, pending{at + int64(latency*usOf), latency, latency > 0.2, ok, p})
	}
}

// admits takes a call of a process at its price.
func (r *rig) admits(at int64, process int) bool {
	rate, price := r.ceiling, float64(Full)/float64(r.states[process].Fraction)
	if r.fixed > 0 {
		rate, price = r.fixed, 1
	}
	burst := rate / 10
	r.tokens, r.last = min(r.tokens+rate*float64(at-r.last)/usOf, burst), at
	if r.inFlight != nil {
		return float64(len(r.pending)) < r.inFlight.limit
	}
	price = min(price, burst)
	allowed := r.tokens >= price
	if allowed {
		r.tokens -= price
	}
	r.states[process].Low = r.states[process].Low || r.tokens <= burst*0.3
	return allowed
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
		r.states[c.by] = r.Add(r.states[c.by], r.now, s)
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
func settled(t *testing.T, what string, rates []float64, knee, off, swing float64) {
	t.Helper()
	low, high := peaks(rates)
	if is := mean(rates)/knee - 1; math.Abs(is) > off {
		t.Errorf("%s: the mean of 20 windows is off by %.3f", what, is)
	}
	if is := (high - low) / knee; is > swing {
		t.Errorf("%s: the rate swings by %.3f of the knee", what, is)
	}
}

// From its floor and from all of the rate a process finds the knee within 60 windows, and
// stays there.
func TestKnee(t *testing.T) {
	for _, knee := range []float64{400, 450} {
		for _, start := range []int64{103, Full} {
			for seed := range uint64(60) {
				r := newRig(seed, knee, 1)
				r.start(start)
				r.run(60)
				settled(t, fmt.Sprintf("seed %d, knee %v, from %d", seed, knee, start), r.run(20), knee, 0.1, 0.25)
			}
		}
	}
}

// Several processes that share the rate find it together, though each has fewer calls, and
// those with a higher fraction get more.
func TestSeveral(t *testing.T) {
	for _, start := range []int64{103, Full} {
		for seed := range uint64(10) {
			r := newRig(seed, 400, 4)
			r.start(start)
			r.run(100)
			before := r.served
			if r.run(40); float64(r.served-before) < 0.75*40*400 {
				t.Errorf("seed %d, from %d: %.2f of the capacity is served in time", seed, start, float64(r.served-before)/40/400)
			}
		}
	}
}

// A knee far below the rate is found as well. The steps up are of the rate, so that the
// fraction swings more around it.
func TestLowKnee(t *testing.T) {
	for _, c := range []struct{ knee, off, swing float64 }{{300, 0.1, 0.4}, {250, 0.15, 0.5}, {200, 0.2, 0.5}, {150, 0.2, 0.5}} {
		for seed := range uint64(20) {
			r := newRig(seed, c.knee, 1)
			r.run(60)
			settled(t, fmt.Sprintf("seed %d, knee %v", seed, c.knee), r.run(20), c.knee, c.off, c.swing)
		}
	}
}

// While all calls fail the rate falls to the floor. Within 60 windows after an outage it is
// at 90 % of the knee again.
func TestOutage(t *testing.T) {
	for seed := range uint64(20) {
		const knee = 400
		r := newRig(seed, knee, 1)
		r.run(20)
		r.down = true
		r.run(30)
		if got := r.rate(); got > 51 {
			t.Errorf("seed %d: %.0f a second at the end of an outage", seed, got)
		}
		r.down = false
		if _, high := peaks(r.run(60)); high < 0.9*knee {
			t.Errorf("seed %d: %.0f a second after an outage", seed, high)
		}
	}
}

// Errors below the target are none: 1 % of the calls fail, and 2 % may.
func TestErrorsBelowTarget(t *testing.T) {
	for _, processes := range []int{1, 4} {
		for seed := range uint64(20) {
			r := newRig(seed, 1000, processes)
			r.errors = 0.01
			r.start(Full)
			if got := mean(r.run(100)) / r.ceiling; got < 0.9 {
				t.Errorf("seed %d, %d processes: %.3f of the rate", seed, processes, got)
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
