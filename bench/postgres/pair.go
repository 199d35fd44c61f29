package main

import (
	"context"
)

// A pair is dipwell and its rivals with tables of the same durability.
type pair struct {
	*well
	rivals
	durability string // logged or unlogged
}

// contenders of a single decision, without work beside their calls but (a)'s.
func (p pair) contenders() []contender {
	return append([]contender{p.statement(), p.take()}, p.rivals.all()...)
}

// eachDurability runs do with logged tables, which are the default, and with
// unlogged ones.
func (b *bench) eachDurability(ctx context.Context, do func(pair) error) error {
	logged, err := b.loggedPair(ctx)
	if err != nil {
		return err
	}
	defer logged.close()
	if err := do(logged); err != nil {
		return err
	}
	return do(pair{b.fast, b.rivals, "unlogged"})
}

// loggedPair makes both in new databases. Close it.
func (b *bench) loggedPair(ctx context.Context) (p pair, err error) {
	p.durability = "logged"
	if p.rivals, err = b.invite(ctx, loggedRivalsDB, "logged", b.keys, burst); err != nil {
		return p, err
	}
	p.well, err = b.dig(ctx, loggedDB, "logged")
	return p, err
}
