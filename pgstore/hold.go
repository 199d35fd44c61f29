package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/store"
)

// heldColumns are the columns of dipwell_internal.held that readHeld scans.
const heldColumns = `h.allowed, h.never, h.shadow, h.granted, h.remaining, h.retry, h.reset, h.used, h.ts, h.version, coalesce(h.bound, false),
    h.limit_id, h.key, h.takes, h.cost, coalesce(h.expires, 0), h.repeated, coalesce(h.plan, ''), h.row_plan, h.row_override`

// Holds in full of one limit go through the public functions, which are faster than
// makeHoldSQL and settleHoldSQL but do not return which plan or override decided. For a
// limit that has overrides, holdOneSQL and settleOneSQL do nothing and return no rows.
const (
	holdOneSQL = `with l as materialized (select x.id, x.name from dipwell.limits x where x.name = $1::text and x.overridden is not true)
select h.allowed, h.never, false, h.granted, h.remaining, coalesce(dipwell_internal.micros(h.retry_after), 0), dipwell_internal.micros(h.reset_after),
    null::bigint, null::bigint, null::int, not h.allowed and not h.never and dipwell_internal.has_live_hold(l.id, coalesce($2::text, ''), dipwell_internal.now_us()), 0, '', 1, $3::bigint, coalesce(dipwell_internal.micros(h.expires - timestamptz 'epoch'), 0), h.repeated, '', null::text, null::jsonb
from l cross join lateral dipwell.hold(l.name, $2::text, $3::bigint, $4::bigint * interval '1 microsecond', $5::text) h`
	makeHoldSQL  = `select ` + heldColumns + ` from dipwell_internal.hold_group($1::int[], $2::text[], $3::bigint[], $4::int[], $5::text, $6::bigint, $7::bigint, $8::text[], $9::bigint[]) h`
	settleOneSQL = `with p as materialized (select x.* from dipwell.hold_parts x where x.id = $1::text and x.part = 1 and x.parts = 1
    and not exists (select from dipwell.limits l where l.id = x.limit_id and l.overridden))
select h.allowed, h.never, false, h.granted, h.remaining, 0, dipwell_internal.micros(h.reset_after),
    null::bigint, null::bigint, null::int, false, p.limit_id, p.key, p.takes, coalesce($2::bigint, p.tokens), p.expires, h.repeated, coalesce(p.plan, ''), null::text, null::jsonb
from p cross join lateral dipwell.settle(p.id, $2::bigint) h`
	settleHoldSQL = `select ` + heldColumns + ` from dipwell_internal.settle_group($1::text, $2::bigint[], $3::bigint) h`
	extendHoldSQL = `select ` + heldColumns + ` from dipwell_internal.extend_group($1::text, $2::bigint, $3::bigint) h`
	keyHoldsSQL   = `select p.id, p.tokens, p.expires from dipwell.hold_parts p
where p.limit_id = $1 and p.key = $2 and p.live and p.expires > coalesce($3::bigint, dipwell_internal.now_us()) order by p.expires, p.id`
)

// A held is the answer for one limit and key of a hold.
type held struct {
	store.Answer
	used, ts *int64
	version  *rowVersion
	id       int32
	key      string
	takes    uint16
	cost     int64
	expires  int64
	repeated bool
	plan     string // named by the call
	decided  *string
	override []byte
}

func readHeld(rows pgx.Rows) (all []held, err error) {
	var h held
	_, err = pgx.ForEachRow(rows, []any{&h.Allowed, &h.Never, &h.Shadow, &h.Granted, &h.Remaining, &h.Retry, &h.Reset, &h.used, &h.ts, &h.version, &h.Bound,
		&h.id, &h.key, &h.takes, &h.cost, &h.expires, &h.repeated, &h.plan, &h.decided, &h.override}, func() error {
		all = append(all, h)
		return nil
	})
	return all, err
}

func (s functions) askHeld(ctx context.Context, sql string, args ...any) ([]held, error) {
	rows, err := s.db.Query(ctx, sql, args...)
	var all []held
	if err == nil {
		all, err = readHeld(rows)
	}
	return all, holdError(err)
}

// hold makes a hold.
func (s functions) hold(ctx context.Context, g *store.Group, known []*entry) error {
	c := g.Hold
	if err := core.CheckHold(c, g.Ops); err != nil {
		return err
	}
	n := len(g.Ops)
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Takes == 0 { // the ops are the takes
			op.Takes = 1 << i
		}
	}
	if done, err := s.plainHold(ctx, g, known[0]); done || err != nil {
		return err
	}
	ids, keys, costs, takes := make([]int32, n), make([]string, n), make([]int64, n), make([]int32, n)
	plans, floors := make([]*string, n), make([]int64, n)
	for i := range g.Ops {
		op := &g.Ops[i]
		ids[i], keys[i], costs[i], takes[i] = known[i].id, op.Key, op.Cost, int32(op.Takes)
		if floors[i] = op.Floor; op.Def.Plan != "" {
			plans[i] = &op.Def.Plan
		}
	}
	var all []held
	var err error
	if op := &g.Ops[0]; n == 1 && s.clock == nil && op.Takes == 1 && op.Cost > 0 && op.Def.Mode == store.Enforce && !known[0].def.Overridden && op.Def.Parent == "" && op.Def.Plan == "" && op.Floor == 0 {
		all, err = s.askHeld(ctx, holdOneSQL, op.Def.Name, keyOrNull(op.Key), op.Cost, c.TTL, c.ID)
		if err == nil && len(all) > 0 && all[0].Allowed && op.Def.Algorithm == store.Concurrency && s.autocommit() {
			s.made.add(c.ID, madeHold{id: known[0].id, number: op.Def.Number, limit: op.Def.Name, key: op.Key, tokens: op.Cost})
		}
	}
	if err == nil && len(all) == 0 {
		all, err = s.askHeld(ctx, makeHoldSQL, ids, keys, costs, takes, c.ID, c.TTL, s.testNow(), plans, floors)
	}
	switch {
	case err != nil:
		return err
	case len(all) < n:
		return store.ErrStaleDefinition // a limit was dropped
	}
	g.Allowed, g.Reserved, c.Expires, c.Repeated = true, false, all[0].expires, all[0].repeated
	for i, h := range all {
		h.answer(&g.Ops[i])
		g.Allowed = g.Allowed && h.Allowed
		s.refused.note(known[i].id, g.Ops[i].Key, !h.Allowed)
	}
	return nil
}

func keyOrNull(key string) *string {
	if key == "" {
		return nil
	}
	return &key
}

// answer sets the answer of an op, and Def to the definition that decided it. If that is
// not known, Used and TS are left unset.
func (h *held) answer(op *store.Op) {
	known := false
	if h.version != nil {
		known = setDecider(op, uint32(*h.version), h.decided, h.override)
	}
	op.Answer = h.Answer
	if known && h.ts != nil {
		op.Used, op.TS = *h.used, *h.ts
	}
}

// settle settles or extends a hold.
func (s functions) settle(ctx context.Context, g *store.Group) error {
	c := g.Hold
	if err := core.CheckHold(c, nil); err != nil {
		return err
	}
	for i, cost := range c.Costs {
		if cost < 0 || cost > store.MaxInt {
			return &store.FieldError{Field: costField(len(c.Costs), i), Reason: fmt.Sprintf("%d is not between 0 and 2^53-1", cost)}
		}
	}
	if done, err := s.plainSettle(ctx, g); done || err != nil {
		return err
	}
	var all []held
	var err error
	switch {
	case c.Verb == store.ExtendHold:
		all, err = s.askHeld(ctx, extendHoldSQL, c.ID, c.TTL, s.testNow())
	case s.clock == nil && len(c.Costs) < 2:
		var cost *int64
		if len(c.Costs) == 1 {
			cost = &c.Costs[0]
		}
		if all, err = s.askHeld(ctx, settleOneSQL, c.ID, cost); err != nil || len(all) > 0 {
			break
		}
		fallthrough
	default:
		all, err = s.askHeld(ctx, settleHoldSQL, c.ID, c.Costs, s.testNow())
	}
	if err != nil {
		return err
	}
	g.Ops, g.Allowed, g.Reserved, c.Repeated = nil, true, false, false
	for _, h := range all {
		c.Expires, c.Repeated = h.expires, h.repeated
		def := s.limits.byID(h.id)
		if def == nil && s.loadForCall(ctx) == nil { // defined since the limits were read
			def = s.limits.byID(h.id)
		}
		if def != nil {
			if plan := def.WithPlan(h.plan); plan != nil {
				def = plan
			}
			op := store.Op{Def: def, Key: h.key, Takes: h.takes, Cost: h.cost}
			h.answer(&op)
			g.Ops = append(g.Ops, op)
		}
	}
	return nil
}

// keyHolds returns the live holds of a key.
func (s functions) keyHolds(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	var known [1]*entry
	g := store.Group{Ops: []store.Op{{Def: d.Base(), Key: key}}}
	if err := s.resolve(ctx, &g, known[:]); err != nil {
		return nil, err
	}
	rows, err := s.db.Query(ctx, keyHoldsSQL, known[0].id, key, s.testNow())
	if err != nil {
		return nil, storeError(err, false)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[store.KeyHold])
	return list, storeError(err, false)
}

// costField returns the name of the cost of take i, in a call of n takes.
func costField(n, i int) string {
	if n == 1 {
		return "cost"
	}
	return fmt.Sprintf("costs[%d]", i)
}

// holdError returns the error of a call about a hold.
func holdError(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.ConstraintName != "" {
		_, reason, _ := strings.Cut(pg.Message, ": ")
		switch pg.Code {
		case "P0002":
			return store.ErrUnknownHold
		case "55000":
			return store.ErrHoldConflict
		case "22023":
			field, n := pg.ConstraintName, 0
			if _, err := fmt.Sscanf(field, "costs[%d]", &n); err == nil { // SQL counts them from 1
				field = costField(n+1, n-1)
			}
			return &store.FieldError{Field: field, Reason: reason}
		}
	}
	return storeError(err, true)
}
