package store_test

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// A taken is what a call took of a bucket. What was given back again is not in it.
type taken struct {
	at, due int64
	tokens  int64
	charge  bool
	hold    string
	expires int64
	id      store.Reservation
}

// holdHistory is a random history of one bucket, and the same history without what was
// given back.
type holdHistory struct {
	*bench
	rnd    *rand.Rand
	def    refDef
	taken  []taken
	limit  string
	waited bool // a Reserve had to wait
	most   int  // entries of lows that there were
	log    []string
}

// What is used is never less than in the same history without what was given back,
// and the same where no Reserve had to wait. No more is granted than the promise says.
func TestHoldsReference(t *testing.T) {
	n := uint64(2500)
	if testing.Short() {
		n = 400
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playHolds(t, rand.New(rand.NewPCG(seed, 14))) })
		if t.Failed() {
			return
		}
	}
}

func playHolds(t *testing.T, rnd *rand.Rand) {
	h := &holdHistory{bench: newBench(t), rnd: rnd, limit: "a", def: refDef{rate: 1 + rnd.Int64N(5), per: second, burst: 1 + rnd.Int64N(14)}}
	h.define(fmt.Sprintf("a=%d/1s,burst=%d,max_debt=%d,max_charge=1000", h.def.rate, h.def.burst, 1+rnd.Int64N(30)))
	waits, charges := rnd.IntN(2) == 0, rnd.IntN(2) == 0
	for i := range 10 + rnd.IntN(60) {
		if rnd.IntN(3) > 0 {
			h.now += rnd.Int64N(2 * second)
		}
		n := 1 + rnd.Int64N(h.def.burst)
		switch k := rnd.IntN(12); {
		case k < 2:
			h.takeSome(store.VerbTake, n, "")
		case k < 5:
			h.takeSome(store.VerbTake, n, fmt.Sprint("h", i))
		case k < 6 && waits:
			h.takeSome(store.VerbReserve, 1+rnd.Int64N(h.def.burst+5), "")
		case k < 8:
			h.end(n + rnd.Int64N(4)*rnd.Int64N(2)*int64(btoi(charges)))
		case k < 9:
			h.cancel()
		case k < 10 && charges:
			h.takeSome(store.VerbCharge, n, "")
		case k < 11:
			h.extendSome()
		}
		h.compare()
	}
	if !slices.ContainsFunc(h.taken, func(c taken) bool { return c.charge }) {
		h.checkPromise()
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (h *holdHistory) fail(format string, args ...any) {
	h.t.Helper()
	for _, l := range h.log {
		h.t.Log(l)
	}
	h.t.Fatalf(format, args...)
}

func (h *holdHistory) logf(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%d: ", h.now-1e15)+fmt.Sprintf(format, args...))
}

func (h *holdHistory) takeSome(verb store.Verb, n int64, hold string) (allowed bool) {
	g := &store.Group{Ops: []store.Op{h.op(verb, fmt.Sprintf("%s k %d", h.limit, n))}}
	c := taken{at: h.now, tokens: n, charge: verb == store.VerbCharge, hold: hold}
	ttl := int64(0)
	if hold != "" {
		ttl = 1 + h.rnd.Int64N(20*second)
		ttl = max(ttl, 1000)
		g.Hold = &store.HoldCall{ID: hold, TTL: ttl}
		c.expires = h.now + ttl
	} else {
		g.ID = store.Reservation{1, 13: byte(len(h.taken)), 14: byte(len(h.log)), 15: byte(h.rnd.IntN(256))}
	}
	if _, err := h.decide(g); err != nil {
		h.fail("%v", err)
	}
	h.logf("%s %s %d %s %d: allowed %v, delay %d", verb, h.limit, n, hold, ttl, g.Allowed, g.Ops[0].Delay)
	if !g.Allowed {
		return false
	}
	c.due, c.id = h.now+g.Ops[0].Delay, g.ID
	if !g.Reserved {
		c.id = store.Reservation{}
	}
	h.waited = h.waited || g.Reserved
	h.taken = append(h.taken, c)
	return true
}

// pick returns a call that f is true of, or nil.
func (h *holdHistory) pick(f func(*taken) bool) *taken {
	var list []*taken
	for i := range h.taken {
		if f(&h.taken[i]) {
			list = append(list, &h.taken[i])
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[h.rnd.IntN(len(list))]
}

// end settles a hold. An expired one took nothing when it was made.
func (h *holdHistory) end(cost int64) {
	c := h.pick(func(c *taken) bool { return c.hold != "" && h.now < c.expires+60*second })
	if c == nil {
		return
	}
	if h.rnd.IntN(3) == 0 {
		cost = h.rnd.Int64N(2) * c.tokens
	}
	h.endAt(c, cost)
}

func (h *holdHistory) endAt(c *taken, cost int64) {
	h.logf("settle %s %d (of %d, expired %v)", c.hold, cost, c.tokens, c.expires <= h.now)
	h.settle(c.hold, cost)
	held := c.tokens
	if c.hold = ""; c.expires <= h.now {
		held, c.tokens = 0, 0
	}
	if c.tokens = min(c.tokens, cost); cost > held {
		h.taken = append(h.taken, taken{at: h.now, due: h.now, tokens: cost - held, charge: true})
	}
}

func (h *holdHistory) cancel() {
	c := h.pick(func(c *taken) bool { return c.id != store.Reservation{} && c.due > h.now && c.tokens > 0 })
	if c == nil {
		return
	}
	h.logf("cancel %d of %d", c.tokens, c.at-1e15)
	if _, err := h.decide(&store.Group{ID: c.id, Cancel: true}); err != nil {
		h.fail("%v", err)
	}
	c.tokens = 0
}

func (h *holdHistory) extendSome() {
	c := h.pick(func(c *taken) bool { return c.hold != "" && c.expires > h.now })
	if c == nil {
		return
	}
	ttl := 1000 + h.rnd.Int64N(20*second)
	h.logf("extend %s %d", c.hold, ttl)
	if _, err := h.tryExtend(c.hold, ttl); err != nil {
		h.fail("%v", err)
	}
	c.expires = h.now + ttl
}

// compare compares what is used, once all expired holds were given back, with the
// history without what was given back.
func (h *holdHistory) compare() {
	h.t.Helper()
	swept := newMapTable()
	swept.rows["a/k"], swept.records["a/k"] = h.table.rows["a/k"], h.table.records["a/k"]
	if l := swept.rows["a/k"].Lows; l != nil {
		h.most = max(h.most, len(l.Entries))
	}
	if _, err := store.SweepRow(swept, &h.reg, "a", "k", h.now); err != nil {
		h.fail("%v", err)
	}
	row, d := swept.rows["a/k"], h.reg.Lookup("a")
	got := big.NewRat(row.Used, d.Rule.Unit)
	got = h.def.after(got, row.TS, h.now)
	want, ts := new(big.Rat), int64(0)
	for _, c := range h.taken {
		if c.hold != "" && c.expires <= h.now {
			continue
		}
		want = h.def.after(want, ts, c.at)
		want, ts = new(big.Rat).Add(want, new(big.Rat).SetInt64(c.tokens)), c.at
	}
	want = h.def.after(want, ts, h.now)
	switch n := got.Cmp(want); {
	case n < 0:
		h.fail("%v used, %v without what was given back: too few", got, want)
	case n > 0 && !h.waited && h.most < store.MaxLows:
		h.fail("%v used, %v without what was given back, and no Reserve waited", got, want)
	}
}

// checkPromise checks that granted(t0,t1) is at most the capacity, or the largest
// Reserve, and the rate times the time.
func (h *holdHistory) checkPromise() {
	var acts []taken
	most := h.def.burst
	for _, c := range h.taken {
		if c.tokens > 0 && (c.hold == "" || c.expires > h.now) {
			acts = append(acts, c)
			most = max(most, c.tokens)
		}
	}
	slices.SortStableFunc(acts, func(a, b taken) int { return int(a.due - b.due) })
	for i := range acts {
		var sum int64
		for _, c := range acts[i:] {
			sum += c.tokens
			bound := new(big.Rat).Mul(big.NewRat(h.def.rate, h.def.per), new(big.Rat).SetInt64(c.due-acts[i].due+1)) // due is rounded up to a tick
			bound.Add(bound, new(big.Rat).SetInt64(most))
			if bound.Cmp(new(big.Rat).SetInt64(sum)) < 0 {
				h.fail("%d granted from %d to %d", sum, acts[i].due-1e15, c.due-1e15)
			}
		}
	}
}

// However callers, overrides and versions alternate, no more is granted than the largest
// capacity and the largest rate times the time, a hold counted as what it settled to.
func TestHoldsBesidePlans(t *testing.T) {
	n := uint64(2500)
	if testing.Short() {
		n = 400
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playPlans(t, rand.New(rand.NewPCG(seed, 16))) })
		if t.Failed() {
			return
		}
	}
}

func playPlans(t *testing.T, rnd *rand.Rand) {
	// The definitions differ little, so that the bound by the largest is near.
	leastRate, leastBurst := 1+rnd.Int64N(4), 1+rnd.Int64N(12)
	h := &holdHistory{bench: newBench(t), rnd: rnd, def: refDef{per: second}}
	rate := func() int64 {
		n := leastRate + rnd.Int64N(2)
		h.def.rate = max(h.def.rate, n)
		return n
	}
	burst := func() int64 {
		n := leastBurst + rnd.Int64N(3)
		h.def.burst = max(h.def.burst, n)
		return n
	}
	define := func() {
		text := fmt.Sprintf("a=%d/1s,burst=%d,plans=p:rate=%d;burst=%d|q:burst=%d", rate(), burst(), rate(), burst(), burst())
		h.logf("%s", text)
		h.define(text)
	}
	define()
	for i := range 10 + rnd.IntN(60) {
		if rnd.IntN(3) > 0 {
			h.now += rnd.Int64N(2 * second)
		}
		h.limit = []string{"a", "a:p", "a:q"}[rnd.IntN(3)]
		switch k := rnd.IntN(14); {
		case k < 4:
			for n := leastBurst; n > 0; { // all that there is
				if granted := h.takeSome(store.VerbTake, n, ""); !granted {
					n /= 2
				}
			}
		case k < 7:
			h.takeSome(store.VerbTake, 1+rnd.Int64N(leastBurst), fmt.Sprint("h", i))
		case k < 9:
			if c := h.pick(func(c *taken) bool { return c.hold != "" && h.now < c.expires }); c != nil {
				h.endAt(c, rnd.Int64N(c.tokens+1))
			}
		case k < 10:
			h.extendSome()
		case k < 11:
			define()
		case k < 12:
			if _, err := store.SweepRow(h.table, &h.reg, "a", "k", h.now); err != nil {
				h.fail("%v", err)
			}
		default:
			o, err := store.Override{Rate: rate(), Burst: burst()}, error(nil)
			if rnd.IntN(2) == 0 {
				o.Until = h.now + 1 + rnd.Int64N(8*second)
			}
			if d := h.reg.Lookup("a"); rnd.IntN(3) > 0 {
				h.logf("override %+v", o)
				_, err = d.SetOverrideIn(h.table, "k", o, h.now)
			} else {
				h.logf("end of the override")
				_, err = d.EndOverrideIn(h.table, "k", store.OverrideKind(rnd.IntN(3)), h.now)
			}
			if err != nil {
				h.fail("%v", err)
			}
		}
	}
	h.checkPromise()
}

// At every time at most the burst is held, and a hold is allowed exactly if it fits.
// The retry time of a refusal is the first at which enough holds expire.
func TestConcurrencyReference(t *testing.T) {
	for seed := range uint64(600) {
		rnd := rand.New(rand.NewPCG(seed, 15))
		burst := 1 + rnd.Int64N(8)
		b := newBench(t, fmt.Sprintf("c=%d,algorithm=concurrency,plans=free:mode=unlimited|big:burst=%d", burst, 2*burst))
		type held struct{ tokens, expires int64 }
		live := map[string]held{}
		for i := range 60 {
			b.now += rnd.Int64N(2 * second)
			var ends []held
			used := int64(0)
			for id, x := range live {
				if x.expires <= b.now {
					delete(live, id)
					continue
				}
				used += x.tokens
				ends = append(ends, x)
			}
			slices.SortFunc(ends, func(a, b held) int { return int(a.expires - b.expires) })
			id := fmt.Sprint("n", i-rnd.IntN(4))
			switch rnd.IntN(6) {
			case 0:
				if _, err := b.trySettle(id, rnd.Int64N(9)); err == nil {
					delete(live, id)
				} else if _, ok := live[id]; ok || !errors.Is(err, store.ErrUnknownHold) && !errors.Is(err, store.ErrHoldConflict) {
					t.Fatal(seed, err)
				}
			case 1:
				ttl := 1000 + rnd.Int64N(9*second)
				_, err := b.tryExtend(id, ttl)
				if x, ok := live[id]; ok != (err == nil) {
					t.Fatal(seed, err)
				} else if ok {
					live[id] = held{x.tokens, b.now + ttl}
				}
			default:
				n, ttl, bound, limit := 1+rnd.Int64N(burst+1), 1000+rnd.Int64N(9*second), burst, "c"
				switch rnd.IntN(8) {
				case 0:
					limit, bound = "c:free", store.MaxInt
				case 1:
					limit, bound = "c:big", 2*burst
				}
				g, err := b.tryHold(fmt.Sprint("n", i), ttl, fmt.Sprintf("%s k %d", limit, n))
				if err != nil || g.Allowed != (used+n <= bound) {
					t.Fatalf("seed %d: %d held, %d of %d more: %v, %+v", seed, used, n, bound, err, g.Ops[0].Answer)
				}
				if g.Allowed {
					live[fmt.Sprint("n", i)] = held{n, b.now + ttl}
					continue
				}
				want := int64(-1)
				for left := used; n <= bound && left+n > bound; ends = ends[1:] {
					left, want = left-ends[0].tokens, ends[0].expires-b.now
				}
				if op := g.Ops[0]; op.Never != (want < 0) || !op.Never && (op.Retry != want || !op.Bound) {
					t.Fatalf("seed %d: retry after %d; want %d: %+v", seed, op.Retry, want, op.Answer)
				}
			}
			id = fmt.Sprint("n", i-rnd.IntN(4))
			if _, ok := live[id]; ok && rnd.IntN(3) == 0 {
				b.settle(id)
				delete(live, id)
			}
		}
	}
}
