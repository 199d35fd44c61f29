package pgstore

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/store"
)

// decideSQL decides any group: all verbs, several keys, calendar limits, and
// rows of older versions. decideShardsSQL first locks the rows of limits with shards, and
// returns no row if another transaction has one of them and the call does not wait.
const (
	decideSQL       = decideColumns + "dipwell_internal.decide($1::int[], " + decideArgs
	decideShardsSQL = decideColumns + "(select dipwell_internal.lock_rows($1::int[], $2::text[], $3::int[], $4::bigint[], $11::boolean) as ids offset 0) locked " +
		"cross join lateral dipwell_internal.decide(locked.ids, " + decideArgs + " where locked.ids is not null"

	decideColumns = "select allowed, never, shadow, granted, remaining, retry, reset, delay, row_used, row_ts, row_version, bound, row_plan, row_override from "
	decideArgs    = "$2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::uuid, $7::bigint, $8::text[], $9::bigint[], $10::bigint[])"
)

func (s *Store) decide(ctx context.Context, g *store.Group, entries []*entry) error {
	sql, args := decideSQL, s.decideArgs(g, entries)
	if takesShard(g) {
		sql, args = decideShardsSQL, append(args, !g.NoWait)
	}
	rows, err := s.db.Query(ctx, sql, args...)
	if err == nil {
		err = readDecided(rows, g)
	}
	if g.NoWait && errors.Is(err, store.ErrStaleDefinition) {
		err = store.ErrLocked
	}
	if err == nil {
		s.noteOverrides(g)
	}
	return callError(err, writes(g))
}

// takesShard reports whether a group takes from a row of a limit with shards. Such rows are
// locked before all others.
func takesShard(g *store.Group) bool {
	verb := g.Ops[0].Verb
	return (verb == store.VerbTake || verb == store.VerbTakeUpTo) && slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.Shards > 1 })
}

func (s *Store) decideArgs(g *store.Group, entries []*entry) []any {
	n := len(g.Ops)
	ids, keys, verbs := make([]int32, n), make([]string, n), make([]int32, n)
	costs, delays := make([]int64, n), make([]*int64, n)
	var plans []*string
	var floors, fractions []int64
	if slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.Base() != op.Def }) {
		plans = make([]*string, n)
	}
	if slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Floor > 0 || op.Fraction > 0 }) {
		floors, fractions = make([]int64, n), make([]int64, n)
	}
	for i := range g.Ops {
		op := &g.Ops[i]
		ids[i], keys[i], verbs[i], costs[i] = entries[i].id, op.Key, int32(op.Verb), op.Cost
		if op.Bounded {
			delays[i] = &op.MaxDelay
		}
		if plans != nil && op.Def.Plan != "" && op.Def.Override == nil {
			plans[i] = &op.Def.Plan
		}
		if floors != nil {
			floors[i], fractions[i] = op.Floor, op.Fraction
		}
	}
	return []any{ids, keys, verbs, costs, delays, uuidOf(g.ID), s.testNow(), plans, floors, fractions}
}

// uuidOf returns a parameter that pgx can encode without knowing the server's
// type, which it does not know behind a pooler without prepared statements.
func uuidOf(id store.Reservation) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// readDecided fills in the answers of a group.
func readDecided(rows pgx.Rows, g *store.Group) error {
	var a store.Answer
	var version rowVersion
	var plan *string
	var override []byte
	i := 0
	_, err := pgx.ForEachRow(rows, []any{&a.Allowed, &a.Never, &a.Shadow, &a.Granted, &a.Remaining, &a.Retry, &a.Reset, &a.Delay, &a.Used, &a.TS, &version, &a.Bound, &plan, &override}, func() error {
		if !setDecider(&g.Ops[i], uint32(version), plan, override) {
			a.Used, a.TS = 0, 0
		}
		g.Ops[i].Answer = a
		i++
		return nil
	})
	if err == nil && i < len(g.Ops) {
		err = store.ErrStaleDefinition // a limit was dropped meanwhile
	}
	if err != nil {
		return err
	}
	g.Allowed, g.Reserved = true, false
	for i := range g.Ops {
		op := &g.Ops[i]
		g.Allowed = g.Allowed && op.Allowed
		g.Reserved = g.Reserved || op.Delay > 0 && op.Granted > 0
	}
	g.Reserved = g.Reserved && g.Allowed
	return nil
}

func writes(g *store.Group) bool {
	return g.Cancel || g.Hold != nil || slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Verb != store.VerbCheck })
}

// testNow returns the time of the test's clock, or nil to use the server's clock.
func (s *Store) testNow() *int64 {
	if s.clock == nil {
		return nil
	}
	now := s.clock()
	return &now
}

func (s functions) cancel(ctx context.Context, id store.Reservation) error {
	var done bool
	err := s.db.QueryRow(ctx, "select dipwell_internal.give_back($1::uuid, $2::bigint)", uuidOf(id), s.testNow()).Scan(&done)
	if err != nil {
		return storeError(err, true)
	}
	if !done {
		return store.ErrReservation
	}
	return nil
}
