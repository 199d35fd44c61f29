package main

import "github.com/dipwell/dipwell/store"

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
