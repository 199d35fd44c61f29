package main

import (
	"context"
)

// A pair is dipwell and its rivals with tables of the same durability.
type pair struct {
	*schema
	rivals
	durability string // logged or unlogged
}

// contenders returns the contenders for single decisions.
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

// loggedPair makes both in new databases. The caller closes it.
func (b *bench) loggedPair(ctx context.Context) (p pair, err error) {
	p.durability = "logged"
	if p.rivals, err = b.newRivals(ctx, loggedRivalsDB, "logged", b.keys, burst); err != nil {
		return p, err
	}
	p.schema, err = b.newSchema(ctx, loggedDB, "logged")
	return p, err
}
