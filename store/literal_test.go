package store_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// This file gives back under changed limits as the contract says it, in big integers, and
// compares the package with it. By the sentence "lows, slacks and records are converted by
// keep" a change with proportional would give back more than what is left of a record.

// A litRule is one version of a bucket: a unit comes back every µs, add times.
type litRule struct {
	since          int64
	policy         store.ChangePolicy
	unit, add, cap *big.Int
}

type litLow struct {
	number int
	low    *big.Int
}

type litRecord struct {
	number    int
	units     *big.Int
	slack     *big.Int // nil: it does not wait
	due, ends int64
	rest      bool
}

// A litRow is a row by the sentences of the contract. With byKeep its lows, slacks and
// records are always converted by keep; otherwise by the policy of the change if that
// leaves less, and under proportional the last low is first lowered to what is used.
type litRow struct {
	byKeep  bool
	rules   []litRule
	version int
	used    *big.Int
	ts      int64
	next    int
	lows    []litLow
	records []*litRecord
}

func least(a, b *big.Int) *big.Int {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

func less(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }

// part returns n·num/den, rounded down or up.
func part(n, num, den *big.Int, up bool) *big.Int {
	q, m := new(big.Int).QuoRem(new(big.Int).Mul(n, num), den, new(big.Int))
	if up && m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func (r *litRow) step(to int64) {
	if to > r.ts {
		back := new(big.Int).Mul(big.NewInt(to-r.ts), r.rules[r.version].add)
		r.used, r.ts = less(r.used, least(r.used, back)), to
	}
}

func (r *litRow) drop() { r.lows, r.records = nil, nil }

// at steps the row to now, through all versions, and ends the reservations that are due.
func (r *litRow) at(now int64) {
	for r.version < len(r.rules)-1 {
		r.change()
	}
	r.step(now)
	due := slices.Clone(r.records)
	slices.SortStableFunc(due, func(a, b *litRecord) int { return int(a.due - b.due) })
	for _, x := range due {
		if x.slack != nil && x.due <= now {
			r.limit(x.number-1, x.slack)
			x.slack = nil
		}
	}
	if r.retire(now); r.used.Sign() == 0 {
		r.drop()
	}
}

func (r *litRow) change() {
	from, to := r.rules[r.version], r.rules[r.version+1]
	r.step(to.since)
	r.version++
	keep := func(n *big.Int, up bool) *big.Int { return part(n, to.unit, from.unit, up) }
	same := func(n *big.Int, up bool) *big.Int { return part(n, to.cap, from.cap, up) }
	back := func(n *big.Int) *big.Int { return keep(n, false) }
	switch to.policy {
	case store.StartOver:
		r.used = new(big.Int)
		r.drop()
		return
	case store.Proportional:
		if !r.byKeep {
			r.limit(r.next, r.used)
			back = func(n *big.Int) *big.Int { return least(keep(n, false), same(n, false)) }
		}
		r.used = same(r.used, true)
	default:
		r.used = keep(r.used, true)
	}
	for i := range r.lows {
		r.lows[i].low = back(r.lows[i].low)
	}
	r.rise()
	for _, x := range r.records {
		if x.units = back(x.units); x.slack != nil {
			x.slack = back(x.slack)
		}
	}
}

// limit lowers the low that covers a record.
func (r *litRow) limit(number int, to *big.Int) {
	for i := len(r.lows) - 1; i >= 0; i-- {
		if r.lows[i].number <= number {
			r.lows[i].low = least(r.lows[i].low, to)
			break
		}
	}
	r.rise()
}

func (r *litRow) rise() {
	var out []litLow
	for _, e := range r.lows {
		for len(out) > 0 && out[len(out)-1].low.Cmp(e.low) >= 0 {
			e.number = out[len(out)-1].number
			out = out[:len(out)-1]
		}
		out = append(out, e)
	}
	r.lows = out
}

func (r *litRow) retire(now int64) {
	live, last := false, 0
	for _, x := range r.records {
		if live = live || !x.rest && (x.ends > now || x.slack != nil); x.slack != nil {
			last = max(last, x.number)
		}
	}
	if !live {
		r.drop()
	}
	r.records = slices.DeleteFunc(r.records, func(x *litRecord) bool {
		return x.rest && (x.units.Sign() == 0 || x.number >= last) || !x.rest && x.ends <= now && x.slack == nil
	})
}

// take takes units, with a record if it has to wait or ends later.
func (r *litRow) take(now int64, n int64, delay, ends int64) {
	r.at(now)
	rule := r.rules[r.version]
	r.limit(r.next, r.used)
	units := new(big.Int).Mul(big.NewInt(n), rule.unit)
	if r.used = new(big.Int).Add(r.used, units); ends <= now {
		return
	}
	r.next++
	x := &litRecord{number: r.next, units: units, due: now + delay, ends: ends}
	if x.slack = nil; delay > 0 {
		x.slack = less(rule.cap, least(rule.cap, units))
	}
	r.records = append(r.records, x)
	r.lows = append(r.lows, litLow{r.next, r.used})
}

// give gives back what a record still has.
func (r *litRow) give(x *litRecord) {
	b := x.units
	for _, w := range r.records {
		if w.number > x.number && w.slack != nil {
			b = least(b, w.slack)
		}
	}
	x.units = less(x.units, b)
	from := -1
	for i, e := range r.lows {
		if e.number <= x.number {
			from = i
		}
	}
	for i := from; i < len(r.lows); i++ {
		b = least(b, r.lows[i].low)
		r.lows[i].low = less(r.lows[i].low, b)
	}
	r.rise()
	for _, w := range r.records {
		if w.number > x.number && w.slack != nil {
			w.slack = less(w.slack, b)
		}
	}
	r.used = less(r.used, least(b, r.used))
}

func (r *litRow) cancel(now int64, number int) {
	r.at(now)
	at := slices.IndexFunc(r.records, func(x *litRecord) bool { return x.number == number })
	if at < 0 {
		return
	}
	x := r.records[at]
	r.limit(r.next, r.used)
	x.rest, x.slack = true, nil
	r.give(x)
	for i := len(r.records) - 1; i >= 0; i-- {
		if w := r.records[i]; w.rest && w != x {
			r.give(w)
		}
	}
	if r.retire(now); r.used.Sign() == 0 {
		r.drop()
	}
}

// left returns the units in use at now. It changes nothing.
func (r litRow) left(now int64) *big.Int {
	r.drop()
	r.at(now)
	return r.used
}

// litHistory plays a random history on the package, on both readings, and on a row without
// the calls that were given back. It reports whether the reading by keep differs from the
// package, and whether it has less in use than the row without those calls.
func litHistory(t *testing.T, seed uint64) (differs, better bool) {
	rnd := rand.New(rand.NewPCG(seed, 11))
	table, reg, now := newMapTable(), new(store.Registry), int64(1e15)
	mended, byKeep := &litRow{used: new(big.Int)}, &litRow{used: new(big.Int), byKeep: true}
	var log []string
	var rules []litRule
	var d *store.Definition
	change := func(policy store.ChangePolicy) {
		l := store.Limit{Name: "l", Rate: 1 + rnd.Int64N(6), Period: time.Second, Burst: 2 + rnd.Int64N(30), MaxDebt: 60, OnChange: policy}
		var err error
		if d, err = reg.Define(now, l, store.OwnerCode); err != nil || d.Rule.Every != 1 {
			t.Fatal(err)
		}
		log = append(log, fmt.Sprintf("%d: %s", now-1e15, l))
		if len(rules) < int(d.Number) {
			g := new(big.Int).GCD(nil, nil, big.NewInt(l.Rate), big.NewInt(1e6))
			unit := new(big.Int).Quo(big.NewInt(1e6), g)
			rules = append(rules, litRule{now, policy, unit, new(big.Int).Quo(big.NewInt(l.Rate), g), new(big.Int).Mul(unit, big.NewInt(l.Burst))})
			mended.rules, byKeep.rules = rules, rules
		}
	}
	type taking struct {
		at, n  int64
		rules  int // versions at that time
		number int
		g      store.Group
		gone   bool
	}
	var all []*taking
	take := func(n int64, c *store.Group) {
		if err := c.DecideIn(table, reg, now); err != nil {
			t.Fatal(err)
		}
		log = append(log, fmt.Sprintf("%d: %s %d of %s: %v, delay %d", now-1e15, c.Ops[0].Verb, n, c.Ops[0].Key, c.Allowed, c.Ops[0].Delay))
		if !c.Allowed {
			return
		}
		ends := now + c.Ops[0].Delay
		if c.Hold != nil {
			ends = store.MaxInt
		}
		mended.take(now, n, c.Ops[0].Delay, ends)
		byKeep.take(now, n, c.Ops[0].Delay, ends)
		x := &taking{at: now, n: n, rules: len(rules), g: *c}
		if all = append(all, x); ends > now {
			x.number = mended.next
		}
	}
	giveBack := func(x *taking) {
		g := store.Group{Cancel: true, ID: x.g.ID}
		if x.g.Hold != nil {
			g = store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: x.g.Hold.ID, Costs: []int64{0}}}
		} else if x.at+x.g.Ops[0].Delay <= now {
			return // due
		}
		if err := g.DecideIn(table, reg, now); err != nil {
			t.Fatal(err)
		}
		log = append(log, fmt.Sprintf("%d: give back %d", now-1e15, x.n))
		mended.cancel(now, x.number)
		byKeep.cancel(now, x.number)
		x.gone = true
	}
	without := func() *big.Int {
		r := litRow{used: new(big.Int)}
		for _, x := range all {
			if r.rules = rules[:x.rules]; !x.gone {
				r.take(x.at, x.n, 0, 0)
			}
		}
		r.rules = rules
		return r.left(now)
	}
	change(store.Keep)
	for i := range 4 + rnd.IntN(20) {
		now += rnd.Int64N(2) * rnd.Int64N(3e6)
		n := 1 + rnd.Int64N(9)
		c := store.Group{Ops: []store.Op{{Def: d, Key: "k", Verb: store.VerbTake, Cost: n}}}
		switch k := rnd.IntN(8); {
		case k == 0:
			if rules[len(rules)-1].since < now {
				change(store.ChangePolicy(rnd.IntN(3)))
			}
		case k == 1:
			take(n, &c)
		case k <= 3:
			c.Hold = &store.HoldCall{ID: fmt.Sprint(i), TTL: 3600e6}
			take(n, &c)
		case k == 4:
			c.Ops[0].Verb, c.ID = store.VerbReserve, store.Reservation{1, byte(i)}
			take(n, &c)
		default:
			live := slices.DeleteFunc(slices.Clone(all), func(x *taking) bool { return x.gone || x.number == 0 })
			if len(live) > 0 {
				giveBack(live[rnd.IntN(len(live))])
			}
		}
		look := store.Op{Def: d, Key: "k", Verb: store.VerbCheck}
		row, _ := table.Row("l", "k")
		if _, _, err := look.Step(now, row, true); err != nil {
			t.Fatal(err)
		}
		used, literal, never := big.NewInt(look.Used), byKeep.left(now), without()
		if used.Cmp(mended.left(now)) != 0 || used.Cmp(never) < 0 || used.Cmp(literal) < 0 {
			t.Fatalf("seed %d: %s\n%v in use; want %v, by keep %v; without what was given back %v", seed, log, used, mended.left(now), literal, never)
		}
		differs, better = differs || used.Cmp(literal) != 0, better || literal.Cmp(never) < 0
	}
	return differs, better
}

// TestGiveBackLiterally checks that the package gives back what the contract says, but for
// a change by proportional, after which a record gives back no more than what the change
// left of it. By keep it would give back what others took: some histories would then have
// less in use than without the calls that were given back.
func TestGiveBackLiterally(t *testing.T) {
	differ, better := 0, 0
	for seed := range uint64(2000) {
		d, b := litHistory(t, seed)
		if d {
			differ++
		}
		if b {
			better++
		}
	}
	if t.Logf("%d histories differ by keep, %d mint", differ, better); better < 10 {
		t.Error("by keep nothing would be given back too much")
	}
}
