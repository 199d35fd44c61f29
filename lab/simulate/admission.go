package main

import (
	"github.com/dipwell/dipwell/store"
)

// checkAdmission checks an op that the store has just decided against the level of its key
// (the tokens in use): what was allowed must have been free, its floor included, and what was
// refused must not have been. checkAdmission is called before the op is added to the level.
func (n *node) checkAdmission(op *store.Op, g *store.Group, b *book) {
	d, l := op.Def, b.level
	if l.off || d.Mode != store.Enforce && d.Mode != store.Enforced || op.Verb > store.VerbReserve {
		return
	}
	now := n.time()
	l.expire(now)
	t := l.instant(now)
	if n.backs > 0 { // the row may have been converted as of a later time
		t = max(t, op.TS)
	}
	one := l.rates.parts(1)
	most, used := most(op)*one, l.usedAt(t)
	needs := (op.Cost + op.Floor) * one
	more := needs // what the smallest refused amount needs
	switch {
	case op.Verb == store.VerbTakeUpTo && !op.Allowed:
		more = one
	case op.Verb == store.VerbTakeUpTo:
		needs, more = op.Granted*one, op.Granted*one+one
	}
	if op.Allowed && g.Allowed && used+needs > most {
		n.w.fail("admission", "%s %d of %s %q, with a floor of %d: allowed, although %d parts are in use; at most %d may be", op.Verb, op.Cost, d.Name, op.Key, op.Floor, used, most)
	}
	partly := op.Verb == store.VerbTakeUpTo && op.Granted < op.Cost && op.Takes == 0 && len(g.Ops) == 1
	if (!op.Allowed && !op.Bounded || g.Allowed && partly) && !l.atMost && used+l.slack(t)+more <= most {
		n.w.fail("admission", "%s %d of %s %q, with a floor of %d: refused, or too few, although only %d parts are in use; %d may be", op.Verb, op.Cost, d.Name, op.Key, op.Floor, used, most)
	}
}

// most returns how many tokens of a key may be in use after an op. A leased limit
// has fewer than its burst by what comes back in a lease, measured by a fast clock.
func most(op *store.Op) int64 {
	d := op.Def
	burst := d.Burst
	if d.Lease > 0 {
		burst -= (d.Rate*d.Lease.Microseconds()*1002 + d.Period.Microseconds()*1000 - 1) / (d.Period.Microseconds() * 1000)
	}
	if op.Verb == store.VerbReserve {
		burst += d.Rule.Debt / d.Rule.Unit
	}
	return burst
}

// slack returns how many parts more than the level a row may have in use, because it was
// rounded when it was converted, or will be until t.
func (l *level) slack(t int64) int64 {
	if _, u := l.drain(l.under, l.ts, t); u == l.under {
		return l.rounding
	}
	return l.rounding + 1000*int64(1+len(l.rates.versions)-l.under.version)
}

// checkBlock checks that a refusal for want of tokens begins a block of its key, that nothing
// else does, and that it lasts as long as the limit says. A reset ends such a block.
func (n *node) checkBlock(op *store.Op, was *look, b *book) {
	d, l, now := op.Def, b.level, n.time()
	if d.Block == 0 {
		return
	}
	t := max(l.instant(now), was.row.TS)
	if o := l.over.temporary; o != nil && o.block && op.Verb == store.VerbReset {
		l.over.temporary = nil
		n.w.Seen["a block is reset"]++
	}
	row, _ := n.table.Row(d.Name, op.Key)
	block, old := row.Override.Of(store.AutomaticOverride), was.row.Override.Of(store.AutomaticOverride)
	begun := block != nil && (old == nil || old.Until != block.Until)
	l.expire(now)
	one, used := l.rates.parts(1), l.usedAt(t)
	needs, most := op.Cost*one, most(op)*one
	if op.Verb == store.VerbTakeUpTo {
		needs = one
	}
	takes := op.Verb != store.VerbCheck && op.Verb <= store.VerbReserve && !op.Allowed && needs+op.Floor*one <= most && (l.over.temporary == nil || l.over.temporary.until <= now)
	switch {
	case begun && (!takes || block.Until != now+d.Block.Microseconds() || !l.off && !l.atMost && used+l.slack(t)+needs <= most):
		n.w.fail("block", "%s %d of %s %q: begins a block until %d, although %d parts are in use; %d may be", op.Verb, op.Cost, d.Name, op.Key, block.Until, used, most)
	case !begun && takes && !l.off && used+needs > most && (n.backs == 0 || block == nil): // otherwise the block may have begun earlier at the same time
		n.w.fail("block", "%s %d of %s %q: refused, and begins no block, although %d parts are in use; %d may be", op.Verb, op.Cost, d.Name, op.Key, used, most)
	case begun:
		n.w.Seen["a block begins"]++
		n.follow(l.k) // the key now follows the setting below the block
		l.over.temporary = &overridden{until: block.Until, block: true}
		n.w.tracef("%v: %s %q is blocked until %.6f s", n, d.Name, op.Key, float64(block.Until-epoch)/1e6)
	}
}
