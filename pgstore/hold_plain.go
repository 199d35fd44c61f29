package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/recent"
	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/internal/sqlstep"
	"github.com/dipwell/dipwell/store"
)

// setHoldSQL sets the statements that make and settle a hold of one key, in full. Each
// charges the bucket first and then writes hold_parts, the order in which the functions
// lock rows too. hold and settle are for a bucket without other records, holdBeside and
// settleBeside for a bucket all of whose other records are holds. A concurrency limit has
// no lows and needs only the first two. holdFirst inserts the bucket.
//
// "coalesce(p.live, false)" keeps the planner from using the index of live holds. In a
// plan made while the table is small, a scan of that whole index looks as cheap as a
// lookup by id. The search for another live hold of the key begins with the last to
// expire: holds that were settled stay in the index until a vacuum, and most of them
// expire first.
//
// Conditions name a column even if they are about parameters alone, as "p.part = (select
// 1 from b)": for others the planner adds a node that filters once, which costs as much
// as a look-up.
//
// Parameters of hold: key, id, units, room, ttl, tokens, mark, then the grid if origins
// are spread. Parameters of settle: key, id, cost, units to give back, mark, number and
// the grid. Those of a concurrency limit have no mark and number.
func setHoldSQL(s *statements, id int32, d *store.Definition, testClock bool) {
	r := &d.Rule
	now, at, seen := stmtNow, readNow, "statement_timestamp()"
	slots := d.Algorithm == store.Concurrency
	params, settleParams, grid := 7, 6, sqlexpr.Int(gridOf(r.Origin, r.Every))
	settleGrid := grid
	switch {
	case slots:
		params, settleParams = 6, 4
	case spread(r):
		params, settleParams, grid, settleGrid = 8, 7, sqlexpr.Op("$8::bigint"), sqlexpr.Op("$7::bigint")
	}
	settleNow := now
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
		settleNow = fmt.Sprintf("$%d::bigint", settleParams+1)
		at, seen = now, settleNow
	}
	// The hold begins at the time when the bucket is locked: the wait for the lock may be
	// longer than the ttl.
	made := func(charge, number, mark, also string) string {
		return fmt.Sprintf(`with b as (%[1]s
    returning b.used, b.ts, %[2]s as number, %[3]s as mark, %[4]s as at),
i as (insert into dipwell.hold_parts (expires, due, ttl, units, tokens, number, mark, limit_id, version, part, parts, takes, live, free, keep, reset, settled, id, key)
    select b.at + $5::bigint, b.at + $5::bigint, $5::bigint, $3::bigint, $6::bigint, b.number, b.mark, %[5]d, %[6]d, 1, 1, 1, true, false, %[7]t, false, false, $2::text, $1::text from b)
select b.used, b.ts, b.at, b.number, %[8]s from b`, charge, number, mark, at, id, d.Number, d.KeepExpired, also)
	}
	hold := func(set, where, number, mark, also string) string {
		return made(fmt.Sprintf("update dipwell.buckets b set %s\n    where %s", set, where), number, mark, also)
	}
	first := func(lows, number, mark, also string) string {
		unused := "$4::bigint is not null"
		if !slots {
			unused += " and $7::bigint is not null"
		}
		if spread(r) {
			unused += " and $8::bigint is not null"
		}
		return made(fmt.Sprintf(`insert into dipwell.buckets as b (used, ts, limit_id, version, key, lows)
    select $3::bigint, %s, %d, %d, $1::text, %s where %s
    on conflict do nothing`, at, id, d.Number, lows, unused), number, mark, also)
	}
	settle := func(set, where, units, returning, also string) string {
		return fmt.Sprintf(`with b as (update dipwell.buckets b set %[1]s
    where b.limit_id = %[2]d and b.key = $1::text and b.version = %[3]d%[4]s
    returning b.used, b.ts%[9]s),
p as (update dipwell.hold_parts p set live = false, settled = true, cost = $3::bigint, due = %[5]s + greatest(p.ttl, 60000000)
    where p.id = $2::text and p.part = (select 1 from b) and p.parts = 1 and coalesce(p.live, false) and p.version = %[3]d and p.units = %[10]s and p.expires > %[5]s
    returning p.expires)
select b.used, b.ts, %[6]s, coalesce((select p.expires from p), ('%[7]s' || b.ts)::bigint), %[8]s from b`, set, id, d.Number, where, settleNow, seen, abortedChargeText, also, returning, units)
	}
	if slots {
		last := func(own string) string { // when the last other hold expires
			return fmt.Sprintf("case when b.used = %s then 0 else coalesce((select x.expires from dipwell.hold_parts x where x.limit_id = %d and x.key = $1::text and x.live and x.id <> $2::text order by x.expires desc limit 1), 0) end", own, id)
		}
		s.hold = hold(fmt.Sprintf("used = b.used + $3::bigint, ts = greatest(%s, b.ts)", now),
			fmt.Sprintf("b.limit_id = %d and b.key = $1::text and b.version = %d and b.used <= $4::bigint", id, d.Number), "0::bigint", "0::bigint", last("$3::bigint"))
		s.settle = settle(fmt.Sprintf("used = greatest(b.used - $4::bigint, 0), ts = greatest(%s, b.ts)", settleNow), "", "$4::bigint", "", last("0"))
		s.holdFirst = first("null::bigint[]", "0::bigint", "0::bigint", "0::bigint")
		return
	}
	charge := chargeSQL(id, d, now, grid, "$1::text", "$3::bigint", "$4::bigint")
	ticks := ticksSQL(r, "b.ts", now, grid)
	left := leftSQL(r, ticks)
	s.hold = hold(fmt.Sprintf("%s, lows = array[$7::bigint, 2, 1, %s + $3::bigint]", charge.set, left), charge.where, "1::bigint", "$7::bigint", "b.mark")
	s.holdFirst = first("array[$7::bigint, 2, 1, $3::bigint]", "1::bigint", "$7::bigint", "b.mark")
	// Functions, because they see what was committed while the statement waited for the row.
	none := fmt.Sprintf("not dipwell_internal.has_reservation(%d, $1::text)", id)
	s.holdBeside = hold(fmt.Sprintf("%s, lows = %s", charge.set, lowsHoldSQL(left, sqlexpr.Op("$3::bigint"))),
		strings.Replace(charge.where, "b.lows is null", "b.lows[1] + $7::bigint >= 0 and "+none, 1), "b.lows[2] - 1", "b.lows[1]", "b.mark")
	ticks = ticksSQL(r, "b.ts", settleNow, settleGrid)
	left = leftSQL(r, ticks)
	units := fmt.Sprintf("$4::bigint + $3::bigint * %d", r.Unit)
	s.settle = settle(fmt.Sprintf("used = %[1]s - least(%[1]s, $4::bigint, b.lows[4]), ts = greatest(%[2]s, b.ts), lows = null", left, settleNow),
		" and b.lows[1] = $5::bigint and b.lows[2] = 2 and b.lows[2] - $6::bigint = 1", units, "", "0::bigint")
	others := fmt.Sprintf("dipwell_internal.has_other_hold(%d, $1::text, $2::text)", id)
	s.settleBeside = settle(fmt.Sprintf(`(used, ts, lows) = (select z.l[1], greatest(%s, b.ts), case when z.l[1] > 0 and %s then z.l[2:] end
        from (select %s as l from (select %s as used offset 0) u offset 0) z)`,
		settleNow, others, lowsSettleSQL(sqlexpr.Op("u.used"), sqlexpr.Op("$6::bigint"), sqlexpr.Op("$4::bigint")), left), " and b.lows[1] = $5::bigint and "+none, units, ", b.lows is null as free", "b.free::int::bigint")
}

// The most common changes of lows are written as expressions, because a function call
// costs as much as the rest of the statement. Both functions below are for a row b; left
// is its used units after ticks.

// lowsHoldSQL returns the lows of a row after units were taken for a hold. The expression
// handles the common case, in which the last low does not reach the one before it and
// there is room for one more; otherwise it calls the function lows_hold.
func lowsHoldSQL(left, units sqlexpr.Expr) string {
	low, used := sqlstep.Lesser(left, lowAt(0)), sqlstep.Added(left, units)
	return fmt.Sprintf(`case when not (%s) and not (%s) and (cardinality(b.lows) = 4 or not (%s))
        then array[b.lows[1], b.lows[2] + 1] || b.lows[3:cardinality(b.lows) - 1] || array[%s, b.lows[2], %s]
        else dipwell_internal.lows_hold(b.lows, %s, %s) end`,
		sqlstep.IsNone(left), sqlstep.TooMany(sqlexpr.Op("(cardinality(b.lows) / 2)")), sqlstep.Joins(lowAt(1), low),
		low, used, left, used)
}

// lowsSettleSQL returns an array of the used units of a row, followed by its lows, after
// at most units of record number were given back. The expression handles the common case,
// in which the record is in the last entry and that reaches at most the entry before it;
// otherwise it calls the function lows_settle.
func lowsSettleSQL(left, number, units sqlexpr.Expr) string {
	low := sqlstep.Lesser(left, lowAt(0))
	back := sqlstep.Lesser(units, low)
	low = sqlstep.Without(low, back)
	return fmt.Sprintf(`case when %[1]s or %[2]s then %[3]s || b.lows
            when not (%[4]s) or cardinality(b.lows) > 6 and %[5]s then dipwell_internal.lows_settle(b.lows, %[3]s, %[9]s, %[10]s)
            when cardinality(b.lows) = 4 or not (%[6]s) then %[7]s || b.lows[:cardinality(b.lows) - 1] || %[8]s
            else %[7]s || b.lows[:cardinality(b.lows) - 3] || %[8]s end`,
		sqlstep.IsNone(left), sqlstep.IsNone(units), left, sqlstep.Covers(sqlexpr.Op("b.lows[cardinality(b.lows) - 1]"), number),
		sqlstep.Joins(lowAt(2), low), sqlstep.Joins(lowAt(1), low), sqlstep.Without(left, back), low, number, units)
}

// lowAt returns the low of the entry that is before entries from the last.
func lowAt(before int) sqlexpr.Expr {
	at := "cardinality(b.lows)"
	if before > 0 {
		at = fmt.Sprintf("%s - %d", at, 2*before)
	}
	return sqlexpr.Op("b.lows[" + at + "]")
}

// maxMade bounds the holds that a store remembers in each of two generations. A hold
// takes a few hundred bytes.
const maxMade = 1 << 14

// A madeHold is a hold of one key that this store made.
type madeHold struct {
	id                   int32 // of the limit
	number               uint32
	limit, key           string
	tokens, record, mark int64
}

// made remembers the holds of this store, so that one statement can settle them. An entry
// may be outdated, because the statement checks the rows.
type made struct {
	mu    sync.Mutex
	holds recent.Map[string, madeHold]
}

func newMade() *made { return &made{holds: recent.Map[string, madeHold]{Most: maxMade}} }

func (m *made) add(id string, h madeHold) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds.Put(id, h)
}

func (m *made) get(id string) (madeHold, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holds.Get(id)
}

func (m *made) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds.Remove(id)
}

// plainHold makes a hold of one key by one statement, if it takes in full from a row
// under the present version of the limit. It returns false if it has done nothing.
func (s functions) plainHold(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op, c := &g.Ops[0], g.Hold
	if len(g.Ops) > 1 || e.hold == "" || op.Takes != 1 || op.Cost == 0 || op.Cost > op.Def.Rule.Burst || op.Floor > 0 || op.Def != e.def || op.Def.Plan != "" ||
		op.Def.Mode != store.Enforce || !s.autocommit() || s.refused.has(e.id, op.Key) || s.overridden.of(e, op.Key) != nil {
		return false, nil
	}
	var scratch store.Rule
	r := op.RuleFor(&scratch)
	slots := op.Def.Algorithm == store.Concurrency
	h := madeHold{id: e.id, number: e.def.Number, limit: e.def.Name, key: op.Key, tokens: op.Cost}
	units := op.Cost * r.Unit
	free := r.Cap - units
	if !slots {
		h.mark, free = rand.Int64N(1<<48), room(r, units, r.Cap)
	}
	args := []any{op.Key, c.ID, units, free, c.TTL, op.Cost}
	if !slots {
		args = append(args, h.mark)
	}
	tries, locked := []form{formHold}, []form(nil)
	beside, met := !slots && s.listed.has(e.id, op.Key), s.seen.has(e.id, op.Key)
	switch {
	case beside:
		tries, locked = []form{formHoldBeside}, []form{formHoldBeside, formHold}
	case met || e.def.Overridden: // a row must not be inserted: the key may have an override
	case e.newKeys.mostlyNew():
		tries = []form{formHoldFirst, formHold}
	default:
		tries = []form{formHold, formHoldFirst}
	}
	if !slots && !met && !beside {
		locked = []form{formHoldBeside} // the key may have other holds
	}
	f, v, err := s.tryHold(ctx, e, r, args, tries, locked)
	if errors.Is(err, pgx.ErrNoRows) {
		s.listed.note(e.id, op.Key, !beside && !slots) // next time the other statement is tried first
		return false, nil
	}
	if err == nil && !met {
		s.noteSeen(e, op.Key, f == formHoldFirst)
	}
	switch {
	case codeOf(err) == "23505": // a hold with this id exists
		return false, nil
	case err != nil:
		return false, storeError(err, true)
	}
	now := v[2]
	c.Expires, c.Repeated = now+c.TTL, false
	grant(g, r, op.Cost, store.State{Used: v[0], TS: v[1]}, now)
	h.record = v[3]
	if slots {
		op.Reset = max(c.Expires, v[4]) - now
	} else {
		h.mark = v[4]
		s.listed.note(e.id, op.Key, true)
		if f == formHoldBeside {
			s.several.note(e.id, op.Key, true)
		}
	}
	s.made.add(c.ID, h)
	return true, nil
}

// plainSettle settles a hold that plainHold made with one statement, to at most the
// tokens that were held. It returns false if it has done nothing.
func (s functions) plainSettle(ctx context.Context, g *store.Group) (done bool, err error) {
	c := g.Hold
	if c.Verb != store.SettleHold || len(c.Costs) > 1 || !s.autocommit() {
		return false, nil
	}
	h, ok := s.made.get(c.ID)
	e := (*s.limits.entries.Load())[h.limit]
	if !ok || e == nil || e.id != h.id || e.def.Number != h.number {
		return false, nil
	}
	cost, back := h.tokens, int64(0)
	if len(c.Costs) == 1 {
		cost = c.Costs[0]
	}
	slots := e.def.Algorithm == store.Concurrency
	op := store.Op{Def: e.def, Key: h.key, Takes: 1, Cost: cost}
	var scratch store.Rule
	r := op.RuleFor(&scratch)
	switch {
	case slots:
		back = h.tokens
	case cost > h.tokens:
		return false, nil
	default:
		back = (h.tokens - cost) * r.Unit
	}
	tries, locked := []form{formSettle}, []form(nil)
	if !slots {
		locked = []form{formSettleBeside}
		if h.record > 1 || s.several.has(h.id, h.key) {
			tries = locked
		}
	}
	args := []any{h.key, c.ID, cost, back}
	if !slots {
		args = append(args, h.mark, h.record)
	}
	f, v, err := s.tryHold(ctx, e, r, args, tries, locked)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || abortedCharge(err): // the row or the hold has changed
		s.made.forget(c.ID)
		return false, nil
	case err != nil:
		return false, storeError(err, true)
	}
	s.made.forget(c.ID)
	g.Ops = []store.Op{op}
	grant(g, r, cost, store.State{Used: v[0], TS: v[1]}, v[2])
	c.Expires, c.Repeated = v[3], false
	switch {
	case slots:
		g.Ops[0].Reset = max(v[4]-v[2], 0)
	case f == formSettle || v[4] == 1:
		s.listed.note(h.id, h.key, false)
		s.several.note(h.id, h.key, false)
	}
	return true, nil
}

// tryHold runs the statements forms one after the other until one applies to the row as
// it is. It returns that statement and its columns, or pgx.ErrNoRows. The statements
// locked are tried last, in a transaction that locks the row first: then one of them
// applies, even if others have made or ended holds meanwhile.
func (s *Store) tryHold(ctx context.Context, e *entry, r *store.Rule, args []any, forms, locked []form) (f form, v [5]int64, err error) {
	if spread(r) {
		args = append(args, gridOf(r.Origin, r.Every))
	}
	args = s.withClock(args)
	for _, f = range forms {
		if err = s.ask(ctx, rawKeyOf(e, f), e.sqlOf(f), args, v[:]); !errors.Is(err, pgx.ErrNoRows) {
			return f, v, err
		}
	}
	if len(locked) > 0 {
		f, err = s.askLocked(ctx, e, locked, args, v[:])
	}
	return f, v, err
}

const lockRowSQL = "select true from dipwell.buckets where limit_id = $1 and key = $2 for no key update"

// askLocked locks a row and runs several statements, at most one of which applies to the
// row, in one transaction and one round trip. It returns that statement and its columns,
// or pgx.ErrNoRows. Running all of them is safe: formHold applies only to a row without
// lows, and formHoldBeside always leaves lows.
func (s *Store) askLocked(ctx context.Context, e *entry, forms []form, args []any, columns []int64) (f form, err error) {
	var b pgx.Batch
	b.Queue(lockRowSQL, e.id, args[0])
	for _, f := range forms {
		b.Queue(e.sqlOf(f), args...)
	}
	found := make([]any, len(columns))
	for i := range columns {
		found[i] = (*instant)(&columns[i])
	}
	answers := s.db.SendBatch(ctx, &b)
	_, err = answers.Exec()
	none := err == nil
	for i := 0; i < len(forms) && none; i++ {
		f, err = forms[i], answers.QueryRow().Scan(found...)
		none = errors.Is(err, pgx.ErrNoRows)
	}
	if end := answers.Close(); err == nil || none && end != nil {
		err = end
	}
	return f, err
}
