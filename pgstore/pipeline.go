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

// inTurn decides groups that need the function: a statement each, and each a
// transaction of its own. None holds a lock while the next one runs, so that no
// order of their keys can deadlock. The first group of each key goes in one
// trip and the others in a second one, so that only one of them waits for a row
// that is locked. It returns the groups that are still to be decided: others,
// and those that are to be asked again.
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

// trips decides groups in one trip, where it can.
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
				err = g.Err // nobody will answer the others
			}
			g.Err = storeError(g.Err, writes(g))
		}
	}
	return rest
}

// conn is a connection for more than one statement, or nil where statements
// cannot be prepared on it.
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

// queue adds a group's statement, if it is one for the function.
func (s *Store) queueDecide(ctx context.Context, p *pgconn.Pipeline, types *pgtype.Map, statement *pgconn.StatementDescription, g *store.Group) bool {
	var known [store.MaxTakes]*entry
	if g.Cancel || s.resolve(ctx, g, known[:]) != nil {
		return false
	}
	if op := &g.Ops[0]; len(g.Ops) == 1 && (op.Verb == store.VerbCheck || op.Verb == store.VerbTake && !op.Def.Rule.Leaky) {
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

// readNext reads a group's answers, up to the end of its transaction.
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

// planned adds to the parameters of a statement that it is to be planned each
// time: a plan that was made while the tables were small may read all of them.
// Modes of pgx that prepare nothing do so anyway.
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
