package main

import (
	"context"
	"embed"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/bench/internal/load"
)

//go:embed sql
var sqlFiles embed.FS

func sqlFile(name string) string {
	return strings.TrimSpace(string(must(sqlFiles.ReadFile("sql/" + name))))
}

// Every contender enforces 300 a second with a burst so large that each call is
// allowed. The files in sql/ have the same numbers.
const (
	perSecond = 300
	burst     = 1_000_000_000
)

// Names of the designs of sql/ in the tables. rivals.all appends ", unlogged"
// or ", logged" to (a).
const (
	cronName    = "(a) refill each second"
	procName    = "(b) PL/pgSQL, SERIALIZABLE"
	txName      = "(c) BEGIN … COMMIT"
	counterName = "bare counter upsert"
	pgxName     = "bare counter upsert through pgx"
	floorName   = "bare counter in a PL/pgSQL function"
)

// rivals are the designs in sql/, in a database of their own, with tables of
// one durability.
type rivals struct {
	dsn    string
	tables string
}

// newRivals makes a database with the rivals' tables, which have a row for each
// key as dipwell's have.
func (b *bench) newRivals(ctx context.Context, database string, tables string, keys, tokens int) (rivals, error) {
	dsn, err := b.create(ctx, database)
	if err != nil {
		return rivals{}, err
	}
	return rivals{dsn, tables}, withConn(ctx, dsn, func(c *conn) error {
		for _, name := range []string{"cron", "proc", "tx", "counter"} {
			if _, err := c.Exec(ctx, designSchema(name, tables)).ReadAll(); err != nil {
				return fmt.Errorf("%s.sql: %w", name, err)
			}
		}
		for _, name := range []string{"proc", "tx", "counter"} {
			if err := c.once(ctx, sqlFile(name+"_fill.sql"), strconv.Itoa(keys)); err != nil {
				return err
			}
		}
		return c.once(ctx, sqlFile("cron_fill.sql"), strconv.Itoa(tokens), strconv.Itoa(keys))
	})
}

// designSchema returns the schema of a design. The schema files make unlogged tables.
func designSchema(name string, tables string) string {
	sql := sqlFile(name + ".sql")
	if tables == "logged" {
		return strings.ReplaceAll(sql, "create unlogged table", "create table")
	}
	return sql
}

func (r rivals) all() []contender { return []contender{r.cron(), r.proc(), r.tx(), r.counter()} }

// cron is design (a), whose refill job runs only during its own rounds.
func (r rivals) cron() contender {
	return contender{name: cronName, open: r.oneStatement(sqlFile("cron_take.sql"), ""), during: r.refill,
		script: "cron.pgbench", database: r.dsn}
}

func (r rivals) proc() contender {
	return contender{name: procName, open: r.oneStatement(sqlFile("proc_take.sql"), serializable),
		script: "proc.pgbench", database: r.dsn, settings: "-c default_transaction_isolation=serializable"}
}

const serializable = "set default_transaction_isolation = serializable"

func (r rivals) counter() contender {
	return contender{name: counterName, open: r.oneStatement(sqlFile("counter_take.sql"), ""), script: "counter.pgbench", database: r.dsn}
}

// counterPGX is the counter through the driver that Limiter.Take uses.
func (r rivals) counterPGX() contender {
	return contender{name: pgxName, open: func(ctx context.Context) (load.Session, error) {
		c, err := pgx.Connect(ctx, r.dsn)
		if err != nil {
			return load.Session{}, err
		}
		sql := sqlFile("counter_take.sql")
		return load.Session{Close: func() { closeConn(c) }, Take: func(ctx context.Context, key string) (bool, error) {
			var n int64
			err := c.QueryRow(ctx, sql, key).Scan(&n)
			return err == nil, err
		}}, nil
	}}
}

// oneStatement opens sessions that run one prepared statement per call. The
// statement's first column has the tokens left, or whether the call is allowed.
// A result without a row is a refusal.
func (r rivals) oneStatement(sql, set string) func(context.Context) (load.Session, error) {
	return func(ctx context.Context) (load.Session, error) {
		c, err := connect(ctx, r.dsn)
		if err != nil {
			return load.Session{}, err
		}
		if set != "" {
			if err := c.once(ctx, set); err != nil {
				return load.Session{}, err
			}
		}
		if err := c.prepare(ctx, "take", sql); err != nil {
			return load.Session{}, err
		}
		return load.Session{Take: c.takeOnce, Close: c.close}, nil
	}
}

func (c *conn) takeOnce(ctx context.Context, key string) (allowed bool, err error) {
	c.params[0] = append(c.params[0][:0], key...)
	row, err := c.row(ctx, "take", c.params[:1])
	return len(row) > 1 || len(row) == 1 && row[0] == 1, err
}

// refill is design (a)'s scheduled job: it runs each second, starting after
// half a second.
func (r rivals) refill(ctx context.Context) error {
	return withConn(ctx, r.dsn, func(c *conn) error {
		if err := c.prepare(ctx, "refill", sqlFile("cron_refill.sql")); err != nil {
			return err
		}
		next := time.NewTimer(time.Second / 2)
		defer next.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-next.C:
				next.Reset(time.Second)
				if _, err := c.row(context.WithoutCancel(ctx), "refill", nil); err != nil {
					return fmt.Errorf("refill: %w", err)
				}
			}
		}
	})
}

func (r rivals) tx() contender {
	return contender{name: txName, script: "tx.pgbench", database: r.dsn, open: func(ctx context.Context) (load.Session, error) {
		c, err := connect(ctx, r.dsn)
		if err != nil {
			return load.Session{}, err
		}
		for name, sql := range map[string]string{"begin": "begin", "insert": sqlFile("tx_insert.sql"),
			"lock": sqlFile("tx_lock.sql"), "store": sqlFile("tx_store.sql"), "commit": "commit"} {
			if err := c.prepare(ctx, name, sql); err != nil {
				return load.Session{}, err
			}
		}
		return load.Session{Take: c.takeInFive, Close: c.close}, nil
	}}
}

// takeInFive is design (c): five statements, with the arithmetic in Go.
func (c *conn) takeInFive(ctx context.Context, key string) (bool, error) {
	p := &c.params // the parameters: key, tokens, time
	nowUS := time.Now().UnixMicro()
	p[0] = append(p[0][:0], key...)
	p[1] = binary.BigEndian.AppendUint64(p[1][:0], uint64(nowUS))
	if _, err := c.row(ctx, "begin", nil); err != nil {
		return false, err
	}
	if _, err := c.row(ctx, "insert", p[:2]); err != nil {
		return false, err
	}
	row, err := c.row(ctx, "lock", p[:1])
	if err != nil {
		return false, err
	}
	tokens, allowed := refilled(row, nowUS)
	p[2] = append(p[2][:0], p[1]...)
	p[1] = binary.BigEndian.AppendUint64(p[1][:0], math.Float64bits(tokens))
	if _, err := c.row(ctx, "store", p[:3]); err != nil {
		return false, err
	}
	_, err = c.row(ctx, "commit", nil)
	return allowed, err
}

// refilled returns the tokens after a take from the locked row, including those
// that have come back.
func refilled(row []byte, nowUS int64) (tokens float64, allowed bool) {
	tokens = math.Float64frombits(binary.BigEndian.Uint64(row))
	since := nowUS - int64(binary.BigEndian.Uint64(row[8:]))
	tokens = min(burst, tokens+float64(max(since, 0))*perSecond/1e6)
	if tokens < 1 {
		return tokens, false
	}
	return tokens - 1, true
}

// conn is a raw connection with prepared statements and binary parameters and
// results: the fastest use of the driver, for every rival.
type conn struct {
	*pgconn.PgConn
	statements map[string]*pgconn.StatementDescription
	params     [3][]byte
	buf        []byte
}

func connect(ctx context.Context, dsn string) (*conn, error) {
	c, err := pgconn.Connect(ctx, dsn)
	return &conn{PgConn: c, statements: map[string]*pgconn.StatementDescription{}}, err
}

func withConn(ctx context.Context, dsn string, do func(*conn) error) error {
	c, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer c.close()
	return do(c)
}

func (c *conn) close() {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	c.Close(ctx)
}

func (c *conn) prepare(ctx context.Context, name, sql string) error {
	s, err := c.Prepare(ctx, name, sql, nil)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", name, err)
	}
	c.statements[name] = s
	return nil
}

var binaryFormat = []int16{1}

// row runs a prepared statement and returns the values of its last row, one
// after the other. The values are valid until the next call.
func (c *conn) row(ctx context.Context, name string, params [][]byte) ([]byte, error) {
	r := c.ExecStatement(ctx, c.statements[name], params, binaryFormat, binaryFormat)
	c.buf = c.buf[:0]
	for r.NextRow() {
		c.buf = c.buf[:0]
		for _, v := range r.Values() {
			c.buf = append(c.buf, v...)
		}
	}
	_, err := r.Close()
	return c.buf, err
}

// once runs a statement with text parameters.
func (c *conn) once(ctx context.Context, sql string, args ...string) error {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	_, err := c.ExecParams(ctx, sql, params, nil, nil, nil).Close()
	return err
}

// text runs a statement and returns the first column of its first row.
func (c *conn) text(ctx context.Context, sql string) (string, error) {
	r := c.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
	if r.Err != nil {
		return "", r.Err
	}
	if len(r.Rows) == 0 {
		return "", fmt.Errorf("no row from %q", sql)
	}
	return string(r.Rows[0][0]), nil
}
