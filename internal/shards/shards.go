package shards

import (
	"cmp"
	"slices"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/door"
	"github.com/dipwell/dipwell/store"
)

var core = store.Core(door.Key{})

// part returns what one of n shards has of a whole: if n does not divide it, the first
// shards have one more.
func part(whole, n int64, shard int) int64 {
	if int64(shard) < whole%n {
		return whole/n + 1
	}
	return whole / n
}

// partOf returns the rule that one of n shards follows.
func partOf(r *store.Rule, n int64, shard int) store.Rule {
	p := *r
	p.Add, p.Burst = part(r.Add, n, shard), part(r.Burst, n, shard)
	p.Cap = p.Burst * r.Unit
	p.Enough = (r.MaxUsed + p.Add - 1) / p.Add
	return p
}

// whole is dipwell_internal.whole: the sum of the shards of a key.
func (x *Tx) whole(k Key, row *Row, now int64) (w store.State) {
	list := x.t.shards(x, k)
	for _, s := range list {
		w.TS = max(w.TS, s.TS)
	}
	var scratch store.Rule
	r := core.RuleFor(x.t.version(k.Limit, row.Version), k.Key, &scratch)
	for i, s := range list {
		p := partOf(r, int64(len(list)), i)
		// What a shard had until w.TS must not come back to it if it is taken from later,
		// at a time before w.TS, because the clock stepped back.
		w.Used += algebra.Used(&p, s.State, max(s.TS, min(w.TS, now)))
	}
	w.Version = row.Version
	return w
}

// gather is dipwell_internal.gather: it makes one row again of the shards of a key, whose
// row of buckets is locked.
func (x *Tx) gather(k Key) error {
	for i := range x.t.shards(x, k) {
		if _, err := x.lock(x.t.slot(k, i)); err != nil {
			return err
		}
	}
	x.t.Pause(x)
	s := x.t.slot(k, whole)
	x.write(s, &Row{State: x.whole(k, s.sees(x), x.t.Now()), insert: s.sees(x).insert})
	for i := range x.t.shards(x, k) {
		x.write(x.t.slot(k, i), nil)
	}
	return nil
}

// scatter is dipwell_internal.scatter: it spreads what is used at t over the shards of a
// key, whose row of buckets is locked.
func (x *Tx) scatter(d *store.Definition, k Key, held, t int64) error {
	n := d.Shards
	for i := range n {
		row := Row{State: store.State{Used: part(held, n, int(i)), TS: t, Version: d.Number}}
		if _, err := x.insert(x.t.slot(k, int(i)), row); err != nil {
			return err
		}
	}
	s := x.t.slot(k, whole)
	x.write(s, &Row{State: store.State{Used: d.Rule.MaxUsed, TS: t, Version: d.Number}, Spread: true, insert: s.sees(x).insert})
	return nil
}

// Scatter spreads a key whose row is not locked, as a test does that wants it spread. It
// reports whether it did.
func (x *Tx) Scatter(k Key) (bool, error) {
	d := x.t.Limits.Lookup(k.Limit)
	s := x.t.slot(k, whole)
	r := x.tryLock(s)
	if r == nil || r.Spread || r.Version != d.Number || d.Shards < 2 || d.Rule.Cap-r.Used < d.Shards*d.Rule.Unit {
		return false, nil
	}
	return true, x.scatter(d, k, r.Used, r.TS)
}

// Outcomes of a take, as those of dipwell_internal.take_shards.
const (
	Decide  = 0 // the function decide must decide
	Taken   = 1
	Refused = 2
)

// A Take is a call of dipwell_internal.take_shards, and its answer.
type Take struct {
	Key
	Cost      int64
	Scattered bool // try the rows of shards first
	Vain      bool // it may have the lock of a shard without room, or have locked a row

	Outcome  int
	Used, TS int64 // of the whole key
	N        int64 // what the clock showed
	Spread   bool  // the key has rows of shards
	Home     int   // the number of shards, if the home has three quarters of its tokens

	x     *Tx
	d     *store.Definition
	rule  *store.Rule
	units int64
	vain  bool
	round int
}

// A seen is a shard that a statement has seen: what it uses, and by how much the call is
// more than it has room for.
type seen struct{ used, over int64 }

// at is dipwell_internal.shards_at.
func (c *Take) at(now int64) (list []seen, used int64) {
	for i, s := range c.x.t.shards(c.x, c.Key) {
		if s.Version != c.d.Number {
			continue
		}
		p := partOf(c.rule, c.d.Shards, i)
		u := algebra.Used(&p, s.State, max(now, s.TS))
		list = append(list, seen{u, u + c.units - p.Cap})
		used += u
	}
	return list, used
}

// TakeShards is dipwell_internal.take_shards.
func (x *Tx) TakeShards(c *Take) error {
	var scratch store.Rule
	c.x, c.vain, c.Outcome = x, c.Vain, Decide
	for c.round = 1; c.round <= 16; c.round++ {
		c.N = x.t.Now()
		x.t.Pause(x)
		c.d = x.t.Limits.Lookup(c.Limit)
		if c.d.Shards < 2 || c.Cost < 1 || c.Cost > c.d.Rule.Burst {
			return nil
		}
		c.rule = core.RuleFor(c.d, c.Key.Key, &scratch)
		c.units = c.Cost * c.rule.Unit
		var list []seen
		var used int64
		if c.Scattered {
			list, used = c.at(c.N)
		}
		var done bool
		var err error
		if len(list) > 0 && slices.MinFunc(list, func(a, b seen) int { return cmp.Compare(a.over, b.over) }).over <= 0 {
			done, err = c.fromShard(list, used)
		} else {
			done, err = c.fromWhole()
		}
		if done || err != nil {
			return err
		}
	}
	return nil
}

// fromShard takes from the better of two shards, or from the best one that is not locked.
// If all are locked, it waits for one. done is false if the call must be tried again.
func (c *Take) fromShard(list []seen, used int64) (done bool, err error) {
	x, n := c.x, int64(len(list))
	home, other := int(x.PID%n), int(c.N%n)
	i := home
	if list[other].over < list[home].over {
		i = other
	}
	waited := false
	if list[i].over > 0 || !x.tryAdvisory(c.Key, i) {
		if i = home + other - i; list[i].over > 0 || !x.tryAdvisory(c.Key, i) {
			if i, waited, err = c.another(list, i); err != nil || waited && c.vain {
				return false, err
			}
		}
	}
	x.t.Pause(x)
	p := partOf(c.rule, n, i)
	taken, err := x.update(x.t.slot(c.Key, i), c.d, &p, c.units, p.Cap, c.N)
	if err != nil || taken == nil {
		c.vain = true
		return false, err
	}
	c.Used, c.TS = used+c.units, taken.TS
	if waited { // others have taken meanwhile
		x.t.Pause(x)
		_, c.Used = c.at(c.N)
	}
	c.Outcome, c.Spread = Taken, true
	if c.rule.Every == 1 && c.rule.Add <= 256 && list[home].over <= -(c.rule.Burst/n*c.rule.Unit*3/4) {
		c.Home = int(n)
	}
	return true, nil
}

// another gets the advisory lock of any shard with room. If all are taken, it waits for
// one, unless the call may have such a lock already: then it sleeps.
func (c *Take) another(list []seen, i int) (shard int, waited bool, err error) {
	x := c.x
	best := make([]int, 0, len(list))
	for j := range list {
		if list[j].over <= 0 {
			best = append(best, j)
		}
	}
	slices.SortStableFunc(best, func(a, b int) int { return cmp.Compare(list[a].over, list[b].over) })
	for i, j := range best {
		if i+1 < len(best) && list[j].over == list[best[i+1]].over && x.t.Tied != nil {
			x.t.Tied()
		}
		if x.tryAdvisory(c.Key, j) {
			return j, false, nil
		}
	}
	if c.vain {
		x.t.Sleep(x, 1000<<min(c.round-1, 6))
		return i, true, nil
	}
	if list[i].over > 0 {
		i = best[0]
	}
	err = x.lockAdvisory(c.Key, i)
	c.N = x.t.Now()
	return i, true, err
}

// update takes units from one row of shards, if it then uses at most bound. It returns nil
// if it does not fit, or if another transaction has changed the row so that it does not.
func (x *Tx) update(s *slot, d *store.Definition, p *store.Rule, units, bound, now int64) (*Row, error) {
	after := func(r *Row) *Row {
		if r == nil || r.Version != d.Number {
			return nil
		}
		t := max(now, r.TS)
		used := algebra.Used(p, r.State, t) + units
		if used > bound {
			return nil
		}
		return &Row{State: store.State{Used: used, TS: t, Version: r.Version}, insert: r.insert}
	}
	if after(s.sees(x)) == nil {
		return nil, nil
	}
	r, err := x.lock(s)
	if err != nil || r == nil {
		return nil, err
	}
	to := after(r)
	if to != nil {
		x.write(s, to)
	}
	return to, nil
}

// fromWhole decides on the row of buckets, or on all shards together. done is false if the
// call must be tried again.
func (c *Take) fromWhole() (done bool, err error) {
	x := c.x
	x.t.Pause(x)
	s := x.t.slot(c.Key, whole)
	row := s.sees(x)
	var read store.State
	if row != nil {
		if read = row.State; row.Spread {
			read = x.whole(c.Key, row, x.t.Now())
		}
	}
	c.N = x.t.Now()
	if row == nil {
		ok, err := x.insert(s, Row{State: store.State{Used: c.units, TS: c.N, Version: c.d.Number}})
		if ok {
			c.Outcome, c.Used, c.TS = Taken, c.units, c.N
		}
		return ok, err
	}
	if read.Version != c.d.Number {
		return true, nil
	}
	c.Spread, c.TS = row.Spread, max(c.N, read.TS)
	c.Used = algebra.Used(c.rule, read, c.TS)
	if c.Used+c.units > c.rule.Cap {
		c.Outcome = Refused
		return true, nil
	}
	if c.Spread && c.Scattered {
		return true, nil // only all of them together have room
	}
	if c.Scattered = c.Spread; c.Scattered {
		return false, nil
	}
	return c.takeRow(s)
}

// takeRow takes from the row of buckets. If another transaction had it, the key is spread.
func (c *Take) takeRow(s *slot) (done bool, err error) {
	x, had := c.x, s.owner == c.x
	x.t.Pause(x)
	row := x.tryLock(s)
	contended := row == nil
	if contended {
		x.t.Pause(x)
		if row, err = x.lock(s); err != nil {
			return false, err
		}
	}
	c.N = x.t.Now()
	if row != nil && row.Version == c.d.Number && !row.Spread {
		t := max(c.N, row.TS)
		held, n := algebra.Used(c.rule, row.State, t)+c.units, c.d.Shards
		if free := c.rule.Cap - held; free >= 0 {
			c.Outcome, c.Used, c.TS = Taken, held, t
			c.Spread = contended && free >= n*c.units && (free >= 4*n*c.units || free >= c.rule.Cap/2)
			if c.Spread {
				return true, x.scatter(c.d, c.Key, held, t)
			}
			x.write(s, &Row{State: store.State{Used: held, TS: t, Version: row.Version}, insert: row.insert})
			return true, nil
		}
	}
	if !had {
		x.unlock(s)
	}
	return false, nil
}
