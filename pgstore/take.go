package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// The time of a statement is statement_timestamp(), which is constant within a
// statement and costs least. After a wait for a lock that time is in the past,
// which grants nothing extra, because a row's ts never moves back. An inserted
// row needs a time after the snapshot, because a full row may have been swept
// at a time later than the start of the statement.
const (
	stmtNow = "(date_part('epoch', statement_timestamp()) * 1000000)::bigint"
	readNow = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
)

// statements are the SQL texts for one version of a limit. They contain its
// numbers as literals instead of parameters, because each expression costs
// start-up time in every execution.
type statements struct {
	take               rowUpdate
	takeOverridden     rowUpdate // for a base definition whose keys may have overrides
	takeMany, readMany string
}

// newStatements returns the statements of a version. With a test's clock, the
// time is the last parameter of each statement.
func newStatements(id int32, d *store.Definition, testClock bool) (s statements) {
	r := &d.Rule
	grid, params := gridOrParam(r, 3)
	now := timeSQL(stmtNow, testClock, params+1)
	setReadSQL(&s, id, d.Overridden, testClock)
	if !d.Even() {
		return s
	}
	unlessLocked := ""
	if d.Shards > 1 {
		unlessLocked = fmt.Sprintf(" and b.key = (select x.key from dipwell.buckets x where x.limit_id = %d and x.key = $1::text for no key update skip locked)", id)
	}
	name, ticks := fmt.Sprintf("dipwell_take_%dp%d", id, terms.IndexOf(d.Number)), ticksSQL(r, now, grid)
	s.take = rowUpdate{name, takeSQL(id, strconv.Itoa(int(d.Number)), now, leftSQL(r, ticks), fitsSQL(r, ticks, "$3::bigint")+unlessLocked)}
	if d.Overridden { // what an override can change is a parameter
		params := 7
		if r.Every > 1 {
			params = 8
		}
		now := timeSQL(stmtNow, testClock, params+1)
		ticks, add, enough := ticksSQL(r, now, "$8::bigint"), "$4::bigint", "$7::bigint"
		s.takeOverridden = rowUpdate{name + "o", takeSQL(id, "$5::bigint", now, leftAfterSQL(ticks, add, enough),
			fmt.Sprintf("%s < $6::bigint and b.used - %s <= $3::bigint", now, returnedSQL(ticks, add, enough)))}
	}
	newManySQL(&s, id, d, testClock)
	return s
}

// takeSQL returns a statement that charges the row of the key $1 with $2 units, if it is of a
// version and the units fit. left is how many units are still used at the time now.
func takeSQL(id int32, version, now, left, fits string) string {
	return fmt.Sprintf(`update dipwell.buckets b set used = %[1]s + $2::bigint, ts = greatest(%[2]s, b.ts), low = %[3]s
where b.limit_id = %[4]d and b.key = $1::text and b.version = %[5]s and (b.due <= %[2]s) is not true and %[6]s
returning b.used, b.ts, %[2]s`, left, now, lowSQL(left), id, version, fits)
}

// timeSQL returns the time of a statement: now, or with a test's clock parameter n.
func timeSQL(now string, testClock bool, n int) string {
	if testClock {
		return fmt.Sprintf("$%d::bigint", n)
	}
	return now
}

func (s *Store) withClock(args []any) []any {
	if s.clock != nil {
		args = append(args, s.clock())
	}
	return args
}

// readOnly reports whether an op, of a limit that is not leaky, can change nothing.
func readOnly(op *store.Op) bool {
	switch op.Verb {
	case store.VerbCheck:
		return true
	case store.VerbTake:
		return op.Cost == 0 || op.Cost > op.Def.Rule.Burst-op.Floor
	}
	return op.Cost == 0 && op.Verb != store.VerbReset
}

// fullCost returns the tokens that an op of a plain limit takes if it is
// granted in full and at once, and the limit of used units after that. fullCost
// returns 0 tokens if the op changes nothing or is decided by other statements.
func fullCost(op *store.Op) (tokens, bound int64) {
	r := &op.Def.Rule
	switch {
	case op.Verb == store.VerbTakeUpTo:
		return min(op.Cost, r.Burst), r.Cap
	case (op.Verb == store.VerbTake || op.Verb == store.VerbReserve) && op.Cost <= r.Burst-op.Floor:
		return op.Cost, r.Cap - op.Floor*r.Unit
	case op.Verb == store.VerbCharge && op.Cost <= r.MaxCharge && op.Cost <= r.MaxUsed/r.Unit:
		return op.Cost, r.MaxUsed
	}
	return 0, 0
}

// gotFullCost reports whether an op that was decided in Go was granted in full
// and at once.
func gotFullCost(op *store.Op) bool {
	tokens, _ := fullCost(op)
	return tokens > 0 && op.Allowed && !op.Shadow && op.Delay == 0 && op.Granted == tokens
}

// take decides a Take, TakeUpTo, Reserve or Charge that may be granted in full.
// A conditional UPDATE answers it if the row exists and has room, and if its limit has
// shards, is not locked. If not, the row is read.
func (s *Store) take(ctx context.Context, g *store.Group, e *entry) error {
	op := &g.Ops[0]
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	tokens, bound := fullCost(op)
	units := tokens * rule.Unit
	numbers := append(make([]int64, 0, 4), units, bound-units)
	if spread(rule) {
		numbers = append(numbers, gridOf(rule.Origin, rule.Every))
	}
	row, now, err := s.update(ctx, e.take, op.Key, numbers...)
	switch {
	case err == nil:
		grant(g, rule, tokens, row, now)
		return nil
	case !errors.Is(err, pgx.ErrNoRows):
		return storeError(err, true)
	case g.NoWait:
		return s.decideUnlessLocked(ctx, g, e, rule, bound-units)
	}
	return s.decideRow(ctx, g, e)
}

// decideUnlessLocked decides a take that charged nothing, and does not wait for its row. If
// the row has at most room units in use, another transaction has locked it, or had.
func (s *Store) decideUnlessLocked(ctx context.Context, g *store.Group, e *entry, rule *store.Rule, room int64) error {
	var i, now int64
	var row store.State
	var listed bool
	err := s.db.QueryRow(ctx, e.readMany, s.withClock([]any{[]string{g.Ops[0].Key}})...).Scan(&i, &row.Used, &row.TS, (*rowVersion)(&row.Version), &listed, &now)
	switch {
	case err != nil:
		return storeError(err, false)
	case row.Version == e.def.Number && rule.Used(row, now) <= room:
		return store.ErrLocked
	}
	return s.decide(ctx, g, []*entry{e})
}

// decideRow decides an op by its row, as in a batch: a refusal writes nothing, and a row that is
// missing is inserted.
func (s *Store) decideRow(ctx context.Context, g *store.Group, e *entry) error {
	op := &g.Ops[0]
	row := &pendingRow{RowGroups: &store.RowGroups{Key: op.Key, Groups: []*store.Group{g}}}
	row.rule = *op.RuleFor(&row.rule)
	p := &limitBatch{entry: e, toRead: []*pendingRow{row}, alone: true}
	_, p.bound = fullCost(op)
	def, asked := op.Def, op.Asked
	g.Err = nil
	rest := append(s.decideLimit(ctx, p), p.others...)
	if len(p.writeBack) > 0 {
		rest = s.set(ctx, nil, p.writeBack...)
	}
	if len(rest) == 0 || errors.Is(g.Err, store.ErrStaleDefinition) {
		return g.Err
	}
	op.Def, op.Asked = def, asked // the row that was read may be under another definition
	return s.decide(ctx, g, []*entry{e})
}

// grant fills in the answer of an op whose tokens were charged. row is the
// state after the charge.
func grant(g *store.Group, r *store.Rule, tokens int64, row store.State, now int64) {
	g.Ops[0].Answer = store.Answer{
		Allowed: true, Granted: tokens,
		Remaining: r.Remaining(row.Used, row.TS), Reset: r.TimeToFull(row.Used, row.TS, now),
		Used: row.Used, TS: row.TS,
	}
	g.Allowed, g.Reserved = true, false
}
