package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell"
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

// statements are a version's own, with its numbers as literals: what the
// executor need not look up, it need not start.
type statements struct {
	take, insert, look, peek     string
	takeMany, takeBold, lookMany string
	clean                        *atomic.Int32 // statements for many that refused nothing, in a row
}

// newStatements writes them. With a test's clock the time is the last parameter.
func newStatements(id int32, d *dipwell.Definition, testClock bool) (s statements) {
	r := &d.Rule
	now, reads := stmtNow, readNow
	params := 3
	grid := ""
	if r.Every > 0 {
		grid = fmt.Sprintf("%d::bigint", gridOf(r.Origin, r.Every))
	}
	if spread(r) {
		params++
		grid = fmt.Sprintf("$%d::bigint", params)
	}
	lookNow := reads
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
		reads, lookNow = now, "$2::bigint"
	}
	s.look = fmt.Sprintf(`select %s, b.used, b.ts, b.version from (select 1) one
left join dipwell.buckets b on b.limit_id = %d and b.key = $1::text`, lookNow, id)
	if r.Every == 0 || r.Leaky {
		return s
	}
	s.peek = fmt.Sprintf("select %s, used, ts, version from dipwell.buckets where limit_id = %d and key = $1::text", lookNow, id)
	seen := "statement_timestamp()"
	if testClock {
		seen = now
	}
	free := fmt.Sprintf("b.used - %s", returned(r, "b.ts", now, grid))
	fits := free + " <= $3::bigint"
	if bareTicks(r) {
		fits = fmt.Sprintf("%s <= greatest(%s - b.ts, 0)", dividedBy("b.used + $3::bigint", r.Add), now)
	}
	s.take = fmt.Sprintf(`update dipwell.buckets b set used = greatest(%[1]s, 0) + $2::bigint, ts = greatest(%[2]s, b.ts)
where b.limit_id = %[3]d and b.key = $1::text and b.version = %[4]d and b.lows is null and %[5]s
returning b.used, b.ts, %[6]s`, free, now, id, d.Number, fits, seen)
	free = fmt.Sprintf("b.used - %s", returned(r, "b.ts", "excluded.ts", grid))
	s.insert = fmt.Sprintf(`with c as materialized (select %[2]s as n),
r as materialized (select used, ts, version, lows is null as plain from dipwell.buckets where limit_id = %[3]d and key = $1::text),
i as (insert into dipwell.buckets as b (used, ts, limit_id, version, key)
    select $2::bigint, c.n, %[3]d, %[4]d, $1::text from c where not exists (select from r)
    on conflict (limit_id, key) do update set used = greatest(%[1]s, 0) + $2::bigint, ts = greatest(excluded.ts, b.ts)
    where b.version = %[4]d and b.lows is null and %[1]s <= $3::bigint
    returning b.used, b.ts)
select i.used, i.ts, %[4]d, c.n, true, true from i, c
union all select r.used, r.ts, r.version, c.n, false, r.plain from r, c`, free, reads, id, d.Number)
	newManySQL(&s, id, d, testClock)
	s.clean = new(atomic.Int32)
	return s
}

// spread reports whether a key's statements are told where its windows begin.
// Those of 1 µs begin at every instant.
func spread(r *dipwell.Rule) bool { return r.Spread && r.Every > 1 }

// gridOf is a boundary before any instant that can be counted, so that
// division rounds down.
func gridOf(origin, every int64) int64 {
	return origin - every*((dipwell.MaxInt+1)/every+1)
}

// returned is an SQL expression: the units that come back from ts to now.
func returned(r *dipwell.Rule, ts, now, grid string) string {
	var ticks string
	if r.Every == 1 {
		ticks = fmt.Sprintf("greatest(%s - %s, 0)", now, ts)
	} else {
		ticks = fmt.Sprintf("(greatest(%s, %s) - %s) / %d - (%s - %s) / %d", now, ts, grid, r.Every, ts, grid, r.Every)
	}
	return returnedTicks(r, ticks)
}

func returnedTicks(r *dipwell.Rule, ticks string) string {
	if bareTicks(r) {
		return times(ticks, r.Add)
	}
	enough := (r.MaxUsed + r.Add - 1) / r.Add // beyond it the product could overflow
	return times(fmt.Sprintf("least(%s, %d::bigint)", ticks, enough), r.Add)
}

// bareTicks reports whether the ticks since a row's ts can be multiplied as they
// are: two instants are less than 2^54 µs apart. And then take need not multiply
// in order to compare.
func bareTicks(r *dipwell.Rule) bool { return r.Every == 1 && r.Add <= 1<<8 }

func times(x string, n int64) string {
	if n == 1 {
		return x
	}
	return fmt.Sprintf("%s * %d", x, n)
}

func dividedBy(x string, n int64) string {
	if n == 1 {
		return x
	}
	return fmt.Sprintf("(%s) / %d", x, n)
}

// room is the third parameter of take. A Take fits when the ticks that it needs
// have passed: the units that are too many divided by those of a tick, rounded
// up, or a number that is not above zero where none are too many.
func room(r *dipwell.Rule, units int64) int64 {
	if bareTicks(r) {
		return units - r.Cap + r.Add - 1
	}
	return r.Cap - units
}

// takeArgs are the parameters of take and insert; the third is not the same.
func (s *Store) takeArgs(op *dipwell.Op, r *dipwell.Rule, third int64) []any {
	units := op.Cost * r.Unit
	args := append(make([]any, 0, 5), op.Key, units, third)
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

// take decides a Take of at least one token that may fit: one conditional
// UPDATE, which answers an admitted call on a known key. A second trip inserts,
// or reads why not; what that reads may refuse the call, and writes nothing.
// Keys that were refused lately are read first.
func (s *Store) take(ctx context.Context, g *dipwell.Group, e *entry) error {
	op := &g.Ops[0]
	var scratch dipwell.Rule
	rule := op.Def.RuleFor(op.Key, &scratch)
	if s.refused.has(e.id, op.Key) {
		if done, err := s.stillRefused(ctx, g, e); done || err != nil {
			return err
		}
	}
	units := op.Cost * rule.Unit
	for range maxRounds {
		var row dipwell.State
		var seen instant
		err := s.db.QueryRow(ctx, e.take, s.takeArgs(op, rule, room(rule, units))...).Scan(&row.Used, &row.TS, &seen)
		if err == nil {
			admit(g, rule, row, int64(seen))
			return nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return storeError(err, true)
		}
		var now int64
		var taken, plain bool
		err = s.db.QueryRow(ctx, e.insert, s.takeArgs(op, rule, rule.Cap-units)...).Scan(&row.Used, &row.TS, &row.Version, &now, &taken, &plain)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // another first call was faster
			continue
		case err != nil:
			return storeError(err, true)
		case taken:
			admit(g, rule, row, now)
			return nil
		}
		_, write, err := op.Step(now, row, false)
		if err != nil {
			return err
		}
		if !write {
			g.Allowed, g.Reserved = op.Allowed, false
			s.refused.note(e.id, op.Key, true)
			return nil
		}
		if row.Version != op.Def.Number || !plain { // has reservations, which only the function knows
			break
		}
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

// admit answers a Take that the server has charged; row is what it left.
func admit(g *dipwell.Group, r *dipwell.Rule, row dipwell.State, now int64) {
	op := &g.Ops[0]
	op.Answer = dipwell.Answer{
		Allowed: true, Granted: op.Cost,
		Remaining: r.Remaining(row.Used), Reset: r.FullIn(row.Used, row.TS, now),
		Used: row.Used, TS: row.TS,
	}
	g.Allowed, g.Reserved = true, false
}

// look answers what writes nothing from one read.
func (s *Store) look(ctx context.Context, g *dipwell.Group, e *entry) error {
	op := &g.Ops[0]
	var now int64
	var used, ts *int64
	var version *uint32
	err := s.db.QueryRow(ctx, e.look, s.withClock([]any{op.Key})...).Scan(&now, &used, &ts, &version)
	if err != nil {
		return storeError(err, false)
	}
	var row dipwell.State
	if used != nil {
		row = dipwell.State{Used: *used, TS: *ts, Version: *version}
	}
	_, _, err = op.Step(now, row, false)
	g.Allowed, g.Reserved = op.Allowed, false
	return err
}
