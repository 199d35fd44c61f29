package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/store"
)

// maxTakeAllKeys is the largest number of keys in a group that takeAll charges.
const maxTakeAllKeys = 4

// maxCombinations bounds the combinations of limits that have a takeAll
// statement, and with it the prepared statements of each connection. Groups
// with other combinations are decided by set.sql.
const maxCombinations = 128

// A combination is the limits of a takeAll statement, in the order of their
// ids.
type combination [maxTakeAllKeys]*entry

// combinations holds the takeAll statements by combination. When it is full,
// the statements of changed limits are dropped.
type combinations struct {
	mu  sync.RWMutex
	sql map[combination]string
}

// takeAll charges every bucket of a group, or none, with a single statement
// that has one UPDATE for each bucket. The statement succeeds only if every row
// exists and has room. Otherwise, and if one of the keys was refused recently,
// set.sql decides the group.
func (s *Store) takeAll(ctx context.Context, g *store.Group, known []*entry) error {
	var parts [maxTakeAllKeys]takeAllRow
	n := s.takeAllRows(g, known, parts[:])
	if sql := s.combos.statement(parts[:n], s.limits); sql != "" {
		err := s.execTakeAll(ctx, sql, g, parts[:n])
		if err == nil {
			return nil
		}
		if !errors.Is(err, pgx.ErrNoRows) && !abortedCharge(err) {
			return storeError(err, true)
		}
	}
	err := s.decideSetOrFunction(ctx, g, known)
	for i := range g.Ops {
		if op := &g.Ops[i]; err == nil && known[i].plain { // for a leaky bucket, refused means that calls have to wait
			s.refused.note(known[i].id, op.Key, !op.Allowed)
		}
	}
	return err
}

// A takeAllRow is a bucket that takeAll charges.
type takeAllRow struct {
	*entry
	op            *store.Op
	rule          *store.Rule
	scratch       store.Rule
	tokens, bound int64
	used, ts      int64 // after the charge
}

// takeAllRows fills in the buckets of a group in the order of limit and key. It
// returns 0 if takeAll cannot decide the group.
func (s *Store) takeAllRows(g *store.Group, known []*entry, parts []takeAllRow) int {
	if len(g.Ops) > len(parts) || !s.autocommit() || special(g) {
		return 0
	}
	for i := range g.Ops {
		p := &parts[i]
		p.entry, p.op = known[i], &g.Ops[i]
		if p.plain {
			p.tokens, p.bound = fullCost(p.op)
		}
		if p.tokens == 0 || takesLess(g, p.op) || s.overridden.of(p.entry, p.op.Key) != nil || s.refused.has(p.id, p.op.Key) || p.newKeys.mostlyNew() && !s.seen.has(p.id, p.op.Key) {
			return 0
		}
	}
	parts = parts[:len(g.Ops)]
	slices.SortFunc(parts, func(x, y takeAllRow) int {
		if x.id != y.id {
			return int(x.id) - int(y.id)
		}
		return strings.Compare(x.op.Key, y.op.Key)
	})
	for i := range parts {
		p := &parts[i]
		if p.rule = p.op.RuleFor(&p.scratch); i > 0 && parts[i-1].id == p.id && parts[i-1].op.Key == p.op.Key {
			return 0
		}
	}
	return len(parts)
}

// execTakeAll runs the statement. If a charge does not fit, nothing is charged
// and the error is pgx.ErrNoRows or one for which abortedCharge is true.
func (s *Store) execTakeAll(ctx context.Context, sql string, g *store.Group, parts []takeAllRow) error {
	args, row := make([]any, 0, 4*maxTakeAllKeys+1), make([]any, 0, 2*maxTakeAllKeys+1)
	for i := range parts {
		p := &parts[i]
		units := p.tokens * p.rule.Unit
		args = append(args, p.op.Key, units, room(p.rule, units, p.bound))
		if spread(p.rule) {
			args = append(args, gridOf(p.rule.Origin, p.rule.Every))
		}
		row = append(row, &p.used, &p.ts)
	}
	var now instant
	if err := s.db.QueryRow(ctx, sql, s.withClock(args)...).Scan(append(row, &now)...); err != nil {
		return err
	}
	for i := range parts {
		p := &parts[i]
		fillGranted(p.op, p.rule, p.tokens, store.State{Used: p.used, TS: p.ts}, int64(now))
		if !s.seen.has(p.id, p.op.Key) {
			s.noteSeen(p.entry, p.op.Key, false)
		}
	}
	g.Allowed, g.Reserved = true, false
	return nil
}

// statement returns the statement of a combination of limits, or "" if there is
// no room for another statement.
func (p *combinations) statement(parts []takeAllRow, l *limits) string {
	if len(parts) == 0 {
		return ""
	}
	var of combination
	for i := range parts {
		of[i] = parts[i].entry
	}
	p.mu.RLock()
	sql, ok := p.sql[of]
	p.mu.RUnlock()
	if ok {
		return sql
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sql) >= maxCombinations {
		entries := *l.entries.Load()
		for of := range p.sql {
			if slices.ContainsFunc(of[:], func(e *entry) bool { return e != nil && entries[e.def.Name] != e }) {
				delete(p.sql, of)
			}
		}
	}
	if len(p.sql) >= maxCombinations {
		return ""
	}
	if p.sql == nil {
		p.sql = map[combination]string{}
	}
	p.sql[of] = takeAllSQL(of[:len(parts)], l.s.clock != nil)
	return p.sql[of]
}

// takeAllSQL returns a statement that charges one row of each limit, or none.
// The first UPDATE runs only if, in the snapshot, the charges fit all other
// rows; each later UPDATE runs only after the one before it has charged. So
// rows are locked in order, and a refusal locks nothing and uses no transaction
// id. If a row changed after the snapshot and no longer has room, an error
// rolls back the earlier charges.
func takeAllSQL(of []*entry, testClock bool) string {
	now, seen, params := stmtNow, "statement_timestamp()", 0
	for _, e := range of {
		if params += 3; spread(&e.def.Rule) {
			params++
		}
	}
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
		seen = now
	}
	params = 0
	param := func(kind string) string {
		params++
		return fmt.Sprintf("$%d::%s", params, kind)
	}
	charges := make([]charge, len(of))
	for i, e := range of {
		key, units, room := param("text"), param("bigint"), param("bigint")
		grid := sqlexpr.Int(gridOf(e.def.Rule.Origin, e.def.Rule.Every))
		if spread(&e.def.Rule) {
			grid = sqlexpr.Op(param("bigint"))
		}
		charges[i] = chargeSQL(e.id, e.def, now, grid, key, units, room)
	}
	var with, columns, from strings.Builder
	for i, c := range charges {
		join, also := "with", ""
		if i == 0 {
			for _, other := range charges[1:] {
				also += "\n    and (select true from dipwell.buckets b where " + other.where + ")"
			}
		} else {
			join, also = ",", fmt.Sprintf(" and (select true from a%d)", i-1)
		}
		fmt.Fprintf(&with, "%s a%d as (update dipwell.buckets b set %s\n    where %s%s\n    returning b.used, b.ts)", join, i, c.set, c.where, also)
		switch i {
		case 0:
			columns.WriteString("a0.used, a0.ts, ")
			from.WriteString("a0")
		case len(charges) - 1:
			fmt.Fprintf(&columns, "coalesce(a%[1]d.used, ('%[2]s' || a0.ts)::bigint), a%[1]d.ts, ", i, abortedChargeText)
			fmt.Fprintf(&from, " left join a%d on true", i)
		default:
			fmt.Fprintf(&columns, "a%[1]d.used, a%[1]d.ts, ", i)
			fmt.Fprintf(&from, " left join a%d on true", i)
		}
	}
	return fmt.Sprintf("%s\nselect %s%s from %s", &with, &columns, seen, &from)
}

// abortedChargeText is in the error, and therefore in the server's log, if
// another transaction emptied a bucket while the statement waited for its lock.
const abortedChargeText = "dipwell: a bucket has changed; nothing was charged, and the call is retried; at "

// abortedCharge reports whether a takeAll statement rolled itself back.
func abortedCharge(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeInvalidText && strings.Contains(pg.Message, abortedChargeText)
}
