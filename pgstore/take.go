package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/internal/sqlstep"
	"github.com/dipwell/dipwell/store"
)

// One statement's clock. statement_timestamp is one value in a statement and
// costs least; after a wait for a lock it is behind, and then mints nothing, for
// a row's own ts is never moved back. A row that is inserted needs the time
// after the snapshot: a full row may have been swept at a later time than the
// statement's start.
const (
	stmtNow = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint"
	readNow = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
)

// statements are those of one version, with its numbers as literals instead of
// parameters: each expression costs start-up time in every execution.
type statements struct {
	take, upsert, insertNew, insertOrRead string
	read, readExisting                    string
	takeMany, takeManyUnchecked, readMany string
	chargeMany                            string
	noRefusals                            *streak // of statements for many
	newKeys                               *newKeyRate
	windows                               *windows // of a calendar
}

// newStatements writes them. With a test's clock the time is the last parameter.
func newStatements(id int32, d *store.Definition, testClock bool) (s statements) {
	r := &d.Rule
	now, reads := stmtNow, readNow
	params := 3
	var grid sqlexpr.Expr
	if r.Every > 0 {
		grid = sqlexpr.Int(gridOf(r.Origin, r.Every))
	}
	if spread(r) {
		params++
		grid = sqlexpr.Op(fmt.Sprintf("$%d::bigint", params))
	}
	lookNow := reads
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
		reads, lookNow = now, "$2::bigint"
	}
	s.read = fmt.Sprintf(`select %s, b.used, b.ts, b.version from (select 1) one
left join dipwell.buckets b on b.limit_id = %d and b.key = $1::text`, lookNow, id)
	s.noRefusals, s.newKeys, s.windows = new(streak), new(newKeyRate), new(windows)
	if r.Every == 0 || r.Leaky {
		return s
	}
	s.readExisting = fmt.Sprintf("select %s, used, ts, version from dipwell.buckets where limit_id = %d and key = $1::text", lookNow, id)
	seen := "statement_timestamp()"
	if testClock {
		seen = now
	}
	c := chargeSQL(id, d, now, grid, "$1::text", "$2::bigint", "$3::bigint")
	s.take = fmt.Sprintf("update dipwell.buckets b set %s\nwhere %s\nreturning b.used, b.ts, %s", c.set, c.where, seen)
	room, ticks := sqlexpr.Op("$3::bigint"), ticksSQL(r, "b.ts", "excluded.ts", grid)
	fits := fitsSQL(r, ticks, sqlexpr.Int(0), room)
	within := fitsRoomSQL(r, ticks, room)
	s.upsert = fmt.Sprintf(`insert into dipwell.buckets as b (used, ts, limit_id, version, key) values ($2::bigint, %[2]s, %[3]d, %[4]d, $1::text)
on conflict (limit_id, key) do update set used = %[1]s + $2::bigint, ts = greatest(excluded.ts, b.ts)
where b.version = %[4]d and b.lows is null and %[5]s
returning b.used, b.ts, %[6]s`, leftSQL(r, ticks), reads, id, d.Number, within, seen)
	newNow, newSeen := reads, seen
	if testClock {
		newNow = "$3::bigint"
		newSeen = newNow
	}
	s.insertNew = fmt.Sprintf(`insert into dipwell.buckets as b (used, ts, limit_id, version, key) values ($2::bigint, %s, %d, %d, $1::text)
on conflict do nothing
returning b.used, b.ts, %s`, newNow, id, d.Number, newSeen)
	s.insertOrRead = fmt.Sprintf(`with c as materialized (select %[2]s as n),
r as materialized (select used, ts, version, lows is null as plain from dipwell.buckets where limit_id = %[3]d and key = $1::text),
i as (insert into dipwell.buckets as b (used, ts, limit_id, version, key)
    select $2::bigint, c.n, %[3]d, %[4]d, $1::text from c where not exists (select from r)
    on conflict (limit_id, key) do update set used = %[1]s + $2::bigint, ts = greatest(excluded.ts, b.ts)
    where b.version = %[4]d and b.lows is null and %[5]s
    returning b.used, b.ts)
select i.used, i.ts, %[4]d, c.n, true, true from i, c
union all select r.used, r.ts, r.version, c.n, false, r.plain from r, c`, leftSQL(r, ticks), reads, id, d.Number, fits)
	newManySQL(&s, id, d, testClock)
	return s
}

// charge is the parts of a statement that charges row b of a limit if its units
// fit: what it sets, and its condition.
type charge struct{ set, where string }

// chargeSQL writes them. room is what function room computes.
func chargeSQL(id int32, d *store.Definition, now string, grid sqlexpr.Expr, key, units, room string) charge {
	r := &d.Rule
	ticks := ticksSQL(r, "b.ts", now, grid)
	return charge{
		set: fmt.Sprintf("used = %s + %s, ts = greatest(%s, b.ts)", leftSQL(r, ticks), units, now),
		where: fmt.Sprintf("b.limit_id = %d and b.key = %s and b.version = %d and b.lows is null and %s",
			id, key, d.Number, fitsRoomSQL(r, ticks, sqlexpr.Op(room))),
	}
}

// withinSQL reports whether a row has room after ticks, where room is what
// function room computes.
func fitsRoomSQL(r *store.Rule, ticks, room sqlexpr.Expr) sqlexpr.Expr {
	if ticksNeedNoClamp(r) {
		return sqlstep.FitsWithin(used, ticks, sqlexpr.Int(r.Add), room)
	}
	return fitsSQL(r, ticks, sqlexpr.Int(0), room)
}

// spread reports whether a key's statements are told where its windows begin.
// Those of 1 µs begin at every instant.
func spread(r *store.Rule) bool { return r.Spread && r.Every > 1 }

// gridOf is a boundary before any instant that can be counted, so that
// division rounds down.
func gridOf(origin, every int64) int64 {
	return origin - every*((store.MaxInt+1)/every+1)
}

var used = sqlexpr.Op("b.used")

// ticksSQL is the ticks from ts to now.
func ticksSQL(r *store.Rule, ts, now string, grid sqlexpr.Expr) sqlexpr.Expr {
	return sqlstep.TicksSince(sqlexpr.Op(ts), sqlexpr.Op(now), grid, sqlexpr.Int(r.Every))
}

// leftSQL is what stays used of a row after ticks.
func leftSQL(r *store.Rule, ticks sqlexpr.Expr) sqlexpr.Expr {
	return sqlstep.LeftAfter(used, ticks, sqlexpr.Int(r.Add), enough(r))
}

// fitsSQL reports whether units fit into a row after ticks.
func fitsSQL(r *store.Rule, ticks, units, bound sqlexpr.Expr) sqlexpr.Expr {
	return sqlstep.FitsAfter(used, ticks, sqlexpr.Int(r.Add), enough(r), units, bound)
}

// enough is the ticks after which everything has come back, where it matters.
func enough(r *store.Rule) sqlexpr.Expr {
	if ticksNeedNoClamp(r) {
		return sqlexpr.Unbounded
	}
	return sqlstep.EnoughTicks(sqlexpr.Int(r.MaxUsed), sqlexpr.Int(r.Add))
}

// bareTicks reports whether the ticks since a row's ts can be multiplied as they
// are: two instants are less than 2^54 µs apart. And then take need not multiply
// in order to compare.
func ticksNeedNoClamp(r *store.Rule) bool { return r.Every == 1 && r.Add <= 1<<8 }

// room is the third parameter of take: see its statement.
func room(r *store.Rule, units, bound int64) int64 {
	if ticksNeedNoClamp(r) {
		return algebra.RoomFor(units, bound, r.Add)
	}
	return bound - units
}

// takeArgs are the parameters of take and insert; the third is not the same.
func (s *Store) takeArgs(key string, r *store.Rule, units, third int64) []any {
	args := append(make([]any, 0, 5), key, units, third)
	if spread(r) {
		args = append(args, gridOf(r.Origin, r.Every))
	}
	return s.withClock(args)
}

func (s *Store) withClock(args []any) []any {
	if s.clock != nil {
		args = append(args, s.clock())
	}
	return args
}

// reads reports whether an op of a limit that is not leaky can change nothing.
func readOnly(op *store.Op) bool {
	switch op.Verb {
	case store.VerbCheck:
		return true
	case store.VerbTake:
		return op.Cost == 0 || op.Cost > op.Def.Rule.Burst
	}
	return op.Cost == 0 && op.Verb != store.VerbReset
}

// whole is what an op of a plain limit takes if it gets all that it asks for
// and nothing has to wait: the tokens, and the most units that may be used after
// them. No tokens: the op only reads, or is decided by other statements.
func fullCost(op *store.Op) (tokens, bound int64) {
	r := &op.Def.Rule
	switch {
	case op.Verb == store.VerbTakeUpTo:
		return min(op.Cost, r.Burst), r.Cap
	case (op.Verb == store.VerbTake || op.Verb == store.VerbReserve) && op.Cost <= r.Burst:
		return op.Cost, r.Cap
	case op.Verb == store.VerbCharge && op.Cost <= r.MaxCharge && op.Cost <= r.MaxUsed/r.Unit:
		return op.Cost, r.MaxUsed
	}
	return 0, 0
}

// gotWhole reports whether an op that was decided in Go took all that it asks for.
func gotFullCost(op *store.Op) bool {
	tokens, _ := fullCost(op)
	return tokens > 0 && op.Allowed && !op.Shadow && op.Delay == 0 && op.Granted == tokens
}

// take decides a Take, TakeUpTo, Reserve or Charge that may get all that it asks
// for: one conditional UPDATE, which answers if it does and the key is known. A
// second trip inserts, or reads why not; what that reads may refuse the call,
// and writes nothing. Keys that did not get all lately are read first, and those
// that are probably new are inserted at once: where all others lately were new,
// by an INSERT that does not charge a row which is there, and so costs an eighth
// less of the server's time.
func (s *Store) take(ctx context.Context, g *store.Group, e *entry) error {
	op := &g.Ops[0]
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	tokens, bound := fullCost(op)
	units := tokens * rule.Unit
	if s.refused.has(e.id, op.Key) {
		if done, err := s.stillRefused(ctx, g, e); done || err != nil {
			return err
		}
		if !gotFullCost(op) {
			return s.takePartial(ctx, g, e)
		}
	}
	met := s.seen.has(e.id, op.Key)
	for range maxRounds {
		f := formTake
		switch {
		case !met && e.newKeys.allNew():
			f = formInsertNew
		case !met && e.newKeys.mostlyNew():
			f = formUpsert
		}
		row, now, err := s.update(ctx, e, f, op.Key, rule, units, room(rule, units, bound))
		if err == nil {
			grant(g, rule, tokens, row, now)
			if !met {
				s.noteSeen(e, op.Key, f != formTake && row.Used == units)
			}
			return nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return storeError(err, true)
		}
		if f == formInsertNew { // it was there
			s.noteSeen(e, op.Key, false)
			met = true
			continue
		}
		var taken, plain bool
		err = s.db.QueryRow(ctx, e.insertOrRead, s.takeArgs(op.Key, rule, units, bound-units)...).Scan(&row.Used, &row.TS, &row.Version, &now, &taken, &plain)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // another first call was faster
			continue
		case err != nil:
			return storeError(err, true)
		case taken:
			grant(g, rule, tokens, row, now)
			s.noteSeen(e, op.Key, true)
			return nil
		}
		if !met {
			s.noteSeen(e, op.Key, false)
			met = true
		}
		done, err := s.answerFrom(g, e, now, row)
		if done || err != nil {
			return err
		}
		if row.Version != op.Def.Number || !plain { // has reservations, which only the function knows
			return s.decide(ctx, g, []*entry{e})
		}
		if !gotFullCost(op) {
			break
		}
	}
	return s.takePartial(ctx, g, e)
}

// meet remembers a key that was not known, and whether it was new to the database.
func (s *Store) noteSeen(e *entry, key string, isNew bool) {
	s.seen.note(e.id, key, true)
	e.newKeys.note(isNew)
}

// answerFrom decides an op on a row that was read. It reports whether that is
// the answer, as nothing is to be written, and remembers whether the op got all
// that it asks for.
func (s *Store) answerFrom(g *store.Group, e *entry, now int64, row store.State) (done bool, err error) {
	op := &g.Ops[0]
	_, write, err := op.Step(now, row, false)
	if err != nil {
		return false, err
	}
	s.refused.note(e.id, op.Key, !write || !gotFullCost(op))
	g.Allowed, g.Reserved = op.Allowed, false
	return !write && op.Verb != store.VerbCharge, nil // a charge that changes nothing else may end the row's lows
}

// takePart decides an op that gets less than it asks for, or has to wait, as
// the row stood when it was read.
func (s *Store) takePartial(ctx context.Context, g *store.Group, e *entry) error {
	if g.Ops[0].Delay == 0 && len(s.set(ctx, []*store.Group{g})) == 0 {
		return g.Err
	}
	return s.decide(ctx, g, []*entry{e})
}

// instant is µs since the Unix epoch, scanned from a timestamptz, which spares
// the server the arithmetic, or from a test's bigint.
type instant int64

func (t *instant) ScanTimestamptz(v pgtype.Timestamptz) error {
	*t = instant(v.Time.UnixMicro())
	return nil
}

func (t *instant) ScanInt64(v pgtype.Int8) error {
	*t = instant(v.Int64)
	return nil
}

// admit answers an op whose tokens the server has charged; row is what that left.
func grant(g *store.Group, r *store.Rule, tokens int64, row store.State, now int64) {
	fillGranted(&g.Ops[0], r, tokens, row, now)
	g.Allowed, g.Reserved = true, false
}

func fillGranted(op *store.Op, r *store.Rule, tokens int64, row store.State, now int64) {
	op.Answer = store.Answer{
		Allowed: true, Granted: tokens,
		Remaining: r.Remaining(row.Used), Reset: r.FullIn(row.Used, row.TS, now),
		Used: row.Used, TS: row.TS,
	}
}

// look answers what writes nothing from one read.
func (s *Store) decideRead(ctx context.Context, g *store.Group, e *entry) error {
	op := &g.Ops[0]
	var now int64
	var used, ts *int64
	var version *uint32
	err := s.db.QueryRow(ctx, e.read, s.withClock([]any{op.Key})...).Scan(&now, &used, &ts, &version)
	if err != nil {
		return storeError(err, false)
	}
	var row store.State
	if used != nil {
		row = store.State{Used: *used, TS: *ts, Version: *version}
	}
	_, _, err = op.Step(now, row, false)
	g.Allowed, g.Reserved = op.Allowed, false
	return err
}
