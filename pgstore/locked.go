package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// lockedRows are the rows for which a group of the batch timed out waiting for a
// lock. Other groups that need these rows get the same error without waiting again.
type lockedRows map[rowName]error

type rowName struct{ limit, key string }

// note records the row of a group that timed out on a lock. If the group has
// several rows, it is not known which one was locked.
func (r *lockedRows) note(g *store.Group) {
	if len(g.Ops) != 1 || !errors.Is(g.Err, store.ErrLocked) {
		return
	}
	if *r == nil {
		*r = lockedRows{}
	}
	(*r)[nameOf(&g.Ops[0])] = g.Err
}

// err returns the error of a group that would wait for one of the rows, or nil.
func (r lockedRows) err(g *store.Group) error {
	for i := 0; r != nil && i < len(g.Ops); i++ {
		if err := r[nameOf(&g.Ops[i])]; err != nil && g.Ops[i].Verb != store.VerbCheck {
			return err
		}
	}
	return nil
}

func nameOf(op *store.Op) rowName { return rowName{op.Def.Name, op.Key} }

// maxMissing bounds how often groups without a row wait for a lock, one after the other, in
// decideUnlocked.
const maxMissing = 2

// decideUnlocked decides the groups of a batch that failed with ErrLocked only
// because another group of their transaction needs a locked row. decideUnlocked waits for no
// row that is locked. A missing row may have been inserted by a transaction that is still
// open, which no statement can see: if one of the missing rows was, groups with missing rows
// are tried one by one.
func (s *Store) decideUnlocked(ctx context.Context, b *store.Batch) {
	var all []*store.Group
	for i := range b.Groups {
		if g := &b.Groups[i]; errors.Is(g.Err, store.ErrLocked) && len(g.Ops) > 0 {
			all = append(all, g)
		}
	}
	if len(all) < 2 || !s.engine().hasFunctions() {
		return
	}
	states, err := s.rowStates(ctx, all)
	if err != nil {
		return
	}
	var free, missing []*store.Group
	for i, g := range all {
		switch states[i] {
		case rowFree:
			free = append(free, g)
		case rowMissing:
			missing = append(missing, g)
		}
	}
	s.applyTo(ctx, free)
	s.applyTo(ctx, missing)
	var locked lockedRows
	for met := 0; met < maxMissing && len(missing) > 0; missing = missing[1:] {
		g := missing[0]
		if !errors.Is(g.Err, store.ErrLocked) || locked.err(g) != nil {
			continue
		}
		if s.decideOne(ctx, g, &locked); errors.Is(g.Err, store.ErrLocked) {
			met++
		}
	}
}

// applyTo decides groups of a batch.
func (s *Store) applyTo(ctx context.Context, groups []*store.Group) {
	var b store.Batch
	for _, g := range groups {
		b.Groups = append(b.Groups, *g)
	}
	s.decideBatch(ctx, &b)
	for i, g := range groups {
		*g = b.Groups[i]
	}
}

// A rowState is the state of a row, or of a group: the last state of its rows in this order.
type rowState int

const (
	rowFree rowState = iota
	rowMissing
	rowLocked
)

// rowStatesSQL returns the state of each row that is not free. For the time of the
// statement it locks the rows that are free.
const rowStatesSQL = `select q.i, case when exists (select from dipwell.buckets b where b.limit_id = q.limit_id and b.key = q.key) then 2 else 1 end
from unnest((select $1::int[]), (select $2::text[])) with ordinality q(limit_id, key, i)
where not exists (select from dipwell.buckets b where b.limit_id = q.limit_id and b.key = q.key for no key update skip locked)`

// rowStates returns the state of each group.
func (s *Store) rowStates(ctx context.Context, groups []*store.Group) ([]rowState, error) {
	var limits []int32
	var keys []string
	var of []int // by row: the index of its group
	for i, g := range groups {
		for j := range g.Ops {
			op := &g.Ops[j]
			e, err := s.limits.entryOf(op.Def)
			if err != nil {
				return nil, err
			}
			limits, keys, of = append(limits, e.id), append(keys, op.Key), append(of, i)
		}
	}
	rows, err := s.db.Query(ctx, rowStatesSQL, customPlan, limits, keys)
	if err != nil {
		return nil, err
	}
	states := make([]rowState, len(groups))
	var at, state int
	_, err = pgx.ForEachRow(rows, []any{&at, &state}, func() error {
		g := of[at-1]
		states[g] = max(states[g], rowState(state))
		return nil
	})
	return states, err
}
