package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A kind is the kind of event that a step makes happen.
type kind int

const (
	calls     kind = iota // a process makes n calls, gap µs apart
	holds                 // a process makes n holds, which are settled after back µs
	cut                   // no message passes between process and store for span µs
	slow                  // each message takes up to span µs longer, for some time
	stall                 // the store answers no call for span µs
	clockBack             // the store's clock is set back by span µs
	skew                  // the wall clock of a process is set forward by span µs
	pause                 // a process stands still for span µs
	crash                 // a process forgets everything that it knew
	define                // a limit gets another rate
	override              // a key gets other numbers or a plan, or its override ends
	sweep                 // the store deletes full rows
)

// A step is an event of a history. A step contains everything that it needs, so that
// other steps can be dropped.
type step struct {
	id      int
	at      int64 // true time of the step in µs
	kind    kind
	process int
	limit   string
	key     string
	verb    store.Verb
	cost    int64
	n       int
	gap     int64
	span    int64
	back    int64 // µs after which a hold is settled or a reservation cancelled; 0: never
	settle  int64
	rate    int64
	plan    string
	both    bool   // a call also takes from the limit "window"
	nested  bool   // a call takes as much from the limit "window", its parent, in the same take
	patient bool   // a refused call is repeated at the retry time that it was told
	rest    int64  // µs before the last third of the calls, which come at once; the first of these takes all free tokens
	extend  bool   // a hold is extended before it is settled
	region  int    // the region whose store the step affects
	where   string // the name of that store
	wide    bool   // it affects all processes of the region on their way to the home region
	leave   int64  // µs after which the caller stops waiting; 0: never
	times   int    // how often a hold is settled or a reservation cancelled
	floor   int64  // floor of each take and check
}

// faults has the probabilities of network faults, in 1/1000 of the messages.
type faults struct {
	lost, lostAnswers, duplicates int
	usual                         int64 // µs that a message to a near store usually takes
	slow                          int64 // µs that some messages take longer than usual
}

func happens(r *rand.Rand, permille int) bool { return r.IntN(1000) < permille }

// delay draws how long a message takes. Some take ten times as long as others, so that
// later ones pass them.
func (f *faults) delay(r *rand.Rand, usual int64) int64 {
	d := 50 + r.Int64N(usual)
	if r.IntN(10) == 0 {
		d += r.Int64N(10 * usual)
	}
	if extra := r.Int64N(1 << 20); f.slow > 0 {
		d += extra % f.slow
	}
	return d
}

// A bound is what a limit promises: the largest burst and rate that the limit has had.
type bound struct {
	burst        int64 // tokens
	rate, period int64 // rate: tokens in a period; period: in µs
	window       bool
	first        bool  // a window begins with a call
	counts       bool  // the burst bounds what is held at a time
	late         int64 // µs; the promise also includes what comes back in this time
}

// A history is everything that a seed determines.
type history struct {
	seed      uint64
	limits    []store.Limit
	bounds    map[string]*bound
	processes int
	cached    bool  // the processes have deny caches
	planned   bool  // calls name plans
	guarded   bool  // the processes have circuit breakers
	coalesces bool  // the processes coalesce calls, and some callers leave
	leased    bool  // the limit "hot" is leased
	far       bool  // the store is in another region than the processes
	regional  bool  // half of the processes are in the store's region, the others in one with a store of its own
	way       int64 // µs that a message to the store in the other region takes longer
	local     bool  // the limit "hot" is decided by each process alone while the store does not answer
	varied    bool  // the limit "hot" and its overrides change
	nested    bool  // the limit "window" is the parent of "bucket"
	drawn     int   // number of limits, from the first, that steps may use
	kinds
	drifts []int64
	faults faults
	steps  []step
}

var faultNames = []string{"lost", "lost-answers", "twice", "slow", "cut", "stall", "clock-back", "skew", "drift", "pause", "crash", "define", "override", "sweep"}

// newHistory draws a history with n steps from a seed, if calm without faults.
func newHistory(seed uint64, n int, calm bool) history {
	r := rand.New(rand.NewPCG(seed, 0))
	h := history{seed: seed, processes: 1 + r.IntN(4), cached: r.IntN(2) == 0, planned: r.IntN(3) == 0, leased: r.IntN(4) == 0}
	// These values are not drawn, so that the rest of the history does not depend on them.
	h.guarded, h.far, h.local = seed%3 == 2, h.leased && seed%2 == 1, h.leased && seed%3 == 0
	h.coalesces = seed%5 < 2
	if h.regional = h.far && seed%4 == 1; h.regional {
		h.processes = max(2, h.processes)
	}
	h.varied = h.leased && !h.regional && seed/2%2 == 0
	h.nested = seed%7 == 3
	h.drawKinds()
	active := map[string]bool{}
	for _, name := range faultNames {
		active[name] = r.IntN(2) == 0 && !calm
	}
	permille := func(name string) int {
		if v := r.IntN(60); active[name] {
			return v
		}
		return 0
	}
	h.faults = faults{lost: permille("lost"), lostAnswers: permille("lost-answers"), duplicates: permille("twice"), usual: 200 + r.Int64N(5000)}
	if h.far {
		h.way = 20_000 + int64(seed%7)*5_000
	}
	clocks := h.processes + 1 // those of the processes and of the stores
	if h.regional {
		clocks++
	}
	for range clocks {
		if d := r.Int64N(1001) - 500; active["drift"] {
			h.drifts = append(h.drifts, d)
		} else {
			h.drifts = append(h.drifts, 0)
		}
	}
	h.drawLimits(r)
	length := int64(n) * (5_000 + r.Int64N(60_000))
	for i := range n {
		s := h.drawStep(r, i, length, active)
		h.extend(&s)
		h.steps = append(h.steps, s)
	}
	slices.SortStableFunc(h.steps, func(a, b step) int { return int(a.at - b.at) })
	return h
}

func (h *history) drawLimits(r *rand.Rand) {
	rate := 2 + r.Int64N(200)
	bucket := store.Limit{Name: "bucket", Rate: rate, Period: time.Second, Burst: 1 + r.Int64N(2*rate)}
	bucket.Plans = store.NewPlans(store.Plan{Name: "banned", Mode: store.Blocked}, store.Plan{Name: "pro", Rate: rate * 2, Burst: 3 * rate},
		store.Plan{Name: "small", Rate: 1, Burst: 1 + rate/4}, store.Plan{Name: "staff", Mode: store.Unlimited})
	window := store.Limit{Name: "window", Algorithm: store.FixedWindow, Rate: 1 + r.Int64N(50), Period: time.Duration(50+r.IntN(900)) * time.Millisecond, Start: "0s"}
	window.Burst = window.Rate * (1 + r.Int64N(2))
	if h.nested {
		bucket.Parent = "window"
	}
	wild := store.Limit{Name: "wild", Rate: rate, Period: time.Second, Burst: 20}
	h.limits = []store.Limit{bucket, window, wild}
	lease := time.Duration(20+r.IntN(230)) * time.Millisecond
	if h.far {
		lease *= 4
	}
	hot := store.Limit{Name: "hot", Rate: 500 + r.Int64N(1500), Period: time.Second, Lease: lease}
	hot.Burst = 3*int64(lease.Seconds()*float64(hot.Rate)) + r.Int64N(200) + 10
	if r.IntN(2) == 0 {
		hot.MaxDebt = store.NoDebt
	}
	if h.local {
		hot.OnStoreError = store.FailLocal
	}
	if h.leased {
		h.limits = append(h.limits, hot)
	}
	h.drawn = len(h.limits)
	if h.regional {
		rate, burst := hot.Rate/int64(1+h.seed/8%3), hot.Burst/int64(1+h.seed/24%4)
		h.limits = append(h.limits, store.Limit{Name: "customer", Rate: rate, Period: time.Second, Burst: burst})
	}
	h.addLimits()
	h.bounds = map[string]*bound{}
	for _, l := range h.limits {
		h.bounds[l.Name] = &bound{burst: l.Burst, rate: l.Rate, period: l.Period.Microseconds(), window: l.Algorithm == store.FixedWindow || l.Algorithm == store.SlidingWindow, counts: l.Algorithm == store.Concurrency}
	}
	if b := h.bounds["first"]; b != nil {
		b.window, b.first = false, true
	}
	if b := h.bounds["slide"]; b != nil {
		b.burst = b.rate
	}
	h.bounds["bucket"].rate, h.bounds["bucket"].burst = 2*rate, max(bucket.Burst, 3*rate)
}

// drawStep draws a step. drawStep draws the same numbers whichever faults are active.
func (h *history) drawStep(r *rand.Rand, id int, length int64, active map[string]bool) step {
	s := step{id: id, where: "store", at: r.Int64N(length), process: r.IntN(h.processes), key: string(rune('a' + r.IntN(2))), limit: h.limits[r.IntN(h.drawn)].Name,
		cost: 1 + r.Int64N(4), n: 1 + r.IntN(14), gap: 100 + r.Int64N(20_000), span: 1000 + r.Int64N(300_000), rate: 2 + r.Int64N(200)}
	if r.IntN(8) == 0 {
		s.cost += r.Int64N(40)
	}
	s.back, s.settle = r.Int64N(200_000), r.Int64N(s.cost+2)
	verbs := []store.Verb{store.VerbTake, store.VerbTake, store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCheck}
	if plan := []string{"pro", "small", "staff", "banned", "", "", "", "", "", ""}[r.IntN(10)]; s.limit == "bucket" && h.planned {
		s.plan = plan
	}
	s.both, s.patient, s.extend, s.times = r.IntN(4) == 0, r.IntN(8) == 0, r.IntN(3) == 0, 1+r.IntN(2)
	if r.IntN(4) == 0 {
		s.back = 0
	}
	many := 40 + r.IntN(100)
	fault := r.IntN(10)
	pick, which := r.IntN(100), r.IntN(100)
	switch {
	case s.limit == "hot":
		s.n, s.gap, s.cost, s.both, s.patient = many, 100+s.gap/10, 1+s.cost%3, false, false
		if lease := h.limits[3].Lease.Microseconds(); s.back%2 == 0 {
			s.rest, s.gap = lease*(60+s.back%60)/100, 100+s.gap%200
			s.n = min(s.n, int(lease/s.gap))
		}
	case s.limit == "wild" && pick >= 15:
		s.verb = []store.Verb{store.VerbTake, store.VerbCharge, store.VerbRefund, store.VerbReset, store.VerbTakeUpTo}[pick%5]
		s.n = 1 + s.n/8
	case pick < 15:
		s.kind = holds
	default:
		s.verb = verbs[pick%len(verbs)]
	}
	s.both = s.both && s.limit == "bucket" && (s.verb <= store.VerbCheck || s.verb == store.VerbReserve)
	s.patient = s.patient && s.kind == calls && s.verb <= store.VerbTakeUpTo
	s.nested = h.nested && s.limit == "bucket"
	s.both = s.both || s.nested
	if fault > 0 {
		return s
	}
	for _, f := range []struct {
		name string
		kind kind
	}{{"cut", cut}, {"slow", slow}, {"stall", stall}, {"clock-back", clockBack}, {"skew", skew}, {"pause", pause}, {"crash", crash}, {"define", define}, {"override", override}, {"sweep", sweep}}[which%10:] {
		if active[f.name] {
			s.kind = f.kind
			break
		}
	}
	if s.kind == define || s.kind == override {
		s.limit = []string{"bucket", "window"}[which%2]
	}
	if s.kind == override {
		s.plan = ""
	}
	if s.kind == override && s.limit == "bucket" {
		s.plan = []string{"", "", "pro", "staff", "banned"}[which%5]
	}
	if h.varied && which%4 < 2 && (s.kind == define || s.kind == override) {
		s.limit, s.plan, s.rate = "hot", "", 100+s.rate*15
		s.cost += h.leastBurst(s.rate) // a burst that the lease allows
	}
	if s.kind == pause || h.guarded && (s.kind == cut || s.kind == stall) { // a breaker opens after some hundred ms
		s.span *= 8
	}
	if h.coalesces && s.rate%3 == 0 {
		s.leave = 1 + s.gap*s.rate%40_000
	}
	if h.regional {
		s.place()
	}
	if s.kind == skew {
		s.span = 600e6 * int64(which-50) / 50
	}
	return s
}

// leastBurst returns a burst that the lease of the limit "hot" allows at the given rate.
func (h *history) leastBurst(rate int64) int64 {
	return 3*int64(h.limits[3].Lease.Seconds()*float64(rate)) + 10
}

func (s *step) words() (text string) {
	if s.plan != "" {
		text = " by plan " + s.plan
	}
	if s.nested {
		text += " and of its parent"
	} else if s.both {
		text += " and 1 of window"
	}
	if s.floor > 0 {
		text += fmt.Sprintf(" with a floor of %d", s.floor)
	}
	return text
}

func (s *step) String() string {
	p := fmt.Sprintf("process %d ", s.process)
	ms := fmt.Sprintf("%.1f ms", float64(s.span)/1000)
	switch s.kind {
	case calls:
		if s.rest > 0 {
			return p + fmt.Sprintf("calls %d times, every %.1f ms, and after %.1f ms %d times at once: take %d of %s %q", s.n-s.n/3, float64(s.gap)/1000, float64(s.rest)/1000, s.n/3, s.cost, s.limit, s.key) + s.words()
		}
		return p + fmt.Sprintf("calls %d times, every %.1f ms: %s %d of %s %q", s.n, float64(s.gap)/1000, s.verb, s.cost, s.limit, s.key) + s.words()
	case holds:
		return p + fmt.Sprintf("holds %d times, every %.1f ms: %d of %s %q%s for %s, settled to %d after %.1f ms", s.n, float64(s.gap)/1000, s.cost, s.limit, s.key, s.words(), ms, s.settle, float64(s.back)/1000)
	case cut:
		if s.wide {
			return "region 1 is cut off from the home region for " + ms
		}
		return p + "is cut off from the " + s.where + " for " + ms
	case slow:
		return "messages take up to " + ms + " longer"
	case stall:
		return "the " + s.where + " answers nothing for " + ms
	case clockBack:
		return "the clock of the " + s.where + " steps back by " + ms
	case skew:
		return p + fmt.Sprintf("sets its wall clock %.0f s further", float64(s.span)/1e6)
	case pause:
		return p + "stands still for " + ms
	case crash:
		return p + "crashes"
	case override:
		if s.n <= 4 {
			return fmt.Sprintf("limit %s %q has no override now", s.limit, s.key)
		}
		return fmt.Sprintf("limit %s %q has the plan %q now, or if that is empty the rate %d and the burst %d", s.limit, s.key, s.plan, s.rate, s.cost)
	case define:
		return fmt.Sprintf("limit %s has the rate %d now, or if it counts holds the burst %d", s.limit, s.rate, s.cost)
	}
	return "the " + s.where + " sweeps"
}

func (w *world) play(s *step) {
	p, n := w.procs[s.process], w.nodes[s.region]
	if s.kind > holds {
		w.tracef("%s", s)
	}
	switch s.kind {
	case calls, holds:
		for i := range s.n {
			w.after(s.when(i), func() { p.deliver(func() { p.call(s, i) }) })
		}
	case cut:
		w.cutOff(s)
	case slow:
		w.faults.slow = s.span
		w.after(s.span*4, func() { w.faults.slow = 0 })
	case stall:
		n.stall = max(n.stall, w.now+s.span)
	case clockBack:
		n.setBack(s.span)
	case skew:
		p.skew = s.span
	case pause:
		p.stopped = max(p.stopped, w.now+s.span)
		p.stood = max(p.stood, s.span)
	case crash:
		p.crash()
	case define:
		n.define(s)
	case override:
		n.override(s)
	case sweep:
		n.sweep()
	}
}

// when returns how many µs after the start of a step its call i is made.
func (s *step) when(i int) int64 {
	if s.rests(i) {
		return int64(s.n-s.n/3)*s.gap + s.rest + int64(i)
	}
	return int64(i) * s.gap
}

// rests reports whether call i is in the last third of a step that has a rest.
func (s *step) rests(i int) bool { return s.rest > 0 && i >= s.n-s.n/3 }

// define changes a limit in the store. The processes learn of the change one after another.
func (n *node) define(s *step) {
	w := n.w
	for i := range n.limits {
		l := &n.limits[i]
		if l.Name != s.limit {
			continue
		}
		switch l.Rate = s.rate; l.Algorithm {
		case store.FixedWindow:
			l.Burst = max(l.Burst, l.Rate)
		case store.Concurrency:
			l.Rate, l.Burst = 0, s.cost
		}
		if l.Lease > 0 {
			l.Burst = max(l.Burst, w.leastBurst(l.Rate))
		}
		d, err := n.reg.Define(n.time(), *l, store.OwnerCode)
		if err != nil {
			w.fail("define", "%v", err)
			return
		}
		b := n.bounds[l.Name]
		b.rate, b.burst = max(b.rate, l.Rate), max(b.burst, l.Burst)
		if l.Algorithm == store.SlidingWindow { // a sliding window grants at most twice its rate in a period
			b.burst = b.rate
		}
		n.loosenAll()
		n.rates[l.Name].define(n.time(), l)
		n.rates[l.Name].defined = w.now
		for i, p := range w.procs {
			if c := p.own; c.node == n {
				w.after(int64(i+1)*s.gap, func() { p.deliver(func() { c.defs[d.Name] = d }) })
			}
		}
	}
}
