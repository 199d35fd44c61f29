package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/store"
)

// maxTogether is how many groups one transaction of a pipeline decides. Other calls wait
// for the rows that it has locked.
const maxTogether = 32

// firstKey returns a key of a group, or "" if only the database knows its keys.
func firstKey(g *store.Group) string {
	if len(g.Ops) == 0 {
		return ""
	}
	return g.Ops[0].Key
}

// A question is a statement of a pipeline.
type question struct {
	statement
	of   []*store.Group // groups that it decides; none: the statement locks their rows
	held []held         // the answers about holds
	err  error          // error in its answer that concerns it alone; the transaction goes on
}

// decidePipelined decides groups that need the functions, in one round trip: one statement
// decides all plain holds of a transaction, another all their settles, and one each other
// group. Before these a statement locks the rows, in the order in which other statements
// lock them. decidePipelined returns the groups that must be decided in another way, or
// again, also those of transactions that the server has rolled back because of one group.
func (s *Store) decidePipelined(ctx context.Context, groups []*store.Group) (rest []*store.Group) {
	if !s.autocommit() {
		return groups
	}
	slices.SortStableFunc(groups, func(a, b *store.Group) int { return cmp.Compare(firstKey(a), firstKey(b)) })
	sent, rest := s.questions(ctx, groups)
	conn, release := s.pipelineConn(ctx)
	if conn == nil || len(groups)-len(rest) < 2 {
		release()
		return groups
	}
	messages, err := s.encode(ctx, conn, sent)
	if err != nil {
		release()
		return groups
	}
	p := conn.PgConn().StartPipeline(ctx)
	for _, of := range messages {
		for _, m := range of {
			p.SendQueryPrepared(m.name, m.ParamValues, m.ParamFormats, m.ResultFormats)
		}
		p.SendPipelineSync()
	}
	err = p.Flush()
	errs := make([]error, len(sent))
	for i, part := range sent {
		if errs[i] = err; err == nil {
			if errs[i] = readTransaction(p, conn, part); errs[i] != nil && conn.IsClosed() {
				err = errs[i] // the other questions will not be answered
			}
		}
	}
	_ = p.Close()
	release()
	for i, part := range sent {
		rolledBack, locked := err == nil && hadNoEffect(errs[i]), codeOf(errs[i]) == codeLocked
		for _, q := range part {
			for j, g := range q.of {
				alone := rolledBack && (!locked || !s.inLane && g.Settles()) // decideUnlocked decides the groups whose rows are free
				if alone || !s.finish(ctx, g, q.heldOf(j), cmp.Or(errs[i], q.err)) {
					rest = append(rest, g)
				}
			}
		}
	}
	return rest
}

// finish sets the answer or the error of a group whose transaction ended with err. finish
// returns false if the group must be decided in another way, or again.
func (s *Store) finish(ctx context.Context, g *store.Group, answers []held, err error) (done bool) {
	switch {
	case err == nil && g.Hold == nil:
		g.Err = nil
		s.noteOverrides(g)
	case err == nil && len(answers) == 0:
		return false
	case err == nil:
		g.Err = functions{s}.answerHeld(ctx, g, answers, nil)
	case errors.Is(err, store.ErrStaleDefinition), retryable(err) && s.autocommit():
		g.Err = err
		return false
	default:
		g.Err = callError(err, writes(g))
	}
	return true
}

// heldOf returns the answers of a question for its group i.
func (q *question) heldOf(i int) (answers []held) {
	for _, h := range q.held {
		if h.place == i+1 {
			answers = append(answers, h)
		}
	}
	return answers
}

// pipelineConn returns a connection for several statements, or nil if
// statements cannot be prepared on it.
func (s *Store) pipelineConn(ctx context.Context) (conn *pgx.Conn, release func()) {
	db, release, err := s.acquire(ctx)
	if err != nil {
		return nil, func() {}
	}
	if conn = connOf(db); conn != nil && conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		conn = nil
	}
	return conn, release
}

// questions returns the statements of the transactions that decide groups, and the groups
// that functions should not decide.
func (s *Store) questions(ctx context.Context, groups []*store.Group) (transactions [][]question, rest []*store.Group) {
	for part := range slices.Chunk(groups, maxTogether) {
		asked := make([]question, 1)
		var holds, settles []*store.Group // plain holds, and plain settles
		for _, g := range part {
			switch q, ok := s.ask(ctx, g); {
			case !ok:
				rest = append(rest, g)
			case q.sql != "":
				asked = append(asked, question{statement: q, of: []*store.Group{g}})
			case g.Settles():
				settles = append(settles, g)
			default:
				holds = append(holds, g)
			}
		}
		for _, of := range [][]*store.Group{holds, settles} {
			if len(of) > 0 {
				asked = append(asked, question{statement: functions{s}.plainStatement(of), of: of})
			}
		}
		if len(asked) > 1 {
			asked[0].statement = s.lockStatement(asked)
			transactions = append(transactions, asked)
		}
	}
	return transactions, rest
}

// ask returns the statement that decides a group, or none if it is a plain hold, which is
// decided together with others.
func (s *Store) ask(ctx context.Context, g *store.Group) (q statement, ok bool) {
	var known [store.MaxTakes]*entry
	switch {
	case g.Cancel, g.Hold != nil && checkHold(g) != nil, g.Settles() && s.hear(ctx) != nil, !g.Settles() && s.resolve(ctx, g, known[:]) != nil:
		return q, false
	case g.Hold != nil:
		for i := range g.Ops {
			if g.Ops[i].Def.CheckVerb(g.Ops[i].Verb, true) != nil {
				return q, false
			}
		}
		if !(functions{s}).mayBePlain(g, known[:]) {
			q = functions{s}.heldStatement(g, known[:])
		}
		return q, true
	}
	// A check in a pipeline would see changes by other groups of its transaction before
	// calls of other transactions do, and calls that cannot change their row need none. Rows of
	// limits with shards are locked in another order.
	if op := &g.Ops[0]; op.Verb == store.VerbCheck || len(g.Ops) == 1 && (op.Cost == 0 || readOnly(op) && !op.Def.Rule.Leaky || op.Def.Mode > store.Shadow) || op.Def.Algorithm == store.Concurrency || takesShard(g) {
		return q, false
	}
	return statement{decideSQL, s.decideArgs(g, known[:len(g.Ops)])}, true
}

// lockRowsSQL locks the rows of groups, in the order in which all statements lock them, and
// inserts full ones where there are none. For holds it looks up the rows by the holds' ids. With
// "exists" the planner may read the whole table.
const lockRowsSQL = `insert into dipwell.buckets as b (used, ts, limit_id, version, key)
select 0, 0, q.limit_id, l.version, q.key
from (select * from unnest((select $1::int[]), (select $2::text[])) x (limit_id, key)
    union select p.limit_id, p.key from unnest((select $3::text[])) h (id)
        cross join lateral (select x.limit_id, x.key from dipwell.hold_parts x where x.id = h.id and coalesce(x.live, false) order by x.part limit 16) p) q
cross join lateral (select y.version from dipwell.limits y where y.id = q.limit_id limit 1) l
where (select true from dipwell.key_overrides o where o.limit_id = q.limit_id and o.key = q.key) is null
    or (select true from dipwell.buckets y where y.limit_id = q.limit_id and y.key = q.key)
order by q.limit_id, q.key collate "C" on conflict (limit_id, key) do update set used = b.used where false`

// A message is a prepared statement with its encoded parameters.
type message struct {
	name string
	pgx.ExtendedQueryBuilder
}

// encode prepares the statements of transactions.
func (s *Store) encode(ctx context.Context, conn *pgx.Conn, transactions [][]question) (messages [][]message, err error) {
	for _, part := range transactions {
		var of []message
		for _, q := range part {
			prepared, err := conn.Prepare(ctx, q.sql, q.sql)
			if err != nil {
				return nil, err
			}
			m := message{name: prepared.Name}
			if err = m.Build(conn.TypeMap(), prepared, q.args); err != nil {
				return nil, err
			}
			of = append(of, m)
		}
		messages = append(messages, of)
	}
	return messages, nil
}

func (s *Store) lockStatement(part []question) statement {
	var ids []int32
	var keys, holds []string
	for _, q := range part {
		for _, g := range q.of {
			if g.Settles() {
				holds = append(holds, g.Hold.ID)
			}
			for i := range g.Ops {
				op := &g.Ops[i]
				if e, err := s.limits.entryOf(op.Def); err == nil && op.Verb != store.VerbCheck {
					ids, keys = append(ids, e.id), append(keys, op.Key)
				}
			}
		}
	}
	return statement{lockRowsSQL, []any{ids, keys, holds}}
}

// readTransaction reads the answers of a transaction's questions, to its end.
func readTransaction(p *pgconn.Pipeline, conn *pgx.Conn, part []question) (failed error) {
	for i := 0; ; {
		next, err := p.GetResults()
		switch next := next.(type) {
		case *pgconn.ResultReader:
			err = part[i].read(pgx.RowsFromResultReader(conn.TypeMap(), next))
			if codeOf(err) == "" && !conn.IsClosed() {
				part[i].err, err = err, nil
			}
			i++
		case *pgconn.PipelineSync:
			return failed
		case nil:
			if err == nil {
				err = errConnEnded
			}
		}
		failed = cmp.Or(failed, err)
		if err != nil && (errors.Is(err, errConnEnded) || conn.IsClosed()) {
			return failed
		}
	}
}

func (q *question) read(rows pgx.Rows) (err error) {
	switch {
	case len(q.of) == 0:
		rows.Close()
		return rows.Err()
	case q.of[0].Hold == nil:
		return readDecided(rows, q.of[0])
	}
	q.held, err = readHeld(rows)
	return err
}

var errConnEnded = errors.New("the connection ended before the answer")

// customPlan is an option that makes the server plan a statement at each execution, because
// a plan cached while the tables were small may scan a whole table. It needs no cache of pgx.
const customPlan = pgx.QueryExecModeExec

// acquire returns a connection for one statement, so that an earlier error is known to
// have sent nothing. Call release when the statement's rows are read.
func (s *Store) acquire(ctx context.Context) (db DB, release func(), err error) {
	pool, ok := s.db.(*pgxpool.Pool)
	if !ok {
		return s.db, func() {}, nil
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, nil, storeError(err, false)
	}
	return c, c.Release, nil
}
