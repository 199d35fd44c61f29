package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/store"
)

// maxWired bounds the statements of limits that a connection keeps prepared
// beside those in pgx's own cache.
const maxRawStatements = 256

// update sends a version's conditional UPDATE of one row, or one of the INSERTs
// that a first call begins with. It returns the row as the
// statement left it and the statement's clock, or pgx.ErrNoRows.
// Where it can it talks to the connection itself: pgx looks a statement up by its
// text, plans how to encode and to scan each value, and makes a Rows, which
// together is a tenth of a call.
func (s *Store) update(ctx context.Context, e *entry, f form, key string, r *store.Rule, units, third int64) (row store.State, now int64, err error) {
	switch db := s.db.(type) {
	case *pgx.Conn:
		return s.updateRaw(ctx, db, e, f, key, r, units, third)
	case *pgxpool.Pool:
		c, err := db.Acquire(ctx)
		if err != nil {
			return row, 0, storeError(err, false)
		}
		defer c.Release()
		return s.updateRaw(ctx, c.Conn(), e, f, key, r, units, third)
	}
	return s.updatePgx(ctx, s.db, e, f, key, r, units, third)
}

// updateOn is update on a connection.
func (s *Store) updateRaw(ctx context.Context, conn *pgx.Conn, e *entry, f form, key string, r *store.Rule, units, third int64) (row store.State, now int64, err error) {
	w := rawConnOf(conn)
	if w == nil {
		return s.updatePgx(ctx, conn, e, f, key, r, units, third)
	}
	t, err := w.prepare(ctx, e, f)
	if err != nil {
		return row, 0, storeError(err, false) // nothing but the statement's text was sent
	}
	if t == nil {
		return s.updatePgx(ctx, conn, e, f, key, r, units, third)
	}
	w.begin(key)
	w.add(units)
	if f != formInsertNew {
		w.add(third)
		if spread(r) {
			w.add(gridOf(r.Origin, r.Every))
		}
	}
	if s.clock != nil {
		w.add(s.clock())
	}
	row, now, err = w.send(ctx, t)
	if err != nil && w.forget(rawKey{e.id, f}, err) {
		return s.updatePgx(ctx, conn, e, f, key, r, units, third)
	}
	return row, now, err
}

// updateBy is update through pgx, whatever its mode.
func (s *Store) updatePgx(ctx context.Context, db DB, e *entry, f form, key string, r *store.Rule, units, third int64) (row store.State, now int64, err error) {
	var seen instant
	args := s.takeArgs(key, r, units, third)
	if f == formInsertNew {
		args = s.withClock([]any{key, units})
	}
	err = db.QueryRow(ctx, e.sqlOf(f), args...).Scan(&row.Used, &row.TS, &seen)
	return row, int64(seen), err
}

// A wire is a connection's statements that are sent without pgx, and room for
// their parameters. Its connection is used by one call at a time, and so is it.
type rawConn struct {
	conn       *pgx.Conn
	statements map[rawKey]*rawStatement
	params     [][]byte
	key        []byte
	numbers    []byte
}

// wiredKey names a statement of a limit, whatever its version.
type rawKey struct {
	limit int32
	form  form
}

// form is one of a version's statements for a call of one key.
type form int

const (
	formTake      form = iota // charges a row
	formUpsert                // inserts a row or charges it
	formInsertNew             // inserts a row
)

func (s *statements) sqlOf(f form) string { return [...]string{s.take, s.upsert, s.insertNew}[f] }

type rawStatement struct {
	sql string
	*pgconn.StatementDescription
}

// wireKey is where a connection keeps its wire.
const rawConnKey = "dipwell"

// wireOf returns a connection's wire, or nil where calls have to go through pgx:
// in modes that prepare nothing, and where a tracer wants to see them.
func rawConnOf(conn *pgx.Conn) *rawConn {
	data := conn.PgConn().CustomData()
	if w, ok := data[rawConnKey].(*rawConn); ok {
		return w
	}
	var w *rawConn
	if c := conn.Config(); c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.Tracer == nil {
		w = &rawConn{conn: conn, statements: map[rawKey]*rawStatement{}, key: []byte{}} // a key that is nil would be null
	}
	data[rawConnKey] = w
	return w
}

var binaryFormat = []int16{pgtype.BinaryFormatCode}

// send runs a statement with the parameters that were added.
func (w *rawConn) send(ctx context.Context, t *rawStatement) (row store.State, now int64, err error) {
	found := false
	answer := w.conn.PgConn().ExecStatement(ctx, t.StatementDescription, w.params, binaryFormat, binaryFormat)
	for answer.NextRow() {
		found = true
		v := answer.Values()
		row.Used, row.TS = int64(binary.BigEndian.Uint64(v[0])), int64(binary.BigEndian.Uint64(v[1]))
		now = instantOf(t.Fields[2].DataTypeOID, v[2])
	}
	if _, err = answer.Close(); err == nil && !found {
		err = pgx.ErrNoRows
	}
	return row, now, err
}

// begin starts a list of parameters with the key.
func (w *rawConn) begin(key string) {
	w.key = append(w.key[:0], key...)
	w.params = append(w.params[:0], w.key)
	if w.numbers == nil {
		w.numbers = make([]byte, 0, 4*8) // never moves: params point into it
	}
	w.numbers = w.numbers[:0]
}

func (w *rawConn) add(n int64) {
	at := len(w.numbers)
	w.numbers = binary.BigEndian.AppendUint64(w.numbers, uint64(n))
	w.params = append(w.params, w.numbers[at:])
}

// epoch2000 is where PostgreSQL's timestamps begin.
var epoch2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// instantOf reads a timestamptz, or a test's bigint.
func instantOf(oid uint32, v []byte) int64 {
	n := int64(binary.BigEndian.Uint64(v))
	if oid == pgtype.TimestamptzOID {
		n += epoch2000
	}
	return n
}

// take returns the prepared statement of a limit's version, or nil where pgx is
// to send it. A limit has one name for each, so that versions do not pile up.
func (w *rawConn) prepare(ctx context.Context, e *entry, f form) (*rawStatement, error) {
	key, sql := rawKey{e.id, f}, e.sqlOf(f)
	t := w.statements[key]
	if t != nil && t.sql == sql {
		return t, nil
	}
	if t == nil && len(w.statements) >= maxRawStatements {
		return nil, nil
	}
	name := [...]string{"dipwell_take_", "dipwell_first_", "dipwell_new_"}[f] + strconv.Itoa(int(e.id))
	pg := w.conn.PgConn()
	if t != nil {
		delete(w.statements, key)
		if err := pg.Deallocate(ctx, name); err != nil {
			return nil, err
		}
	}
	d, err := pg.Prepare(ctx, name, sql, nil)
	if err != nil {
		return nil, err
	}
	t = &rawStatement{sql, d}
	w.statements[key] = t
	return t, nil
}

// forget drops a statement that the server does not know any more, or that an
// altered table has made unusable, and reports whether the call may be sent
// again: nothing was done.
func (w *rawConn) forget(key rawKey, err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != codeNoStatement && pg.Code != codeStalePlan {
		return false
	}
	w.statements[key].sql = "" // the server may still have one of that name
	return w.conn.PgConn().TxStatus() == 'I'
}
