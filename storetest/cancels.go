package storetest

import (
	"cmp"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// givingBackCases test how many tokens a cancellation gives back: those of the
// reservation that time has not returned and no later reservation needs.
var givingBackCases = []testCase{
	{"group-cancel-mints", groupCancelMints},
	{"cancel-of-passed-debt", cancelOfPassedDebt},
	{"cancel-before-later", cancelBeforeLater},
	{"cancel-withheld-for-good", cancelWithheldForGood},
	{"cancel-due-limits-for-good", cancelDueLimitsForGood},
	{"cancel-due-order", cancelDueOrder},
	{"held-before-later", heldBeforeLater},
	{"cancel-after-cancel", cancelAfterCancel},
	{"remade-row", remadeRow},
	{"cancel-of-swept-row", cancelOfSweptRow},
	{"cancelled-waits-in-any-order", cancelledWaits},
	{"cancel-after-change", cancelAfterChange},
	{"cancel-after-proportional-change", cancelAfterProportional},
	{"cancel-beside-clipped-charge", cancelBesideClippedCharge},
	{"cancel-of-forty", cancelOfForty},
	{"cancel-beside-neighbours-reset", cancelBesideNeighboursReset},
	{"cancel-beside-neighbours-drop", cancelBesideNeighboursDrop},
	{"cancel-refund-charge", cancelRefundCharge},
	{"cancel-after-refusal", cancelAfterRefusal},
	{"cancel-rests-of-another-list", cancelRestsOfAnotherList},
	{"cancel-leaves-another-list", cancelLeavesAnotherList},
	{"giving-back", givingBackCase},
}

// takeCancelable takes n tokens, without delay, in a group that also reserves
// tokens of another limit, due after d. Until the reservation is due the take can be
// cancelled.
func (e *env) takeCancelable(limit, key string, n int64, d time.Duration) store.Reservation {
	e.Helper()
	late := fmt.Sprint("late", e.late)
	e.late++
	e.define(store.Limit{Name: late, Rate: 1, Period: time.Second, Burst: store.NoBurst, MaxDebt: 1 << 23})
	a := e.doAll(store.VerbReserve, take(limit, key, n), take(late, key, int64(d/time.Second)))
	if a.Delay != d || a.Limits[0].Delay != 0 {
		e.Fatalf("take %d of %s, cancelable for %v: %+v", n, limit, d, a)
	}
	return a.Reservation
}

func (e *env) deep(name string, burst int64) {
	e.Helper()
	e.define(store.Limit{Name: name, Rate: 1, Period: time.Second, Burst: burst, MaxDebt: 100})
}

// Cancelling a group does not give back tokens that time has already returned,
// here those of the part of the group that was due at once.
func groupCancelMints(e *env) {
	e.bucket("a", 1, time.Second, 5)
	e.bucket("b", 1, time.Second, 5)
	e.allowed("b", "k", 5, 0)
	d := e.doAll(store.VerbReserve, take("a", "k", 2), take("b", "k", 3))
	e.at(1999 * time.Millisecond)
	e.take("a", "k", 1)
	e.at(2 * time.Second)
	e.must(nil, e.cancel(d.Reservation))
	e.left("a", "k", 4)
	e.allowed("a", "k", 4, 0)
	e.refused("a", "k", 1, 999*time.Millisecond)
}

func cancelOfPassedDebt(e *env) {
	e.deep("w", 10)
	d := e.reserve("w", "k", 50)
	e.at(30 * time.Second)
	e.do(store.VerbCharge, "w", "k", 1)
	e.must(nil, e.cancel(d.Reservation))
	e.left("w", "k", 9)
}

// Cancelling a reservation gives back only what later ones do not need, and
// the rest when those are cancelled too.
func cancelBeforeLater(e *env) {
	e.deep("w", 10)
	e.allowed("w", "k", 10, 0)
	a, b := e.reserve("w", "k", 10), e.reserve("w", "k", 5)
	e.must(nil, e.cancel(a.Reservation))
	e.at(14900 * time.Millisecond)
	if d := e.take("w", "k", 3); !d.Allowed {
		e.Fatalf("take 3 with another reservation due in 100 ms: %+v", d)
	}
	e.must(nil, e.cancel(b.Reservation))
	e.left("w", "k", 7)
}

// Tokens withheld for a later reservation are lost once it is due.
func cancelWithheldForGood(e *env) {
	e.deep("w", 10)
	e.allowed("w", "k", 10, 0)
	a := e.reserve("w", "k", 10)
	e.reserve("w", "k", 5)
	c := e.reserve("w", "k", 1)
	e.must(nil, e.cancel(a.Reservation))
	e.at(15500 * time.Millisecond)
	e.sweep()
	e.must(nil, e.cancel(c.Reservation))
	e.left("w", "k", 5)
}

// Once a reservation is due, cancelling an earlier take gives back at most its
// slack.
func cancelDueLimitsForGood(e *env) {
	e.deep("w", 10)
	id := e.takeCancelable("w", "k", 10, time.Minute)
	e.reserve("w", "k", 8) // due at 8 s, when 2 other tokens are in use
	e.at(9 * time.Second)
	e.take("w", "k", 1) // used tokens: 10 + 8 - 9 + 1
	e.must(nil, e.cancel(id))
	e.left("w", "k", 2)
}

func heldBeforeLater(e *env) {
	e.deep("w", 10)
	id := e.takeCancelable("w", "k", 10, time.Minute)
	if d := e.reserve("w", "k", 5); d.Delay != 5*time.Second {
		e.Fatalf("reserve 5: %+v", d)
	}
	e.at(4900 * time.Millisecond)
	e.must(nil, e.cancel(id))
	e.left("w", "k", 4)
}

// Later records cannot give back tokens that an earlier record gave back.
func cancelAfterCancel(e *env) {
	e.bucket("w", 1, time.Second, 10)
	a := e.takeCancelable("w", "k", 2, time.Minute)
	e.at(time.Second)
	b := e.takeCancelable("w", "k", 2, time.Minute) // 1 token is used before it
	e.at(2500 * time.Millisecond)
	e.takeCancelable("w", "k", 5, time.Minute) // 1.5 tokens are used before it
	e.must(nil, e.cancel(a))
	e.must(nil, e.cancel(b))
	e.left("w", "k", 5)
}

// The row was full between the takes, so cancelling the first gives nothing
// back.
func remadeRow(e *env) {
	e.bucket("w", 1, time.Second, 5)
	first := e.takeCancelable("w", "k", 2, time.Minute)
	e.at(20 * time.Second)
	second := e.takeCancelable("w", "k", 5, time.Minute)
	e.must(nil, e.cancel(first))
	e.left("w", "k", 0)
	e.must(nil, e.cancel(second))
	e.left("w", "k", 5)
}

func cancelOfSweptRow(e *env) {
	e.bucket("w", 1, time.Second, 5)
	a, b := e.takeCancelable("w", "a", 2, time.Minute), e.takeCancelable("w", "b", 2, time.Minute)
	e.at(20 * time.Second)
	e.sweep()
	e.allowed("w", "b", 3, 2)
	e.must(nil, e.cancel(a))
	e.must(nil, e.cancel(b))
	e.left("w", "a", 5)
	e.left("w", "b", 2)
}

// Of two reservations that fell due since the last call, the one due first lowers the lows
// first, as if somebody had called in between: the one of 7 joins the lows of all before
// it, and the one of 10, whose slack is 0, lowers them to 0.
func cancelDueOrder(e *env) {
	for _, between := range []bool{true, false} {
		name := fmt.Sprint("w", between)
		e.define(store.Limit{Name: name, Rate: 1, Period: time.Second, Burst: 10, MaxDebt: 40})
		e.takeCancelable(name, "k", 3, time.Minute)
		e.allowed(name, "k", 7, 0)
		e.reserve(name, "k", 10) // due in 10 seconds
		e.reserve(name, "k", 10)
		e.do(store.VerbRefund, name, "k", 25)
		id := e.takeCancelable(name, "k", 2, time.Minute)
		e.reserve(name, "k", 7) // due in 4 seconds
		e.advance(5 * time.Second)
		if between {
			e.do(store.VerbTake, name, "k", 1)
			e.do(store.VerbRefund, name, "k", 1)
		}
		e.advance(5500 * time.Millisecond)
		e.left(name, "k", 6)
		e.must(nil, e.cancel(id))
		e.left(name, "k", 6)
	}
}

// Fifty reservations cancelled at once, in any order, leave the row as it was, for
// bursts smaller and larger than the reservations.
func cancelledWaits(e *env) {
	for burst := int64(1); burst <= 60; burst += int64(e.part) * (1 + burst/10) {
		name, rnd := fmt.Sprint("w", burst), rand.New(rand.NewPCG(uint64(burst), 0))
		e.define(store.Limit{Name: name, Rate: 1, Period: time.Hour, Burst: burst, MaxDebt: 50})
		e.allowed(name, "k", burst, 0)
		var ids []store.Reservation
		for range 50 / e.few {
			ids = append(ids, e.reserve(name, "k", 1).Reservation)
		}
		if burst%3 > 0 { // otherwise they are cancelled in the order of creation
			rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		}
		for _, id := range ids {
			e.must(nil, e.cancel(id))
		}
		e.refused(name, "k", 1, time.Hour)
	}
}

// Lows, slacks and withheld tokens are converted when their limit changes. A change
// with the policy reset ends all reservations of the row.
func cancelAfterChange(e *env) {
	for _, p := range []store.ChangePolicy{store.Keep, store.Proportional, store.StartOver} {
		name, want := p.String(), error(nil)
		if p == store.StartOver {
			want = store.ErrReservation
		}
		l := store.Limit{Name: name, Rate: 1, Period: time.Minute, Burst: 10, MaxDebt: 60, OnChange: p}
		e.define(l)
		e.allowed(name, "k", 3, 7)
		first := e.takeCancelable(name, "k", 7, time.Hour)
		a, b, c := e.reserve(name, "k", 7), e.reserve(name, "k", 5), e.reserve(name, "k", 2)
		e.advance(20 * time.Second)
		e.must(nil, e.cancel(a.Reservation))
		e.check(name, "k", 1)
		l.Rate, l.Period, l.Burst = 3, 100*time.Second, 23
		e.define(l)
		e.advance(time.Second)
		e.mustBe(want, e.cancel(b.Reservation))
		e.check(name, "k", 1)
		d := e.reserve(name, "k", 3)
		l.Rate, l.Burst = 7, 4
		e.define(l)
		e.mustBe(want, e.cancel(first))
		e.check(name, "k", 1)
		e.advance(3 * time.Second)
		e.mustBe(want, e.cancel(c.Reservation))
		e.check(name, "k", 1)
		if d.Delay > 0 {
			_ = e.cancel(d.Reservation)
		}
		e.take(name, "k", 2)
		e.reserve(name, "k", 2)
	}
}

// A change with the policy proportional keeps all 50 used tokens of a row that has a
// reservation, and scales them once it was cancelled.
func cancelAfterProportional(e *env) {
	l := store.Limit{Name: "w", Rate: 1, Period: time.Hour, Burst: 100, OnChange: store.Proportional}
	e.define(l)
	e.allowed("w", "k", 20, 80)
	id := e.takeCancelable("w", "k", 30, time.Minute)
	l.Burst = 200
	e.define(l)
	e.left("w", "k", 150)
	e.must(nil, e.cancel(id))
	e.left("w", "k", 180)
	l.Burst = 10
	e.define(l)
	e.left("w", "k", 9)
}

// After a charge that was clipped at MaxUsed, cancelling an earlier take gives
// nothing back, because it is not known which tokens were clipped.
func cancelBesideClippedCharge(e *env) {
	d := e.define(store.Limit{Name: "w", Rate: 1, Period: 30 * 24 * time.Hour, Burst: 50, MaxCharge: 3000})
	most, part := d.Rule.MaxUsed/d.Rule.Unit, d.Rule.MaxUsed%d.Rule.Unit
	for i, last := range []int64{-1, 0, 1, 2} { // number of tokens above MaxUsed
		key := fmt.Sprint("k", i)
		id := e.takeCancelable("w", key, 10, time.Hour)
		e.do(store.VerbCharge, "w", key, 3000)
		e.do(store.VerbCharge, "w", key, most-3010-1)
		e.do(store.VerbCharge, "w", key, 1+last)
		e.must(nil, e.cancel(id))
		e.check("w", key, 0)
	}
	// A charge that reaches MaxUsed exactly is not clipped.
	id := e.takeCancelable("w", "exact", 10, 40*24*time.Hour)
	e.do(store.VerbCharge, "w", "exact", 3000)
	e.do(store.VerbCharge, "w", "exact", most-3010-1)
	e.advance(time.Duration(d.Rule.Unit-part) * time.Microsecond / time.Duration(d.Rule.Add) * time.Duration(d.Rule.Every))
	e.do(store.VerbCharge, "w", "exact", 2)
	e.do(store.VerbCharge, "w", "exact", 1)
	before := e.check("w", "exact", 0).ResetAfter
	e.must(nil, e.cancel(id))
	if after := e.check("w", "exact", 0).ResetAfter; after != before {
		e.Fatalf("full in %v before the cancellation, in %v after it", before, after)
	}
}

// A row with more records than it may have lows merges lows, so that records
// give back the same or less.
func cancelOfForty(e *env) {
	e.deep("w", 200)
	e.define(store.Limit{Name: "late", Rate: 1, Period: time.Second, Burst: store.NoBurst, MaxDebt: 1 << 20})
	var ids []store.Reservation
	for i := range 40 {
		d := e.doAll(store.VerbReserve, take("w", "k", 1+int64(i*7%5)), take("late", "k", 100))
		ids = append(ids, d.Reservation)
		e.advance(time.Duration(i%4) * 100 * time.Millisecond)
	}
	for i := range ids {
		e.must(nil, e.cancel(ids[i*27%len(ids)]))
		if e.check("w", "k", 1); i%5 == 0 {
			e.take("w", "k", int64(i%3))
			e.advance(700 * time.Millisecond)
		}
	}
}

// A reset of one key of a reservation ends the reservation, but its tokens of
// other keys stay used, because later reservations were given delays that count
// them.
func cancelBesideNeighboursReset(e *env) {
	cancelBesideNeighbours(e, func() { e.do(store.VerbReset, "b", "k", 0) })
}

func cancelBesideNeighboursDrop(e *env) {
	cancelBesideNeighbours(e, func() { e.drop("b") })
}

func cancelBesideNeighbours(e *env, end func()) {
	e.deep("a", 10)
	e.deep("b", 10)
	e.allowed("a", "k", 10, 0)
	first := e.reserve("a", "k", 10)
	group := e.doAll(store.VerbReserve, take("a", "k", 5), take("b", "k", 1))
	end()
	if e.cancel(group.Reservation) == nil {
		e.Fatal("a reservation was cancelled after one of its keys was reset or dropped")
	}
	e.must(nil, e.cancel(first.Reservation))
	last := e.reserve("a", "k", 1)
	if last.Delay != 11*time.Second {
		e.Fatalf("reserve 1 with 20 used of 10: due in %v, want 11 s", last.Delay)
	}
	e.must(nil, e.cancel(last.Reservation))
	e.at(16 * time.Second)
	e.left("a", "k", 6)
	e.reserve("a", "k", 20)
}

// A refund lowers the used tokens and so the tokens that a record can give back.
func cancelRefundCharge(e *env) {
	e.deep("w", 10)
	e.allowed("w", "k", 5, 5)
	id := e.takeCancelable("w", "k", 5, time.Minute)
	e.do(store.VerbRefund, "w", "k", 8)
	e.do(store.VerbCharge, "w", "k", 8)
	e.must(nil, e.cancel(id))
	e.left("w", "k", 2)
}

// A refusal after a due time changes no lows and no records: if the clock then steps back
// to before it, a cancellation gives back as if there had been no refusal.
func cancelAfterRefusal(e *env) {
	e.deep("w", 10)
	e.allowed("w", "k", 10, 0)
	a := e.reserve("w", "k", 10)
	e.reserve("w", "k", 5)
	e.at(12 * time.Second)
	e.refused("w", "k", 5, 8*time.Second)
	e.at(9 * time.Second)
	e.must(nil, e.cancel(a.Reservation))
	e.refused("w", "k", 1, 2*time.Second)
}

// When a row becomes full its list of lows is deleted, and tokens withheld by
// records of that list are not given back.
func cancelRestsOfAnotherList(e *env) {
	e.deep("w", 10)
	e.allowed("w", "k", 10, 0)
	a, b := e.reserve("w", "k", 10), e.reserve("w", "k", 5)
	e.must(nil, e.cancel(a.Reservation))
	e.do(store.VerbRefund, "w", "k", 20)
	e.sweep()
	e.allowed("w", "k", 10, 0)
	c := e.reserve("w", "k", 5)
	e.must(nil, e.cancel(b.Reservation))
	if d := e.reserve("w", "k", 1); d.Delay != 6*time.Second {
		e.Fatalf("reserve 1 with 15 used of 10: due in %v, want 6 s", d.Delay)
	}
	e.must(nil, e.cancel(c.Reservation))
	e.refused("w", "k", 1, 2*time.Second)
}

// Cancelling a record whose list was deleted changes nothing in the row, nor
// what later records may give back after a change of the limit.
func cancelLeavesAnotherList(e *env) {
	for _, key := range []string{"cancelled", "kept"} {
		l := store.Limit{Name: key, Rate: 1, Period: time.Second, Burst: 10, MaxDebt: 100, OnChange: store.Proportional}
		e.define(l)
		first := e.takeCancelable(key, "k", 2, time.Minute)
		e.advance(20 * time.Second)
		later := e.takeCancelable(key, "k", 5, time.Minute)
		if e.advance(2 * time.Second); key == "cancelled" {
			e.must(nil, e.cancel(first))
			e.left(key, "k", 7)
		}
		l.Burst = 20
		e.define(l)
		e.left(key, "k", 17)
		e.must(nil, e.cancel(later))
		e.left(key, "k", 20) // 3 of the 5 tokens were left when the limit changed
	}
}

// givingBackCase plays random histories of two limits with many reservations
// and cancellations. It compares the store with the model and with the same
// history without the cancelled calls, and checks the bound on granted tokens.
func givingBackCase(e *env) {
	e.seeded(52, func(e *env, rnd *rand.Rand) { // the first history finds all mistakes of TestMutantsAreCaught
		g := &giving{env: e, Rand: rnd, logs: map[rowKey][]*entry{}}
		g.run()
	})
}

type giving struct {
	*env
	*rand.Rand
	limits  []store.Limit
	ids     []store.Reservation
	charges bool
	waits   bool
	changes bool
	logs    map[rowKey][]*entry
	parts   map[store.Reservation][]*entry
}

// entry is the effect of one call on one key.
type entry struct {
	at, due int64
	tokens  int64
	refund  bool
	waits   bool
	gone    bool // cancelled
}

func (g *giving) run() {
	g.charges, g.waits, g.changes = g.IntN(3) == 0, g.IntN(3) > 0, g.IntN(3) == 0
	g.parts = map[store.Reservation][]*entry{}
	for _, name := range []string{"x", "y"} {
		g.limits = append(g.limits, g.anyLimit(name))
		g.define(g.limits[len(g.limits)-1])
	}
	g.define(store.Limit{Name: "late", Rate: 1000, Period: time.Second, Burst: store.NoBurst, MaxDebt: 1 << 30})
	for range g.steps {
		g.step()
	}
	if !g.charges && !g.changes {
		for k := range g.logs {
			g.checkBound(k)
		}
	}
}

func (g *giving) anyLimit(name string) store.Limit {
	l := store.Limit{Name: name, Rate: 1 + g.Int64N(4), Period: pick(g.Rand, time.Second, time.Second, 7*time.Second), Burst: 1 + g.Int64N(12),
		MaxDebt: 1 + g.Int64N(40), OnChange: pick(g.Rand, store.Keep, store.Proportional, store.StartOver)}
	if g.IntN(6) == 0 {
		l.Algorithm, l.Start = store.FixedWindow, pick(g.Rand, "", "0s")
		l.Burst = max(l.Burst, l.Rate)
	}
	return l
}

func (g *giving) step() {
	if g.IntN(3) > 0 {
		g.advance(time.Duration(g.Int64N(3e6)) * time.Microsecond)
	}
	k := rowKey{pick(g.Rand, "x", "x", "x", "y"), pick(g.Rand, "a", "a", "a", "b")}
	n := 1 + g.Int64N(g.m.rule(k.limit).burst+3)
	switch c := g.IntN(100); {
	case c < 22:
		g.log(store.VerbTake, k, n)
	case c < 26:
		g.log(store.VerbTakeUpTo, k, n)
	case c < 44:
		g.reserveAll(k, n, g.waits && g.IntN(2) == 0)
	case c < 50 && g.waits:
		g.log(store.VerbReserve, k, n)
	case c < 56 && g.charges:
		g.log(store.VerbCharge, k, min(n, 10))
	case c < 58 && g.charges:
		g.log(store.VerbRefund, k, n)
	case c < 60:
		g.sweep()
	case c < 62 && g.changes:
		l := g.anyLimit(k.limit)
		g.define(l)
	case c < 63 && g.changes:
		g.do(store.VerbReset, k.limit, k.key, 0)
	case c < 64 && g.IntN(4) == 0:
		g.advance(20 * time.Second)
	case len(g.ids) > 0:
		g.cancelAny()
	}
	g.check(k.limit, k.key, n)
	g.compareWithout(k)
}

// log makes a call for one key and adds its effect to the log.
func (g *giving) log(verb store.Verb, k rowKey, n int64) {
	d := g.do(verb, k.limit, k.key, n)
	g.note(k, d, verb == store.VerbRefund, n)
	g.made(d)
}

func (g *giving) made(d dipwell.Decision) {
	if d.Reservation != (store.Reservation{}) {
		g.ids = append(g.ids, d.Reservation)
	}
}

func (g *giving) note(k rowKey, d dipwell.Decision, refund bool, n int64) {
	en := &entry{at: g.clock.Load(), due: g.clock.Load() + d.Delay.Microseconds(), tokens: d.Granted, refund: refund, waits: d.Delay > 0}
	if refund {
		en.tokens = n
	} else if d.Granted == 0 {
		return
	}
	g.logs[k] = append(g.logs[k], en)
	if d.Reservation != (store.Reservation{}) {
		g.parts[d.Reservation] = append(g.parts[d.Reservation], en)
	}
}

// reserveAll takes n of a key in a group, another part of which is due later.
// Unless wait is true it takes at most the tokens that are free.
func (g *giving) reserveAll(k rowKey, n int64, wait bool) {
	if left := g.check(k.limit, k.key, 0).Remaining; !wait && left < n {
		if n = left; n == 0 {
			return
		}
	}
	takes := []dipwell.Take{take(k.limit, k.key, n), take("late", k.key, 1+g.Int64N(20_000))}
	if other := pick(g.Rand, "x", "y"); other != k.limit && wait {
		takes = append(takes, take(other, k.key, 1+g.Int64N(3)))
	}
	d := g.doAll(store.VerbReserve, takes...)
	for i, t := range takes {
		if x := d.Limits[i]; t.Limit != "late" && d.Allowed {
			x.Reservation = d.Reservation
			g.note(rowKey{t.Limit, t.Key}, x, false, t.Cost)
		}
	}
	g.made(d)
}

func (g *giving) cancelAny() {
	i := len(g.ids) - 1 - g.IntN(min(len(g.ids), 12))
	id := g.ids[i]
	g.ids = slices.Delete(g.ids, i, i+1)
	if g.cancel(id) == nil {
		for _, en := range g.parts[id] {
			en.gone = true
		}
	}
}

// compareWithout computes the used tokens of a key's history without the
// cancelled calls. The model must have at least as many, and exactly as many if
// no call had a delay.
func (g *giving) compareWithout(k rowKey) {
	g.Helper()
	if g.changes {
		return
	}
	used, at, exact := rat(0), int64(0), true
	r, now := g.m.rule(k.limit), g.clock.Load()
	for _, en := range g.logs[k] {
		exact = exact && !en.waits && !en.refund
		if en.gone {
			continue
		}
		used, at = r.step(used, at, en.at, k), en.at
		if en.refund {
			used = new(big.Rat).Sub(used, least(used, rat(en.tokens)))
		} else {
			used = new(big.Rat).Add(used, rat(en.tokens))
		}
	}
	used = r.step(used, at, now, k)
	if row := g.m.rows[k]; row != nil && row.list != nil && len(row.list.lows) >= 32 {
		exact = false
	}
	if c := g.m.usedAt(k, now).Cmp(used); c < 0 || c > 0 && exact {
		g.Fatalf("%v at %s: %s used; without the cancelled calls, %s", k, g.since(), g.m.usedAt(k, now).RatString(), used.RatString())
	}
}

// checkBound checks granted(t0,t1) <= max(capacity, largest Reserve) + rate·(t1-t0)
// for any two times at which something was granted. Due times are rounded up to
// a tick, so one more tick may have passed.
func (g *giving) checkBound(k rowKey) {
	g.Helper()
	r := g.m.rule(k.limit)
	if r.windowed {
		return
	}
	var grants []*entry
	most := r.burst
	for _, en := range g.logs[k] {
		if !en.gone {
			grants = append(grants, en)
			most = max(most, en.tokens)
		}
	}
	slices.SortStableFunc(grants, func(a, b *entry) int { return cmp.Compare(a.due, b.due) })
	perTick := r.perTick()
	for i := range grants {
		var sum int64
		for j := i; j < len(grants); j++ {
			sum += grants[j].tokens
			ticks := (grants[j].due-grants[i].due)/r.every + 1
			if bound := new(big.Rat).Mul(rat(ticks), perTick); bound.Add(bound, rat(most)).Cmp(rat(sum)) < 0 {
				g.Fatalf("%v: %d tokens granted from %d to %d", k, sum, grants[i].due, grants[j].due)
			}
		}
	}
}
