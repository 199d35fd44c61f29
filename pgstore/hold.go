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

const (
	makeHoldSQL   = `select ` + heldColumns + ` from dipwell_internal.hold_group($1::int[], $2::text[], $3::bigint[], $4::int[], $5::text, $6::bigint, $7::bigint, $8::text[], $9::bigint[]) h`
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
	if err := c.Check(g.Ops); err != nil {
		return err
	}
	n := len(g.Ops)
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Takes == 0 { // the ops are the takes
			op.Takes = 1 << i
		}
	}
	if done, err := s.makePlainHold(ctx, g, known[0]); done || err != nil {
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
	all, err := s.askHeld(ctx, makeHoldSQL, ids, keys, costs, takes, c.ID, c.TTL, s.testNow(), plans, floors)
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
	}
	return nil
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
	if err := c.Check(nil); err != nil {
		return err
	}
	for i, cost := range c.Costs {
		if cost < 0 || cost > store.MaxInt {
			return &store.FieldError{Field: costField(len(c.Costs), i), Reason: fmt.Sprintf("%d is not between 0 and 2^53-1", cost)}
		}
	}
	if done, err := s.settlePlain(ctx, g); done || err != nil {
		return err
	}
	var all []held
	var err error
	if c.Verb == store.ExtendHold {
		all, err = s.askHeld(ctx, extendHoldSQL, c.ID, c.TTL, s.testNow())
	} else {
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
