package store_test

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// This file gives back under changed limits as the contract says it, in big integers, and
// compares the package with it.

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
	number      int
	units, unit *big.Int // unit: of a token
	slack       *big.Int // nil: it does not wait
	due, ends   int64
	rest        bool
}

// A litRow is a row by the sentences of the contract.
type litRow struct {
	rules   []litRule
	version int
	used    *big.Int
	ts      int64
	next    int
	lows    []litLow
	records []*litRecord
	reset   map[int]bool               // numbers of the records that a change ended
	changed map[int]store.ChangePolicy // how the row was converted to each version; for a row without records, how it has to be
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

// at steps the row to now, through all versions.
func (r *litRow) at(now int64) {
	for r.version < len(r.rules)-1 {
		since := r.rules[r.version+1].since
		r.step(since)
		r.end(since)
		r.change()
	}
	r.step(now)
	r.end(now)
}

// end ends the reservations that are due.
func (r *litRow) end(now int64) {
	due := slices.Clone(r.records)
	slices.SortStableFunc(due, func(a, b *litRecord) int { return int(a.due - b.due) })
	for _, x := range due {
		if x.slack != nil && x.due <= now {
			r.limit(x.number-1, x.slack)
			x.slack = nil
		}
	}
	if r.retire(now); r.used.Sign() == 0 || len(r.lows) > 0 && r.lows[len(r.lows)-1].low.Sign() == 0 {
		r.drop()
	}
}

func (r *litRow) change() {
	from, to := r.rules[r.version], r.rules[r.version+1]
	r.version++
	policy, is := r.changed[r.version]
	if live := len(r.lows) > 0; !is {
		if policy = to.policy; live && policy == store.Proportional {
			policy = store.Keep
		}
		r.changed[r.version] = policy
	}
	switch policy {
	case store.StartOver:
		for _, x := range r.records {
			r.reset[x.number] = len(r.lows) > 0
		}
		r.used = new(big.Int)
		r.drop()
		return
	case store.Proportional:
		r.used = part(r.used, to.cap, from.cap, true)
	default:
		r.used = part(r.used, to.unit, from.unit, true)
	}
	for i := range r.lows {
		r.lows[i].low = part(r.lows[i].low, to.unit, from.unit, false)
	}
	r.rise()
	for _, x := range r.records {
		if x.slack != nil {
			x.slack = part(x.slack, to.unit, from.unit, false)
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
	x := &litRecord{number: r.next, units: units, unit: rule.unit, due: now + delay, ends: ends}
	if x.slack = nil; delay > 0 {
		x.slack = less(rule.cap, least(rule.cap, units))
	}
	r.records = append(r.records, x)
	r.lows = append(r.lows, litLow{r.next, r.used})
}

// give gives back what a record still has.
func (r *litRow) give(x *litRecord) {
	unit := r.rules[r.version].unit
	units := part(x.units, unit, x.unit, false)
	b := units
	for _, w := range r.records {
		if w.number > x.number && w.slack != nil {
			b = least(b, w.slack)
		}
	}
	if b.Sign() > 0 {
		x.units, x.unit = less(units, b), unit
	}
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

// litHistory plays a random history on the package, on a litRow, and on a row without the
// calls that were given back. It reports whether a change found live records.
func litHistory(t *testing.T, seed uint64) (changed bool) {
	rnd := rand.New(rand.NewPCG(seed, 11))
	table, reg, now := newMapTable(), new(store.Registry), int64(1e15)
	literal := &litRow{used: new(big.Int), reset: map[int]bool{}, changed: map[int]store.ChangePolicy{}}
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
			literal.rules = rules
			changed = changed || len(literal.lows) > 0
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
		literal.take(now, n, c.Ops[0].Delay, ends)
		x := &taking{at: now, n: n, rules: len(rules), g: *c}
		if all = append(all, x); ends > now {
			x.number = literal.next
		}
	}
	giveBack := func(x *taking) {
		g := store.Group{Cancel: true, ID: x.g.ID}
		if x.g.Hold != nil {
			g = store.Group{Hold: &store.HoldCall{Verb: store.SettleHold, ID: x.g.Hold.ID, Costs: []int64{0}}}
		} else if x.at+x.g.Ops[0].Delay <= now {
			return // due
		}
		literal.cancel(now, x.number)
		want := error(nil)
		if g.Cancel && literal.reset[x.number] {
			want = store.ErrReservation
		}
		log = append(log, fmt.Sprintf("%d: give back %d", now-1e15, x.n))
		if err := g.DecideIn(table, reg, now); !errors.Is(err, want) {
			t.Fatalf("seed %d: %s\n%v; want %v", seed, log, err, want)
		}
		x.gone = true
	}
	without := func() *big.Int {
		r := litRow{used: new(big.Int), changed: literal.changed}
		for _, x := range all {
			if r.rules = rules[:x.rules]; !x.gone {
				r.take(x.at, x.n, 0, 0)
			}
		}
		r.rules = rules
		r.at(now)
		return r.used
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
		look := store.Group{Ops: []store.Op{{Def: d, Key: "k", Verb: store.VerbCheck}}}
		if err := look.DecideIn(table, reg, now); err != nil {
			t.Fatal(err)
		}
		literal.at(now)
		want := literal.used
		if used, never := big.NewInt(look.Ops[0].Used), without(); used.Cmp(want) != 0 || used.Cmp(never) < 0 {
			t.Fatalf("seed %d: %s\n%v in use; want %v; without what was given back %v", seed, log, used, want, never)
		}
	}
	return changed
}

// TestGiveBackLiterally checks that the package gives back what the contract says.
func TestGiveBackLiterally(t *testing.T) {
	beside := 0
	for seed := range uint64(2000) {
		if litHistory(t, seed) {
			beside++
		}
	}
	if beside < 200 {
		t.Errorf("%d histories change a limit beside live records", beside)
	}
}
