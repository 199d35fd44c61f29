package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/merge"
	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/internal/sqlstep"
	"github.com/dipwell/dipwell/store"
)

// A key of a limit with shards has one row, like any other, until several connections
// want it at the same time. Then its used units are spread over rows of the table shards,
// each of which follows an equal part of the rule, and a Take locks one of them. The
// function dipwell_internal.take_shards spreads them. dipwell_internal.decide, which
// decides everything but a plain Take, gathers them into one row again. A key of a
// calendar limit always has one row, and so does any key while a plan or an override
// decides it.

// spreads reports whether keys of a definition may have rows in the table shards.
func spreads(d *store.Definition) bool {
	return d.Shards > 1 && d.Rule.Every > 0 && !d.Rule.Leaky && d.Base() == d
}

// setShardsSQL sets the statements of a limit with shards. They are for calls that are
// transactions of their own, so that a lock taken in vain is released at once.
//
// takeShard takes from one shard whose advisory lock is free. It prefers the one with
// more tokens of two: the connection's home shard and $3. If neither will do, it takes
// from the shard with the most tokens. It returns the used units of the whole key, as far
// as they are committed. Parameters: key, units, the other shard, the grid if origins are
// spread, the time of a test's clock.
//
// takeMine takes from shard $3 if its lock is free, and also returns the used units of
// that shard. It costs two thirds of takeShard.
//
// takeWhole is take, but it does not wait for the row.
func setShardsSQL(s *statements, id int32, d *store.Definition, c charge, now, seen string, grid sqlexpr.Expr) {
	r, n, name := &d.Rule, d.Shards, "'"+strings.ReplaceAll(d.Name, "'", "''")+"'"
	left := shardLeftSQL(r, n, "b", now, grid)
	// Materialized, so that it is evaluated once and locks one shard, whatever the plan
	// is.
	s.takeShard = fmt.Sprintf(`with p as materialized (select x.shard, x.whole - x.used as others from (
    select o.shard, o.used, o.used + $2::bigint - %[3]s as over, (sum(o.used) over ())::bigint as whole from (
        select s.shard, %[4]s as used from dipwell.shards s where s.limit_id = %[5]d and s.key = $1::text and s.version = %[6]d order by s.shard offset 0) o
    order by o.shard in (pg_backend_pid() %% %[7]d, $3::bigint) desc, over offset 0) x
    where x.over <= 0 and pg_try_advisory_xact_lock(hashtextextended($1::text, hashtext(%[10]s)) + x.shard + 1) limit 1)
update dipwell.shards b set used = %[1]s + $2::bigint, ts = greatest(%[2]s, b.ts)
from p where b.limit_id = %[5]d and b.key = $1::text and b.version = %[6]d and b.shard = p.shard and %[1]s + $2::bigint - %[8]s <= 0
returning b.used + p.others, b.ts, %[9]s`,
		left, now, part(r.Burst, r.Unit, n, "o"), shardLeftSQL(r, n, "s", now, grid), id, d.Number, n, part(r.Burst, r.Unit, n, "b"), seen, name)
	s.takeMine = fmt.Sprintf(`update dipwell.shards b set used = %[1]s + $2::bigint, ts = greatest(%[2]s, b.ts)
where b.limit_id = %[3]d and b.key = $1::text and b.version = %[4]d and b.shard = $3::bigint and %[1]s + $2::bigint - %[5]s <= 0
    and pg_try_advisory_xact_lock(hashtextextended($1::text, hashtext(%[8]s)) + b.shard + 1)
returning b.used + (select coalesce(sum(o.used), 0)::bigint from (
    select %[6]s as used from dipwell.shards s where s.limit_id = %[3]d and s.key = $1::text and s.version = %[4]d and s.shard <> $3::bigint order by s.shard offset 0) o), b.ts, %[7]s, b.used`,
		left, now, id, d.Number, part(r.Burst, r.Unit, n, "b"), shardLeftSQL(r, n, "s", now, grid), seen, name)
	s.takeWhole = fmt.Sprintf(`update dipwell.buckets b set %s
where %s and b.key = (select x.key from dipwell.buckets x where x.limit_id = %d and x.key = $1::text for update skip locked)
returning b.used, b.ts, %s`, c.set, c.where, id, seen)
}

// part returns an expression for a shard's part of whole tokens, in units. If n does not
// divide whole, the first shards get one token more.
func part(whole, unit, n int64, row string) string {
	less, more := whole/n*unit, whole%n
	if more == 0 {
		return fmt.Sprint(less)
	}
	return fmt.Sprintf("case when %s.shard < %d then %d else %d end", row, more, less+unit, less)
}

// shardLeftSQL returns the used units of a shard at now. A shard never uses more than its
// part of the burst.
func shardLeftSQL(r *store.Rule, n int64, row, now string, grid sqlexpr.Expr) string {
	enough := sqlexpr.Unbounded
	if least := (store.Rule{Every: r.Every, Add: r.Add/n + 1}); !ticksNeedNoClamp(&least) {
		enough = sqlexpr.Int((r.Burst/n+1)*r.Unit/(r.Add/n) + 1)
	}
	left := func(add int64) string {
		return sqlstep.LeftAfter(sqlexpr.Op(row+".used"), ticksSQL(r, row+".ts", now, grid), sqlexpr.Int(add), enough).String()
	}
	if r.Add%n == 0 {
		return left(r.Add / n)
	}
	return fmt.Sprintf("case when %s.shard < %d then %s else %s end", row, r.Add%n, left(r.Add/n+1), left(r.Add/n))
}

// takeSharded decides a Take that may be granted in full and whose limit has shards.
func (s functions) takeSharded(ctx context.Context, g *store.Group, e *entry) error {
	op := &g.Ops[0]
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	scattered := s.scattered.has(e.id, op.Key)
	if s.autocommit() && !s.refused.has(e.id, op.Key) {
		var w waiter
		if scattered {
			w = s.newWaiter(g, e)
			w.shard = true
		}
		at, err := s.gates.enter(ctx, e.id, op.Key, int(op.Def.Shards), shardWait, w)
		if err != nil || at.decided {
			return err
		}
		defer at.leave()
		row, now, err := s.takeShard(ctx, e, op, rule, scattered, at)
		if err == nil {
			grant(g, rule, op.Cost, row, now)
			return nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return storeError(err, true)
		}
	}
	var outcome int
	var row store.State
	var now int64
	err := s.db.QueryRow(ctx, takeShardsSQL, op.Def.Name, op.Key, op.Cost, scattered, e.id, int64(op.Def.Number), s.testNow()).
		Scan(&outcome, &row.Used, &row.TS, &now, &scattered)
	if err != nil {
		return storeError(err, true)
	}
	s.scattered.note(e.id, op.Key, outcome > 0 && scattered)
	s.refused.note(e.id, op.Key, outcome == shardsRefused)
	row.Version = op.Def.Number
	switch outcome {
	case shardsTaken:
		grant(g, rule, op.Cost, row, now)
		return nil
	case shardsRefused:
		_, _, err = op.Step(now, row, false)
		g.Allowed, g.Reserved = op.Allowed, false
		return err
	}
	return s.decide(ctx, g, []*entry{e})
}

// takeShardsSQL calls the function that takes from a key with shards.
const takeShardsSQL = `select outcome, coalesce(used, 0), coalesce(ts, 0), coalesce(n, 0), coalesce(spread, false)
from dipwell_internal.take_shards($1, $2, $3, $4, $5, $6::int, $7)`

// Outcomes of dipwell_internal.take_shards. With 0 the call is left to decide.
const (
	shardsTaken   = 1
	shardsRefused = 2
)

// takeShard takes from a shard, or from the row of a key without shards. The error is
// pgx.ErrNoRows if no row has room and is unlocked.
func (s functions) takeShard(ctx context.Context, e *entry, op *store.Op, r *store.Rule, scattered bool, at seat) (row store.State, now int64, err error) {
	units, n := op.Cost*r.Unit, op.Def.Shards
	var found [3]int64
	switch {
	case !scattered:
		err = s.ask(ctx, rawKeyOf(e, formTakeWhole), e.takeWhole, s.takeArgs(op.Key, r, units, room(r, units, r.Cap)), found[:])
	case at.gate != nil:
		if row, now, err = s.takeMine(ctx, e, op, r, units, at); !errors.Is(err, pgx.ErrNoRows) {
			return row, now, err
		}
		fallthrough
	default:
		err = s.ask(ctx, rawKeyOf(e, formTakeShard), e.takeShard, s.takeArgs(op.Key, r, units, rand.Int64N(n)), found[:])
	}
	return store.State{Used: found[0], TS: found[1]}, found[2], err
}

// takeMine takes from the shard of a seat. The row is that of the whole key. The error is
// pgx.ErrNoRows if the shard has no room or its lock is taken.
func (s *Store) takeMine(ctx context.Context, e *entry, op *store.Op, r *store.Rule, units int64, at seat) (row store.State, now int64, err error) {
	var found [4]int64
	err = s.ask(ctx, rawKeyOf(e, formTakeMine), e.takeMine, s.takeArgs(op.Key, r, units, int64(at.n)), found[:])
	if err == nil {
		n := op.Def.Shards
		at.note(algebra.DueIn(found[1], algebra.ComeBack(found[3], r.Every, max(r.Add/n, 1))), int(n))
	}
	return store.State{Used: found[0], TS: found[1]}, found[2], err
}

// takeShardSum charges the sum of as many groups as fit into one empty shard, if it fits
// into the shard of the seat.
func (s *Store) takeShardSum(ctx context.Context, groups []*store.Group, e *entry, at seat) error {
	op := &groups[0].Ops[0]
	row := &pendingRow{Row: &merge.Row{Groups: groups}}
	row.rule = *op.RuleFor(&row.rule)
	if !row.prepare(len(groups), row.rule.Burst/op.Def.Shards*row.rule.Unit) {
		return nil
	}
	state, now, err := s.takeMine(ctx, e, op, &row.rule, row.units, at)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return storeError(err, true)
	}
	row.answerCharged(state, now)
	return nil
}

// applyScattered decides the groups of a batch that take from keys with shards, one by
// one. It returns a batch of the others, and their places in b.
func (s functions) applyScattered(ctx context.Context, b *store.Batch) (rest *store.Batch, places []int) {
	if s.scattered.slots.Load() == nil {
		return b, nil
	}
	known := *s.limits.entries.Load()
	var scattered []*store.Group
	for i := range b.Groups {
		g := &b.Groups[i]
		if len(g.Ops) == 1 && g.Hold == nil && g.Ops[0].Verb == store.VerbTake {
			if e := known[g.Ops[0].Def.Name]; e != nil && e.def.Shards > 1 && s.scattered.has(e.id, g.Ops[0].Key) {
				scattered = append(scattered, g)
				continue
			}
		}
		places = append(places, i)
	}
	if scattered == nil {
		return b, nil
	}
	s.decideOneByOne(ctx, scattered)
	rest = &store.Batch{}
	for _, i := range places {
		rest.Groups = append(rest.Groups, b.Groups[i])
	}
	return rest, places
}
