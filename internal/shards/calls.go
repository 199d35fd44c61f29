package shards

import (
	"slices"
	"strings"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// Call decides an op, as the function of dipwell that is named like its verb does. It
// returns what the clock showed when it was decided.
func (x *Tx) Call(op *store.Op) (now int64, err error) {
	x.t.running[x] = x.t.Now()
	defer delete(x.t.running, x)
	if op.Verb == store.VerbTake && op.Floor == 0 {
		if c, err := x.take(Key{op.Def.Name, op.Key}, op.Cost); err != nil || c != nil {
			return answer(op, c), err
		}
	}
	return x.decide(op)
}

// answer makes the answer to an op of that of take_shards.
func answer(op *store.Op, c *Take) (now int64) {
	if c == nil {
		return 0
	}
	op.Def, op.Allowed, op.Used, op.TS = c.d, c.Outcome == Taken, c.Used, c.TS
	op.Remaining, op.Granted = max(c.rule.Cap-c.Used, 0)/c.rule.Unit, op.Cost
	if !op.Allowed {
		op.Granted = 0
		op.Retry = algebra.Wait(c.Used+c.units-c.rule.Cap, c.TS, c.N, c.rule.Origin, c.rule.Every, c.rule.Add)
	}
	return c.N
}

// take is dipwell.take of a limit with shards: it begins with what the hint says. The
// answer is nil if decide must decide.
func (x *Tx) take(k Key, cost int64) (*Take, error) {
	vain := false
	if n := int64(len(x.Hint)) - int64(len("scattered")); n > 0 {
		c, err := x.takeHome(k, cost, n)
		if c != nil || err != nil {
			return c, err
		}
		vain = slices.ContainsFunc(x.advisory, func(l lockNumber) bool { return l.k == k })
	}
	if x.Hint != "" {
		if c, err := x.takeSharded(k, cost, vain); c != nil || err != nil {
			return c, err
		}
		vain = true
	}
	hint := x.Hint
	x.Hint = "" // as for dipwell_internal.ask
	c, err := x.takeSharded(k, cost, vain || x.wrote)
	if c == nil {
		x.Hint = hint
	}
	return c, err
}

// takeSharded is dipwell_internal.take_sharded.
func (x *Tx) takeSharded(k Key, cost int64, vain bool) (*Take, error) {
	c := &Take{Key: k, Cost: cost, Scattered: strings.HasPrefix(x.Hint, "scattered"), Vain: vain}
	if err := x.TakeShards(c); err != nil || c.Outcome == Decide {
		return nil, err
	}
	x.Hint = "shards"
	if c.Spread {
		x.Hint = "scattered" + strings.Repeat(".", c.Home)
	}
	return c, nil
}

// takeHome is what dipwell.take does first if the hint ends in n dots: it takes from the
// session's home while half of its tokens stay.
func (x *Tx) takeHome(k Key, cost, n int64) (*Take, error) {
	c := &Take{Key: k, Cost: cost, x: x, N: x.t.Now()}
	i := int(x.PID % n)
	if !x.tryAdvisory(k, i) {
		var err error
		if i, err = x.lockShard(k, cost, i, int(n)); err != nil {
			return nil, err
		}
		c.N = x.t.Now()
	}
	x.t.Pause(x)
	c.d = x.t.Limits.Lookup(k.Limit)
	var scratch store.Rule
	c.rule = core.RuleFor(c.d, k.Key, &scratch)
	half := c.rule.Burst / n / 2
	if i < 0 || c.d.Shards != n || c.rule.Every != 1 || c.rule.Add > 256 || cost > half {
		return nil, nil
	}
	c.units = cost * c.rule.Unit
	_, used := c.at(c.N)
	p := partOf(c.rule, n, i)
	taken, err := x.update(x.t.slot(k, i), c.d, &p, c.units, half*c.rule.Unit, c.N)
	if err != nil || taken == nil {
		return nil, err
	}
	c.Outcome, c.Used, c.TS = Taken, used+c.units, taken.TS
	return c, nil
}

// lockShard is dipwell_internal.lock_shard. It returns -1 if no shard has enough.
func (x *Tx) lockShard(k Key, cost int64, first, n int) (int, error) {
	tries := n - 1
	if x.t.Unlogged {
		tries = 8
	}
	i := first
	for j := 1; j <= tries; j++ {
		if i = (i + 1) % n; x.tryAdvisory(k, i) {
			return i, nil
		}
		if x.t.Unlogged && j%2 == 0 {
			x.t.Sleep(x, 500<<(j/2))
		}
	}
	now := x.t.Now()
	x.t.Pause(x)
	d := x.t.Limits.Lookup(k.Limit)
	r := &d.Rule
	enough := func(s *Row) bool {
		return s.Version == d.Number && s.Used-max(now-s.TS, 0)*(r.Add/int64(n)) <= (r.Burst/int64(n)/2-cost)*r.Unit
	}
	if d.Shards != int64(n) || r.Every != 1 || cost > r.Burst || !slices.ContainsFunc(x.t.shards(x, k), enough) {
		return -1, nil
	}
	return first, x.lockAdvisory(k, first)
}

// decide is dipwell_internal.decide for one key: it first only reads, and if something
// must be written, it locks the row, gathers its shards, and decides again.
func (x *Tx) decide(op *store.Op) (now int64, err error) {
	k := Key{op.Def.Name, op.Key}
	s := x.t.slot(k, whole)
	asked := *op
	for locks := false; ; locks = true {
		x.t.Pause(x)
		one, err := x.rowOf(k, s, locks)
		if err != nil {
			return 0, err
		}
		x.t.Pause(x)
		now = x.t.Now()
		g := store.Group{Ops: []store.Op{asked}}
		if err := g.DecideIn(&one, x.t.Limits, now); err != nil {
			return 0, err
		}
		*op = g.Ops[0]
		if !one.written && op.Verb != store.VerbReset {
			if one.fresh {
				x.write(s, nil)
			}
			return now, nil
		}
		if !locks {
			continue
		}
		if one.row == (store.State{}) && op.Verb == store.VerbRefund {
			one.row = store.State{TS: op.TS, Version: op.Def.Number} // SQL keeps it
		}
		if one.row == (store.State{}) {
			x.write(s, nil)
		} else {
			x.write(s, &Row{State: one.row, insert: s.sees(x).insert})
		}
		return now, nil
	}
}

// rowOf reads the row that decide decides on, and with locks locks it and gathers its
// shards, or inserts it.
func (x *Tx) rowOf(k Key, s *slot, locks bool) (one oneRow, err error) {
	for {
		r := s.sees(x)
		if locks {
			if r, err = x.lock(s); err != nil {
				return one, err
			}
		}
		switch {
		case r != nil && r.Spread && locks:
			if err = x.gather(k); err != nil {
				return one, err
			}
			x.t.Pause(x)
			continue
		case r != nil && r.Spread:
			one.row = x.whole(k, r, x.t.Now())
			return one, nil
		case r != nil:
			one.row = r.State
			return one, nil
		case !locks:
			return one, nil
		}
		x.t.Pause(x)
		one.fresh, err = x.insert(s, Row{State: store.State{TS: x.t.Now(), Version: x.t.Limits.Lookup(k.Limit).Number}})
		if one.fresh || err != nil {
			return one, err // DecideIn finds no row
		}
	}
}

// A oneRow is a store.Table with one row.
type oneRow struct {
	store.Table // the other methods are not called
	row         store.State
	written     bool
	fresh       bool // it was inserted for this call
}

func (t *oneRow) Row(_, _ string) (store.State, []store.Record, error) { return t.row, nil, nil }

func (t *oneRow) SetRow(_, _ string, s store.State, _ []store.Record) error {
	t.row, t.written = s, true
	return nil
}

// Sweep is the part of dipwell.sweep that deletes full rows. It waits for nothing. It
// returns the number of keys that it deleted.
func (x *Tx) Sweep() (swept int) {
	now := x.t.Now() - 1_000_000
	for _, began := range x.t.running {
		now = min(now, began)
	}
	for _, k := range x.t.order {
		s := x.t.slot(k, whole)
		if r := s.sees(x); r != nil && !r.Spread && x.isFull(k, r.State, now) && x.tryLock(s) != nil {
			x.write(s, nil)
			swept++
		}
	}
	x.t.Pause(x)
	for i := range x.t.order {
		k := x.t.order[(int(x.t.Random(int64(len(x.t.order))))+i)%len(x.t.order)]
		if x.sweepShards(k, now) {
			swept++
		}
	}
	return swept
}

// sweepShards is dipwell_internal.sweep_shards for one key: it deletes a key whose shards
// are full, unless one of its rows is locked.
func (x *Tx) sweepShards(k Key, now int64) bool {
	list := x.t.shards(x, k)
	s := x.t.slot(k, whole)
	r := s.sees(x)
	if len(list) == 0 || r == nil || !r.Spread || !x.isFull(k, x.whole(k, r, x.t.Now()), now) {
		return false
	}
	x.t.Pause(x)
	if r = x.tryLock(s); r == nil || !r.Spread {
		return false
	}
	x.t.Pause(x)
	list = x.t.shards(x, k)
	for i := range list {
		if x.tryLock(x.t.slot(k, i)) == nil {
			return false
		}
	}
	x.t.Pause(x)
	if x.gather(k) != nil {
		return false
	}
	if x.isFull(k, s.sees(x).State, now) {
		x.write(s, nil)
		return true
	}
	return false
}

// isFull is dipwell_internal.is_full.
func (x *Tx) isFull(k Key, row store.State, now int64) bool {
	one := oneRow{row: row}
	gone, err := store.SweepRow(&one, x.t.Limits, k.Limit, k.Key, now)
	return gone && err == nil && now >= row.TS
}
