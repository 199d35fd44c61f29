package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/store"
)

// decidePipelined decides groups that need the database function, with one
// statement and one transaction for each. No transaction holds a lock while the
// next one runs, so the order of keys cannot cause a deadlock. The first group
// of each key goes in one round trip and the others in a second one, so that
// only one group waits for a locked row. It returns the groups that are still
// undecided.
func (s *Store) decidePipelined(ctx context.Context, groups []*store.Group) []*store.Group {
	first, others := firstOfEach(groups)
	rest := s.sendPipeline(ctx, first)
	if len(others) > 0 {
		var locked lockedRows
		for _, g := range first {
			locked.note(g)
		}
		rest = append(rest, s.sendPipeline(ctx, locked.fail(others))...)
	}
	return rest
}

// sendPipeline decides groups in one round trip. It returns those that it
// cannot decide, or that must be retried.
func (s *Store) sendPipeline(ctx context.Context, groups []*store.Group) (rest []*store.Group) {
	if len(groups) < 2 {
		return groups
	}
	conn, release := s.pipelineConn(ctx)
	if conn == nil {
		return groups
	}
	defer release()
	statement, err := conn.Prepare(ctx, decideSQL, decideSQL)
	if err != nil {
		return groups
	}
	p := conn.PgConn().StartPipeline(ctx)
	defer func() { _ = p.Close() }()
	var asked []*store.Group
	for _, g := range groups {
		if s.queueDecide(ctx, p, conn.TypeMap(), statement, g) {
			asked = append(asked, g)
		} else {
			rest = append(rest, g)
		}
	}
	err = p.Flush()
	for _, g := range asked {
		if g.Err = err; err == nil {
			g.Err = readPipelined(p, conn, g)
		}
		switch {
		case errors.Is(g.Err, store.ErrStaleDefinition), retryable(g.Err) && s.autocommit():
			rest = append(rest, g)
		case g.Err != nil:
			if conn.IsClosed() {
				err = g.Err // the other groups will not be answered
			}
			g.Err = storeError(g.Err, writes(g))
		}
	}
	return rest
}

// pipelineConn returns a connection for several statements, or nil if
// statements cannot be prepared on it.
func (s *Store) pipelineConn(ctx context.Context) (conn *pgx.Conn, release func()) {
	release = func() {}
	switch db := s.db.(type) {
	case *pgxpool.Pool:
		c, err := db.Acquire(ctx)
		if err != nil {
			return nil, release
		}
		conn, release = c.Conn(), c.Release
	case *pgx.Conn:
		conn = db
	case connected:
		conn = db.Conn()
	default:
		return nil, release
	}
	if conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		release()
		return nil, func() {}
	}
	return conn, release
}

// queueDecide adds the statement of a group to the pipeline. It returns false if the
// group should not be decided by the function.
func (s *Store) queueDecide(ctx context.Context, p *pgconn.Pipeline, types *pgtype.Map, statement *pgconn.StatementDescription, g *store.Group) bool {
	var known [store.MaxTakes]*entry
	if g.Cancel || g.Hold != nil || s.resolve(ctx, g, known[:]) != nil {
		return false
	}
	if op := &g.Ops[0]; op.Def.Algorithm == store.Concurrency || len(g.Ops) == 1 && (op.Verb == store.VerbCheck || op.Verb == store.VerbTake && !op.Def.Rule.Leaky) {
		return false
	}
	var b pgx.ExtendedQueryBuilder
	if b.Build(types, statement, s.decideArgs(g, known[:len(g.Ops)])) != nil {
		return false
	}
	p.SendQueryPrepared(statement.Name, b.ParamValues, b.ParamFormats, b.ResultFormats)
	p.SendPipelineSync()
	return true
}

// readPipelined reads the answers of a group, to the end of its transaction.
func readPipelined(p *pgconn.Pipeline, conn *pgx.Conn, g *store.Group) (failed error) {
	for {
		next, err := p.GetResults()
		switch next := next.(type) {
		case *pgconn.ResultReader:
			err = readDecided(pgx.RowsFromResultReader(conn.TypeMap(), next), g)
		case *pgconn.PipelineSync:
			return failed
		case nil:
			if err == nil {
				err = errConnEnded
			}
		}
		if failed == nil {
			failed = err
		}
		if err != nil && (errors.Is(err, errConnEnded) || conn.IsClosed()) {
			return failed
		}
	}
}

var errConnEnded = errors.New("the connection ended before the answer")

// withCustomPlan adds the option that makes the server plan the statement at each
// execution, because a plan cached while the tables were small may scan all of a table.
// Modes of pgx that do not prepare statements do not need it.
func (s *Store) withCustomPlan(args ...any) []any {
	mode := pgx.QueryExecModeCacheStatement
	switch db := s.db.(type) {
	case *pgxpool.Pool:
		mode = db.Config().ConnConfig.DefaultQueryExecMode
	case *pgx.Conn:
		mode = db.Config().DefaultQueryExecMode
	case connected:
		mode = db.Conn().Config().DefaultQueryExecMode
	}
	if mode != pgx.QueryExecModeCacheStatement {
		return args
	}
	return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
}

// acquire returns a connection for one statement, so that an error before it is known to
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
