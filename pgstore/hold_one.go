package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/store"
)

// setHoldSQL sets the statement that makes a hold of one key, in full. It charges the
// bucket first and then writes hold_parts, the order in which the functions lock rows too.
//
// Parameters: key, id, units, room, ttl, tokens, mark, then the grid if origins are
// spread, and the time of a test's clock.
func setHoldSQL(s *statements, id int32, d *store.Definition, testClock bool) {
	r := &d.Rule
	now, at, grid, params, slots := stmtNow, readNow, gridSQL(r), 7, d.Algorithm == store.Concurrency
	if spread(r) {
		params, grid = 8, "$8::bigint"
	}
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
		at = now
	}
	// A key without lows may have other records: those of an earlier list, and those that
	// took nothing. The functions count them. What a concurrency limit holds needs no
	// count, because each live record has at least a token. Not "limit 1", for which a scan of
	// the whole table looks cheap.
	alone := fmt.Sprintf(`(select count(*) from dipwell.hold_parts o where o.limit_id = %[1]d and o.key = $1::text and o.live) = 0
        and (select count(*) from dipwell.hold_parts o where o.limit_id = %[1]d and o.key = $1::text and o.free and not o.settled) = 0`, id)
	set, where, reset := "", "", "0::bigint"
	if slots {
		set = fmt.Sprintf("used = b.used + $3::bigint, ts = greatest(%s, b.ts)", now)
		where = fmt.Sprintf("b.limit_id = %d and b.key = $1::text and b.version = %d and (b.due <= %s) is not true and b.used <= $4::bigint and b.used < 10000 and $7::bigint is not null", id, d.Number, now)
		reset = fmt.Sprintf("coalesce((select x.expires from dipwell.hold_parts x where x.limit_id = %d and x.key = $1::text and x.live order by x.expires desc limit 1), 0)", id)
	} else {
		charge := chargeSQL(id, d, now, grid, "$1::text", "$3::bigint", "$4::bigint")
		left := leftSQL(r, ticksSQL(r, now, grid))
		before := fmt.Sprintf("least(%s, b.low)", left)
		set = fmt.Sprintf(`used = %[1]s, ts = greatest(%[4]s, b.ts), low = %[1]s,
    lows = case when b.lows is null then %[2]s when cardinality(b.lows) < 67 and (cardinality(b.lows) = 5 or b.lows[cardinality(b.lows) - 1] < %[3]s)
        then array[b.lows[1], b.lows[2] + 1, b.lows[3] + 1, 0] || b.lows[5:] || array[%[3]s, b.lows[2]]
        else dipwell_internal.lows_hold(b.lows, %[3]s, %[1]s) end`, left+" + $3::bigint", "array[$7::bigint, 2, 1, 0, 1]", before, now)
		where = fmt.Sprintf("%s and case when b.lows is null then %s else b.lows[4] = 0 and b.lows[3] < 10000 end", charge.where, alone)
	}
	// The hold begins at the time when the bucket is locked: the wait for the lock may be
	// longer than the ttl.
	s.hold = fmt.Sprintf(`with b as (update dipwell.buckets b set %[1]s, due = least(b.due, %[7]s + $5::bigint)
    where %[8]s
    returning b.used, b.ts, coalesce(b.lows[2] - 1, 0) as number, coalesce(b.lows[1], 0) as mark, %[2]s as at),
i as (insert into dipwell.hold_parts (expires, due, ttl, units, tokens, number, mark, limit_id, version, part, parts, takes, live, free, keep, reset, settled, id, key)
    select b.at + $5::bigint, b.at + $5::bigint, $5::bigint, $3::bigint, $6::bigint, b.number, b.mark, %[3]d, %[4]d, 1, 1, 1, true, false, %[5]t, false, false, $2::text, $1::text from b)
select b.used, b.ts, b.at, %[6]s from b`, set, at, id, d.Number, d.KeepExpired, reset, now, where)
}

// settleSQL returns a statement that settles a hold of one key to at most what it took. It
// returns no row if it has done nothing. Parameters: id, cost or null, and the time of a
// test's clock.
//
// "coalesce(x.live, false)" keeps the planner from using the index of live holds. In a
// plan made while the table is small, a scan of that whole index looks as cheap as a
// lookup by id. Bucket and limit are looked up by scalar subqueries: a join with all
// buckets of the limit looks cheap too if the table was never analyzed.
//
// If another call has settled the hold while the statement waited for the bucket, the
// statement fails, which undoes what it gave back.
func settleSQL(testClock bool) string {
	now := stmtNow
	if testClock {
		now = "$3::bigint"
	}
	return fmt.Sprintf(`with p as materialized (select x.* from dipwell.hold_parts x where x.id = $1::text and x.part = 1 and x.parts = 1 and coalesce(x.live, false) and x.plan is null),
b as (update dipwell.buckets b set (used, ts, lows, low, due) = (
        select z.held - coalesce(z.list[1], least(g.back, b.low, z.held)), greatest(g.n, b.ts),
            case when b.lows[3] > 1 then z.list[2:cardinality(z.list) - 1] end, case when b.lows[3] > 1 then z.list[cardinality(z.list)] end,
            case when b.lows[3] > 1 or b.lows is null and z.held > g.back then b.due end
        from (select u.held, case when b.lows[3] > 1 or b.lows[cardinality(b.lows)] > p.number then dipwell_internal.lows_settle(b.lows, least(u.held, b.low), p.number, g.back) end as list
            from (select greatest(b.used - least((greatest(g.n, b.ts) - g.grid) / l.every - (b.ts - g.grid) / l.every, l.ticks) * l.add, 0) as held offset 0) u offset 0) z)
    from p cross join dipwell.limits l cross join lateral (select %[1]s as n,
        case when p.number = 0 then p.units when coalesce($2::bigint, p.tokens) <= p.tokens then p.units - coalesce($2::bigint, p.tokens) * l.unit else -1 end as back,
        l.grid + case when l.spread then dipwell_internal.key_offset(l.name, p.key, l.every) else 0 end as grid offset 0) g
    where p.expires > g.n and l.id = (select p.limit_id from p) and p.version = l.version
        and (p.number = 0 or (l.plain or l.spread) and p.units = p.tokens * l.unit and g.back >= 0 and b.lows[1] = p.mark and b.lows[4] = 0)
        and b.limit_id = (select p.limit_id from p) and b.key = (select p.key from p) and b.version = p.version and (b.due <= g.n) is not true
    returning b.used, b.ts, b.limit_id, b.key, b.version, p.takes, p.tokens, p.number, g.n),
e as (update dipwell.hold_parts h set live = false, settled = true, cost = coalesce($2::bigint, h.tokens), due = b.n + least(greatest(h.ttl, 60000000), 3600000000) from b
    where h.id = $1::text and h.part = 1 and coalesce(h.live, false) and h.expires > b.n returning h.expires)
select b.limit_id, b.key, b.takes, b.version, coalesce($2::bigint, b.tokens), b.n, b.used, b.ts, coalesce((select e.expires from e), ('%[2]s' || b.ts)::bigint),
    case when b.number = 0 and b.used > 0 then coalesce((select x.expires from dipwell.hold_parts x where x.limit_id = b.limit_id and x.key = b.key and x.live and x.id <> $1::text order by x.expires desc limit 1), 0) end
from b`, now, abortedSettle)
}

// abortedSettle is in the error, and therefore in the server's log, if another call has
// settled the hold.
const abortedSettle = "dipwell: another call has settled the hold; nothing was changed, and the call is retried; at "

// makePlainHold makes a hold of one key by one statement, if it takes in full from a row
// under the present version of the limit, or after another one has inserted the row. It
// returns false if it has made none.
func (s functions) makePlainHold(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op, c := &g.Ops[0], g.Hold
	if len(g.Ops) > 1 || e.hold == "" || op.Takes != 1 || op.Cost == 0 || op.Cost > op.Def.Rule.Burst || op.Floor > 0 || op.Def != e.def || op.Def.Plan != "" ||
		op.Def.Mode != store.Enforce || !s.autocommit() || s.overridden.of(e, op.Key) != nil {
		return false, nil
	}
	var scratch store.Rule
	r := op.RuleFor(&scratch)
	units := op.Cost * r.Unit
	free := room(r, units, r.Cap)
	if op.Def.Algorithm == store.Concurrency {
		free = r.Cap - units
	}
	args := []any{op.Key, c.ID, units, free, c.TTL, op.Cost, rand.Int64N(1 << 48)}
	if spread(r) {
		args = append(args, gridOf(r.Origin, r.Every))
	}
	args = s.withClock(args)
	var row store.State
	var now, last int64
	for range 2 {
		if err = s.db.QueryRow(ctx, e.hold, args...).Scan(&row.Used, &row.TS, &now, &last); !errors.Is(err, pgx.ErrNoRows) {
			break
		}
		inserted, err := s.db.Exec(ctx, insertEmptySQL, []int32{e.id}, []int32{int32(op.Def.Number)}, []string{op.Key}) //nolint:gosec // the column has 32 bits
		if err != nil {
			return false, storeError(err, true)
		}
		if inserted.RowsAffected() == 0 { // there is a row
			return false, nil
		}
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows), codeOf(err) == codeUnique: // a hold with this id exists
		return false, nil
	case err != nil:
		return false, storeError(err, true)
	}
	c.Expires, c.Repeated = now+c.TTL, false
	grant(g, r, op.Cost, row, now)
	if op.Def.Algorithm == store.Concurrency {
		op.Reset = max(c.Expires, last) - now
	}
	return true, nil
}

// settlePlain settles a hold of one key to at most what it took, by one statement. It
// returns false if it has done nothing.
func (s functions) settlePlain(ctx context.Context, g *store.Group) (done bool, err error) {
	c := g.Hold
	if c.Verb != store.SettleHold || len(c.Costs) > 1 || !s.autocommit() {
		return false, nil
	}
	var cost *int64
	if len(c.Costs) == 1 {
		cost = &c.Costs[0]
	}
	var id int32
	var version rowVersion
	var now, expires int64
	var row store.State
	var last *int64
	op := store.Op{}
	err = s.db.QueryRow(ctx, settleSQL(s.clock != nil), s.withClock([]any{c.ID, cost})...).Scan(&id, &op.Key, &op.Takes, &version, &op.Cost, &now, &row.Used, &row.TS, &expires, &last)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || settledMeanwhile(err):
		return false, nil
	case err != nil:
		return false, storeError(err, true)
	}
	g.Ops, g.Allowed, g.Reserved, c.Expires, c.Repeated = nil, true, false, expires, false
	if op.Def = s.limits.byID(id); op.Def == nil && s.loadForCall(ctx) == nil { // defined since the limits were read
		op.Def = s.limits.byID(id)
	}
	if op.Def == nil {
		return true, nil
	}
	g.Ops = []store.Op{op}
	if op.Def.Number != uint32(version) {
		g.Ops[0].Answer = store.Answer{Allowed: true, Granted: op.Cost}
		return true, nil
	}
	var scratch store.Rule
	grant(g, g.Ops[0].RuleFor(&scratch), op.Cost, row, now)
	if op.Def.Algorithm == store.Concurrency {
		g.Ops[0].Reset = 0
		if last != nil {
			g.Ops[0].Reset = max(*last-now, 0)
		}
	}
	return true, nil
}

// settledMeanwhile reports whether settleSQL undid itself.
func settledMeanwhile(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeInvalidText && strings.Contains(pg.Message, abortedSettle)
}
