package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// These are the names of dipwell's contenders in the tables.
const (
	statementName = "dipwell's statement"
	takeName      = "Limiter.Take"
	drainedName   = "Limiter.Take, refused"
	pooledName    = "uncoalesced, pool"
	rawName       = "single, raw connections"
	coalescedName = "coalesced"
)

const poolConns = 32 // as many connections as the most clients of a single decision have

const (
	apiLimit     = "api"     // the limit that every contender enforces
	drainedLimit = "drained" // a key of it stays empty for a day once a token was taken
)

var limits = []dipwell.Limit{
	{Name: apiLimit, Rate: perSecond, Period: time.Second, Burst: burst},
	{Name: drainedLimit, Rate: 1, Period: 24 * time.Hour, Burst: 1},
}

// A schema is dipwell's schema in a database of its own.
type schema struct {
	dsn     string
	pool    *pgxpool.Pool
	store   *pgstore.Store
	limiter *dipwell.Limiter
	lanes   []*pgxpool.Pool
	shared  *dipwell.Limiter // through coalesce
	stop    func() error
}

// newSchema makes a database with dipwell's schema and, in both limits, a
// row for each key of the benchmark.
func (b *bench) newSchema(ctx context.Context, database string, tables string) (*schema, error) {
	w, err := b.newSchemaRows(ctx, database, tables, b.keys)
	if err == nil {
		err = w.fill(ctx, drainedLimit, b.keys)
	}
	return w, err
}

// newSchemaRows is newSchema with another number of keys in the limit apiLimit.
func (b *bench) newSchemaRows(ctx context.Context, database string, tables string, rows int) (*schema, error) {
	dsn, err := b.create(ctx, database)
	if err != nil {
		return nil, err
	}
	w := &schema{dsn: dsn}
	if err = w.open(ctx, tables); err == nil {
		err = w.openLanes(ctx, b.lanes)
	}
	if err == nil {
		err = w.fill(ctx, apiLimit, rows)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("%s: %w", database, err)
	}
	return w, nil
}

func (w *schema) open(ctx context.Context, tables string) (err error) {
	if w.pool, err = pool(ctx, w.dsn, poolConns); err != nil {
		return err
	}
	if _, err = pgstore.Migrate(ctx, w.pool, pgstore.MigrateOptions{Tables: tables}); err != nil {
		return err
	}
	if w.store, err = pgstore.New(ctx, w.pool, pgstore.Config{}); err != nil {
		return err
	}
	if w.limiter, err = dipwell.New(w.store, limits...); err != nil {
		return err
	}
	return nil
}

func (w *schema) openLanes(ctx context.Context, n int) error {
	var stores []store.Store
	for range n {
		p, err := pool(ctx, w.dsn, 1)
		if err != nil {
			return err
		}
		w.lanes = append(w.lanes, p)
		stores = append(stores, w.store.With(p))
	}
	shared, err := coalesce.New(store.Lanes{Stores: stores}, coalesce.Config{})
	if err != nil {
		return err
	}
	w.stop, w.shared = shared.Close, w.limiter.With(shared)
	return nil
}

func pool(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns, c.MinConns = conns, 0
	return pgxpool.NewWithConfig(ctx, c)
}

// fill makes a row with one token used for each key. Only autovacuum
// analyzes the tables, as for users.
func (w *schema) fill(ctx context.Context, limit string, rows int) error {
	return withConn(ctx, w.dsn, func(c *conn) error {
		return c.once(ctx, sqlFile("dipwell_fill.sql"), limit, strconv.Itoa(rows))
	})
}

func (w *schema) close() {
	if w.stop != nil {
		_ = w.stop()
	}
	if w.store != nil {
		_ = w.store.Close()
	}
	for _, p := range append(w.lanes, w.pool) {
		if p != nil {
			p.Close()
		}
	}
}

// take is Limiter.Take with a connection of its own for each client.
func (w *schema) take() contender {
	return contender{name: takeName, open: w.single(apiLimit), ours: true}
}

// drained is the contender take on buckets that are empty for a day.
func (w *schema) drained() contender {
	return contender{name: drainedName, open: w.single(drainedLimit), ours: true}
}

func (w *schema) single(limit string) func(context.Context) (load.Session, error) {
	return w.onConn(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.Take(ctx, limit, key, 1)
		return d.Allowed, err
	})
}

// onConn opens sessions that have a connection each.
func (w *schema) onConn(call caller) func(context.Context) (load.Session, error) {
	return func(ctx context.Context) (load.Session, error) {
		conn, err := pgx.Connect(ctx, w.dsn)
		if err != nil {
			return load.Session{}, err
		}
		l := w.limiter.With(w.store.With(conn))
		return load.Session{Close: func() { closeConn(conn) }, Take: func(ctx context.Context, key string) (bool, error) {
			return call(ctx, l, conn, key)
		}}, nil
	}
}

// onPool opens sessions that share the pool, as the goroutines of a program do.
func (w *schema) onPool(call caller) func(context.Context) (load.Session, error) {
	return func(context.Context) (load.Session, error) {
		return load.Session{Close: func() {}, Take: func(ctx context.Context, key string) (bool, error) {
			return call(ctx, w.limiter, nil, key)
		}}, nil
	}
}

// pooled is Limiter.Take with all sessions on one pool.
func (w *schema) pooled() contender {
	return contender{name: pooledName, open: w.all(w.limiter), ours: true}
}

// coalesced is the contender pooled with a coalescing store in front.
func (w *schema) coalesced() contender {
	return contender{name: coalescedName, open: w.all(w.shared), ours: true}
}

func (w *schema) all(l *dipwell.Limiter) func(context.Context) (load.Session, error) {
	return func(context.Context) (load.Session, error) {
		return load.Session{Take: call(l, apiLimit), Close: func() {}}, nil
	}
}

func call(l *dipwell.Limiter, limit string) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, key string) (bool, error) {
		d, err := l.Take(ctx, limit, key, 1)
		return d.Allowed, err
	}
}

func closeConn(c *pgx.Conn) {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	_ = c.Close(ctx) // the benchmark does not use the connection again
}

// statement sends the statement of Limiter.Take for an allowed call, through
// the code that sends the rivals' statements.
func (w *schema) statement() contender {
	return contender{name: statementName, ours: true, open: func(ctx context.Context) (load.Session, error) {
		sql, params, err := w.recordStatement(ctx)
		if err != nil {
			return load.Session{}, err
		}
		c, err := connect(ctx, w.dsn)
		if err != nil {
			return load.Session{}, err
		}
		if err := c.prepare(ctx, "take", sql); err != nil {
			return load.Session{}, err
		}
		return load.Session{Close: c.close, Take: func(ctx context.Context, key string) (bool, error) {
			params[0] = append(params[0][:0], key...)
			row, err := c.row(ctx, "take", params)
			return len(row) > 0, err
		}}, nil
	}}
}

// recordStatement makes one call and returns the statement that it sent, with
// the parameters in binary, the key first.
func (w *schema) recordStatement(ctx context.Context) (sql string, params [][]byte, err error) {
	config, err := pgx.ParseConfig(w.dsn)
	if err != nil {
		return "", nil, err
	}
	sent := &recorder{}
	config.Tracer = sent
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", nil, err
	}
	defer closeConn(conn)
	if _, err := w.limiter.With(w.store.With(conn)).Take(ctx, apiLimit, load.Key(0), 1); err != nil {
		return "", nil, err
	}
	if len(sent.sql) != 1 {
		return "", nil, fmt.Errorf("an admitted call on a known key sent %d statements", len(sent.sql))
	}
	for _, arg := range sent.args {
		switch v := arg.(type) {
		case string:
			params = append(params, []byte(v))
		case int64:
			params = append(params, binary.BigEndian.AppendUint64(nil, uint64(v)))
		default:
			return "", nil, fmt.Errorf("the statement has a parameter of type %T", arg)
		}
	}
	if len(params) == 0 || string(params[0]) != load.Key(0) {
		return "", nil, errors.New("the statement's first parameter is not the key")
	}
	return sent.sql[0], params, nil
}

// recorder is a tracer that records statements and their parameters.
type recorder struct {
	sql  []string
	args []any
}

func (e *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	e.sql, e.args = append(e.sql, q.SQL), q.Args
	return ctx
}

func (e *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
