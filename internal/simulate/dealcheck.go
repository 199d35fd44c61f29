package simulate

import (
	"slices"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/internal/shards"
	"github.com/dipwell/dipwell/store"
)

// What is in use of the limit "orders" is computed from its rows without the functions of
// packages store and shards. A part of a bucket's token is so small that what comes back
// to each shard is a whole number of parts a µs; those of windows are tokens.

// divisible is divisible by each number of shards.
const divisible = 840

// token returns the parts of a token.
func (d *dealer) token() int64 {
	if d.bound.window {
		return 1
	}
	return d.bound.period * divisible
}

// version returns the index of the version that a row is under.
func (d *dealer) version(row store.State) int { return int(number.Version(row.Version)) - 1 }

// scale returns the parts of a unit of a row.
func (d *dealer) scale(row store.State) int64 {
	return d.token() / d.units[d.version(row)]
}

// origin returns when a window of a key begins.
func (d *dealer) origin(key string) int64 {
	var scratch store.Rule
	return core.RuleFor(d.reg.Lookup("orders"), key, &scratch).Origin
}

// comeBack returns the parts that come back from one time to another to shard i of n, or
// to a row of its own if n is 1. v is the version that the row is under at first; shards
// stay under it until they are gathered.
func (d *dealer) comeBack(key string, v, n, i int, from, to int64) (parts int64) {
	for ; from < to; v++ {
		until := to
		if n == 1 && v+1 < len(d.versions) {
			until = max(from, min(to, d.versions[v+1].since))
		}
		if rate := d.versions[v].rate; d.bound.window {
			share, origin := rate/int64(n), d.origin(key)
			if int64(i) < rate%int64(n) {
				share++
			}
			parts += share * (floor(until-origin, d.bound.period) - floor(from-origin, d.bound.period))
		} else {
			parts += rate * (divisible / int64(n)) * (until - from)
		}
		from = until
	}
	return parts
}

// parts returns the parts in use in row i of a key at a time that is not before the row's.
func (d *dealer) parts(key string, rows []store.State, i int, t int64) int64 {
	row := rows[i]
	return max(0, row.Used*d.scale(row)-d.comeBack(key, d.version(row), len(rows), i, row.TS, max(t, row.TS)))
}

// used returns the parts in use of a key at a time, if its rows are seen at now: the sum of
// them at the latest of their times, and from then on as in one row.
func (d *dealer) used(key string, rows []store.State, now, t int64) int64 {
	if len(rows) == 0 {
		return 0
	}
	var last, sum int64
	for _, r := range rows {
		last = max(last, r.TS)
	}
	for i, r := range rows {
		sum += d.parts(key, rows, i, max(r.TS, min(last, now)))
	}
	return max(0, sum-d.comeBack(key, d.version(rows[0]), 1, 0, last, max(t, last)))
}

// sum returns the parts in use of a key that stays spread.
func (d *dealer) sum(key string, rows []store.State, t int64) (sum int64) {
	for i := range rows {
		sum += d.parts(key, rows, i, t)
	}
	return sum
}

// look records what the transaction of a call sees.
func (a *asking) look() { a.seen = append(a.seen, a.d.table.Rows(a.d.tx, a.k)) }

// clock records what the clock shows.
func (a *asking) clock() {
	now := a.d.n.time()
	a.least, a.most = min(a.least, now), max(a.most, now)
}

// checkRefused checks that a call was refused because all rows of the key together had not
// enough, as they were at some instant during the call, and until when.
//
// If a row is of a later time than the clock showed, because that stepped back, the call
// may be refused for longer.
func (x *deal) checkRefused(a *asking, op *store.Op, now int64) {
	d, need := x.dealer, op.Cost+op.Floor
	if op.Never {
		if need <= op.Def.Burst {
			d.w.fail("refusal", "transaction %d: %s %d of %s %q is never allowed, and the burst is %d", x.id, op.Verb, op.Cost, op.Def.Name, op.Key, op.Def.Burst)
		}
		return
	}
	if op.Verb == store.VerbTakeUpTo {
		need = 1
	}
	room := (op.Def.Burst - need) * d.token()
	short, exact := false, int(op.Def.Number) != len(d.versions) // decided by a version that ended meanwhile
	for _, rows := range a.seen {
		if slices.ContainsFunc(rows, func(r store.State) bool { return r.Version != op.Def.Number }) {
			return // it was converted
		}
		if d.used(op.Key, rows, a.least, now) > room {
			short = true
			exact = exact || later(rows, a.least) || d.used(op.Key, rows, now, now+op.Retry) <= room && d.used(op.Key, rows, now, now+op.Retry-1) > room
		}
	}
	switch {
	case !short:
		d.w.fail("refusal", "transaction %d: %s %d of %s %q is refused, but all shards together always had enough", x.id, op.Verb, op.Cost, op.Def.Name, op.Key)
	case !exact:
		d.w.fail("retry", "transaction %d: %s %d of %s %q is refused for %d µs, which is not when there will be enough", x.id, op.Verb, op.Cost, op.Def.Name, op.Key, op.Retry)
	}
}

// later reports whether a row is of a later time.
func later(rows []store.State, now int64) bool {
	return slices.ContainsFunc(rows, func(r store.State) bool { return r.TS > now })
}

// checkChange checks that a call changed the rows of its key by what it took, to the unit,
// also if it spread or gathered them. A row that is converted may be rounded up by a unit.
func (x *deal) checkChange(a *asking, before, after []store.State, op *store.Op, now int64) {
	d := x.dealer
	if int(op.Def.Number) != len(d.versions) {
		return // decided by a version that ended meanwhile
	}
	k := a.k
	var was, is int64
	t := max(now, op.TS)
	if op.Verb == store.VerbTake && len(before) > 1 && len(before) == len(after) && before[0].Version == after[0].Version {
		was, is = d.sum(k.Key, before, t), d.sum(k.Key, after, t)
	} else {
		was, is = d.used(k.Key, before, now, t), d.used(k.Key, after, now, t)
	}
	want := was
	switch op.Verb {
	case store.VerbTake, store.VerbTakeUpTo:
		want += op.Granted * d.token()
	case store.VerbCharge:
		want += op.Cost * d.token()
	case store.VerbRefund:
		want = max(0, want-op.Cost*d.token())
	case store.VerbReset:
		want = 0
	}
	rounding := int64(0)
	if later(before, a.least) { // the clock stepped back, and was read more than once
		early, late := d.used(k.Key, before, a.least, t), d.used(k.Key, before, a.most, t)
		want, rounding = want+late-d.used(k.Key, before, now, t), early-late
	}
	if len(before) > 0 && len(after) > 0 && before[0].Version != after[0].Version {
		if d.n.backs > 0 {
			return // the version may begin after the clock
		}
		rounding += d.token() / 1000
	}
	if is < want || is > want+rounding {
		d.w.fail("conservation", "transaction %d: %s %d of %s %q leaves %d parts in use; there were %d at %d, of a token of %d (rows %v before, %v after)", x.id, op.Verb, op.Cost, k.Limit, k.Key, is, was, t, d.token(), before, after)
	}
}

// checkAll checks, if next to nothing comes back, that what is committed of a key is what
// the transactions took that were committed.
func (d *dealer) checkAll(k shards.Key) {
	if !d.slow {
		return
	}
	var used int64
	rows := d.table.Rows(nil, k)
	for _, r := range rows {
		used += r.Used * d.scale(r)
	}
	level, rounding := d.tallies[k].level, d.token()/1000
	if used > level*d.token()+rounding || used < level*d.token()-divisible*(d.w.now+d.n.back)-rounding {
		d.w.fail("conservation", "of %s %q %d parts are in use, of a token of %d; transactions that committed took %d tokens (rows %v)", k.Limit, k.Key, used, d.token(), level, rows)
	}
}

// deadlock checks that of transactions which wait for each other, one has called the same
// key twice.
func (d *dealer) deadlock(cycle []*shards.Tx) {
	var ids []int64
	for _, tx := range cycle {
		x := d.byTx[tx]
		ids = append(ids, x.id)
		for _, n := range x.called {
			if n > 1 {
				return
			}
		}
	}
	d.w.fail("deadlock", "transactions %v wait for each other, and none of them has called a key twice", ids)
}

// check checks the promise at the end of a history.
func (d *dealer) check() {
	for _, k := range d.order {
		b := d.tallies[k]
		switch grants := inOrder(b.grants); {
		case b.apart:
		case !d.bound.window:
			d.n.compare(at{k.Limit, k.Key}, &d.bound, &book{}, grants)
		default:
			for i := range d.n.backs + 1 {
				list := slices.DeleteFunc(slices.Clone(grants), func(g *grant) bool { return g.backs != i })
				for j, g := range list {
					c := *g
					c.at -= d.origin(k.Key) % d.bound.period
					list[j] = &c
				}
				d.n.compare(at{k.Limit, k.Key}, &d.bound, &book{}, list)
			}
		}
	}
}
