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

// eachDurability runs do with logged tables, the default, and with unlogged
// ones.
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

// loggedPair makes dipwell and its rivals in new databases with logged tables. The caller
// closes the pair.
func (b *bench) loggedPair(ctx context.Context) (p pair, err error) {
	p.durability = "logged"
	if p.rivals, err = b.newRivals(ctx, loggedRivalsDB, "logged", b.keys, burst); err != nil {
		return p, err
	}
	p.schema, err = b.newSchema(ctx, loggedDB, "logged")
	return p, err
}

// onBoth runs do on dipwell alone, with logged tables, the default, and with unlogged
// ones.
func (b *bench) onBoth(ctx context.Context, do func(ctx context.Context, w *schema, tables string) error) error {
	w, err := b.newSchema(ctx, loggedDB, "logged")
	if err != nil {
		return err
	}
	defer w.close()
	if err := do(ctx, w, "logged"); err != nil {
		return err
	}
	return do(ctx, b.fast, "unlogged")
}

// onLogged returns the target that a rate is at least the given multiple of another,
// for logged tables only, since these are the default.
func onLogged(tables, than string, least float64) []target {
	if tables != "logged" {
		return nil
	}
	return []target{{over: than, ratio: least}}
}
