package store

import (
	"time"

	"github.com/dipwell/dipwell/internal/period"
)

// This file has the code that begins blocks: see Limit.Block.

// maxBlock bounds Limit.Block. Every store keeps the block of a key until it ends.
const maxBlock = 366 * 24 * time.Hour

// blockNote is the note of the override that is a block.
const blockNote = "automatic"

// checkBlock checks a limit with Block, without the plans. A block may hit only the key
// that ran out of tokens.
func (c *compiler) checkBlock() error {
	switch {
	case c.Block == 0:
		return nil
	case c.Block < time.Millisecond || c.Block > maxBlock || c.Block%time.Microsecond != 0:
		return c.bad("block", "%s is not between 1ms and 366d", period.Format(c.Block))
	case c.Shared:
		return c.bad("block", "is not for a shared limit, whose bucket is everybody's")
	case c.Algorithm == Concurrency:
		return c.bad("block", "is not for a concurrency limit")
	case c.Algorithm == SlidingWindow:
		return c.bad("block", "is not for a sliding window")
	case c.Lease != 0:
		return c.bad("block", "is not for a limit with a lease")
	case c.Shards > 1:
		return c.bad("block", "is not for a limit with shards")
	case c.Adaptive != (Adaptive{}):
		return c.bad("block", "is not for an adaptive limit")
	}
	for _, p := range c.Plans.All() {
		if !p.OverrideOnly {
			return c.bad("block", "is not for a limit with plans that callers may name; plan %s needs callable: false", p.Name)
		}
	}
	return nil
}

// ranOut reports whether the refusal of a decided op begins a block of its key.
func (op *Op) ranOut() bool {
	d := op.Def
	switch {
	case d.Block == 0 || op.Allowed || op.Never || op.Cost == 0 || op.Bounded, d.Mode != Enforce,
		op.Verb != VerbTake && op.Verb != VerbTakeUpTo && op.Verb != VerbReserve, d.Override != nil && d.Override.Until != 0:
		return false
	}
	allowed, _, _, _, _, _ := d.Rule.decide(op.Verb, op.Used, op.Cost, 0)
	return !allowed // whether it would be refused without the floor too
}

// blockIn begins the blocks of the keys that ran out of tokens, and answers their ops like any
// call of a blocked key. A table's records are not read again after they were written.
func (g *Group) blockIn(t Table, now int64, entries []entry) error {
	for i := range g.Ops {
		op := &g.Ops[i]
		if !op.ranOut() {
			continue
		}
		e, d, until := &entries[i], op.Def, now+op.Def.Block.Microseconds()
		err := e.changeOverride(t, now, func(was *Override) (*Override, error) {
			o := &Override{Key: op.Key, Until: until, Note: blockNote, ID: was.newID(now), Version: d.Base().Number, Under: was.Of(StandingOverride)}
			o.Prepare()
			return o, nil
		})
		if err == nil {
			_, _, err = op.Step(now, e.row, true)
		}
		if err != nil {
			return err
		}
		op.answerHolds(&e.row, e.records, now)
	}
	return nil
}
