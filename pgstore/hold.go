package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// heldColumns are the columns of dipwell_internal.held that readHeld scans.
const heldColumns = `h.allowed, h.never, h.shadow, h.granted, coalesce(h.remaining, 0), h.retry, coalesce(h.reset, 0), h.used, h.ts, h.version, coalesce(h.bound, false),
    h.limit_id, h.key, h.takes, h.cost, coalesce(h.expires, 0), h.repeated, coalesce(h.plan, ''), h.row_plan, h.row_override`

// holdOneSQL and settleOneSQL decide the most common calls about holds, any number of
// them, and return no row for all others. A list is passed through a subquery: if the
// planner could see its length, it would plan each execution again.
const (
	plainColumns = `select true, false, false, h.cost, h.remaining, 0::bigint, h.reset, h.used, h.ts, h.version, false,
    h.limit_id, h.key, 1, h.cost, h.expires, false, '', null::text, null::jsonb, x.i from (select q.i, dipwell_internal.`
	plainRows  = ` offset 0) x cross join lateral (select (x.h).*) h where h.cost is not null`
	holdOneSQL = plainColumns + `hold_one(q.limit_name, q.key, q.cost, q.ttl, q.hold, $6::bigint) as h
    from unnest((select $1::text[]), (select $2::text[]), (select $3::bigint[]), (select $4::bigint[]), (select $5::text[])) with ordinality q (limit_name, key, cost, ttl, hold, i)` + plainRows
	settleOneSQL = plainColumns + `settle_one(q.hold, q.cost, $3::bigint) as h
    from unnest((select $1::text[]), (select $2::bigint[])) with ordinality q (hold, cost, i)` + plainRows

	makeHoldSQL   = `select ` + heldColumns + `, 1 from dipwell_internal.hold_group($1::int[], $2::text[], $3::bigint[], $4::int[], $5::text, $6::bigint, $7::bigint, $8::text[], $9::bigint[]) h`
	settleHoldSQL = `select ` + heldColumns + `, 1 from dipwell_internal.settle_group($1::text, $2::bigint[], $3::bigint) h`
	extendHoldSQL = `select ` + heldColumns + `, 1 from dipwell_internal.extend_group($1::text, $2::bigint, $3::bigint) h`
	keyHoldsSQL   = `select p.id, p.tokens, p.expires from dipwell.hold_parts p
where p.limit_id = $1 and p.key = $2 and p.live and p.expires > coalesce($3::bigint, dipwell_internal.now_us()) order by p.expires, p.id`
)

// A held is the answer for one limit and key of a hold.
type held struct {
	store.Answer
	used, ts *int64
	version  *rowVersion // nil if the limit of the part was dropped
	id       int32
	key      string
	takes    uint16
	cost     int64
	expires  int64
	repeated bool
	plan     string // plan that the call named
	decided  *string
	override []byte
	place    int // position of the call in its list, from 1
}

func readHeld(rows pgx.Rows) (all []held, err error) {
	var h held
	_, err = pgx.ForEachRow(rows, []any{&h.Allowed, &h.Never, &h.Shadow, &h.Granted, &h.Remaining, &h.Retry, &h.Reset, &h.used, &h.ts, &h.version, &h.Bound,
		&h.id, &h.key, &h.takes, &h.cost, &h.expires, &h.repeated, &h.plan, &h.decided, &h.override, &h.place}, func() error {
		all = append(all, h)
		return nil
	})
	return all, err
}

func (s functions) askHeld(ctx context.Context, q statement) ([]held, error) {
	rows, err := s.db.Query(ctx, q.sql, q.args...)
	var all []held
	if err == nil {
		all, err = readHeld(rows)
	}
	return all, callError(err, true)
}

// A statement is SQL with its parameters.
type statement struct {
	sql  string
	args []any
}

// heldStatement returns the statement that decides any hold, settle or extend.
func (s functions) heldStatement(g *store.Group, known []*entry) statement {
	c := g.Hold
	switch c.Verb {
	case store.ExtendHold:
		return statement{extendHoldSQL, []any{c.ID, c.TTL, s.testNow()}}
	case store.SettleHold:
		return statement{settleHoldSQL, []any{c.ID, c.Costs, s.testNow()}}
	}
	n := len(g.Ops)
	ids, keys, costs, takes := make([]int32, n), make([]string, n), make([]int64, n), make([]int32, n)
	plans, floors := make([]*string, n), make([]int64, n)
	for i := range g.Ops {
		op := &g.Ops[i]
		ids[i], keys[i], costs[i], takes[i] = known[i].id, op.Key, op.Cost, int32(op.Takes)
		if floors[i] = op.Floor; op.Def.Plan != "" {
			plans[i] = &op.Def.Plan
		}
	}
	return statement{makeHoldSQL, []any{ids, keys, costs, takes, c.ID, c.TTL, s.testNow(), plans, floors}}
}

// mayBePlain reports whether holdOneSQL or settleOneSQL may decide a call.
func (s functions) mayBePlain(g *store.Group, known []*entry) bool {
	switch g.Hold.Verb {
	case store.ExtendHold:
		return false
	case store.SettleHold:
		return len(g.Hold.Costs) <= 1
	}
	op := &g.Ops[0]
	return len(g.Ops) == 1 && op.Takes == 1 && op.Floor == 0 && op.Def.Plan == "" && s.overridden.of(known[0], op.Key) == nil
}

// plainStatement returns the statement that makes plain holds, or settles holds, with less
// work than heldStatement.
func (s functions) plainStatement(groups []*store.Group) statement {
	n := len(groups)
	limits, keys, ids, costs, ttls := make([]string, n), make([]*string, n), make([]string, n), make([]*int64, n), make([]int64, n)
	for i, g := range groups {
		c := g.Hold
		if ids[i], ttls[i] = c.ID, c.TTL; c.Verb == store.MakeHold {
			op := &g.Ops[0]
			limits[i], keys[i], costs[i] = op.Def.Name, nullIf(op.Key, ""), &op.Cost
		} else if len(c.Costs) > 0 {
			costs[i] = &c.Costs[0]
		}
	}
	if groups[0].Settles() {
		return statement{settleOneSQL, []any{ids, costs, s.testNow()}}
	}
	return statement{holdOneSQL, []any{limits, keys, costs, ttls, ids, s.testNow()}}
}

// hold makes, settles or extends a hold.
func (s functions) hold(ctx context.Context, g *store.Group, known []*entry) error {
	if err := checkHold(g); err != nil {
		return err
	}
	if s.mayBePlain(g, known) {
		if answers, err := s.askHeld(ctx, s.plainStatement([]*store.Group{g})); err != nil || len(answers) > 0 {
			return s.answerHeld(ctx, g, answers, err)
		}
	}
	answers, err := s.askHeld(ctx, s.heldStatement(g, known))
	return s.answerHeld(ctx, g, answers, err)
}

// checkHold makes the checks of the functions, and sets to which takes the ops belong.
func checkHold(g *store.Group) error {
	if err := g.Hold.Check(g.Ops); err != nil {
		return err
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Takes == 0 { // each op is then a take
			op.Takes = 1 << i
		}
	}
	return nil
}

// answerHeld fills in the answers of a group, or returns err.
func (s functions) answerHeld(ctx context.Context, g *store.Group, all []held, err error) error {
	c := g.Hold
	switch {
	case err != nil:
		return err
	case !g.Settles() && len(all) < len(g.Ops):
		return store.ErrStaleDefinition // a limit was dropped meanwhile
	case g.Settles():
		g.Ops = nil
	}
	g.Allowed, g.Reserved, c.Repeated = true, false, false
	for i, h := range all {
		c.Expires, c.Repeated = h.expires, h.repeated
		if g.Settles() {
			if op, ok := s.settledOp(ctx, &h); ok {
				g.Ops = append(g.Ops, op)
			}
			continue
		}
		h.answer(&g.Ops[i])
		g.Allowed = g.Allowed && h.Allowed
	}
	return nil
}

// settledOp returns the op of a part of a hold, unless its limit was dropped or is unknown.
func (s functions) settledOp(ctx context.Context, h *held) (op store.Op, ok bool) {
	if h.version == nil {
		return op, false
	}
	def := s.limits.byID(h.id)
	if def == nil && s.loadForCall(ctx) == nil { // the limit may have been defined since the limits were read
		def = s.limits.byID(h.id)
	}
	if def == nil {
		return op, false
	}
	if plan := def.WithPlan(h.plan); plan != nil {
		def = plan
	}
	op = store.Op{Def: def, Key: h.key, Takes: h.takes, Cost: h.cost}
	h.answer(&op)
	return op, true
}

// answer sets the answer of an op, and Def to the definition that decided it. If that
// definition is not known, Used and TS are left unset.
func (h *held) answer(op *store.Op) {
	known := setDecider(op, uint32(*h.version), h.decided, h.override)
	op.Answer = h.Answer
	if known && h.ts != nil {
		op.Used, op.TS = *h.used, *h.ts
	}
}

// keyHolds returns the live holds of a key.
func (s functions) keyHolds(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	e, err := s.entry(ctx, d)
	if err != nil {
		return nil, err
	}
	return list(ctx, s.db, pgx.RowToStructByPos[store.KeyHold], keyHoldsSQL, e.id, key, s.testNow())
}
