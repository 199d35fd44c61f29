package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// group tries a plain Take as a single statement. If that statement does not charge
// it, and for other calls, the rows are read and the group is decided in Go. If something
// must be written, the group is decided again in a transaction that locks the rows.
func (s portable) group(ctx context.Context, g *store.Group, entries []*entry, _ bool) error {
	op := &g.Ops[0]
	if len(g.Ops) == 1 && g.Hold == nil && op.Verb == store.VerbTake && op.Floor == 0 && op.Fraction == 0 && op.Def == entries[0].def && entries[0].plain &&
		op.Def.Algorithm != store.Concurrency && op.Cost > 0 && op.Cost <= op.Def.Rule.Burst {
		if done, err := s.take(ctx, g, entries[0]); done || err != nil {
			return err
		}
	}
	return s.readFirst(ctx, g)
}

// readFirst decides a group without locks, and in a transaction if that would change
// something.
func (s portable) readFirst(ctx context.Context, g *store.Group) error {
	t := s.table(ctx, g)
	if err := t.decide(); err != nil || !t.changed {
		return err
	}
	return s.transactGroup(ctx, g)
}

func (s portable) settle(ctx context.Context, g *store.Group) error { return s.readFirst(ctx, g) }

func (s portable) cancel(ctx context.Context, id store.Reservation) error {
	return s.transactGroup(ctx, &store.Group{Cancel: true, ID: id})
}

func (s portable) take(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op := &g.Ops[0]
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	numbers := []int64{op.Cost * rule.Unit}
	if spread(rule) {
		numbers = append(numbers, gridOf(rule.Origin, rule.Every))
	}
	row, seen, err := s.update(ctx, e.take, op.Key, numbers...)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, storeError(err, true)
	case seen == 0:
		seen = row.TS
	}
	grant(g, rule, op.Cost, row, seen)
	return true, nil
}

// errNoWrite ends a transaction that has nothing to write.
var errNoWrite = errors.New("nothing to write")

// transact runs f with a store over a new transaction, and again after a conflict.
func (s portable) transact(ctx context.Context, f func(in portable) error) error {
	try := func() error { return s.transactOnce(ctx, f) }
	return s.retry(ctx, try(), try)
}

// transactOnce is transact without retries, for callers that retry themselves. Nothing
// is visible before the commit, so only a failed commit leaves the outcome unknown.
func (s portable) transactOnce(ctx context.Context, f func(in portable) error) error {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return storeError(err, false)
	}
	if err = f(portable{s.With(tx), s.dialect, true}); err != nil {
		_ = tx.Rollback(ctx) // if the rollback fails, the pool drops the connection
		if errors.Is(err, errNoWrite) {
			return nil
		}
		return err
	}
	return commitError(tx.Commit(ctx))
}
