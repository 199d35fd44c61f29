package pgstore

import (
	"context"
	"encoding/binary"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/store"
)

// maxRawStatements bounds the statements that a connection keeps prepared
// besides those in pgx's cache.
const maxRawStatements = 256

// A rowUpdate is a conditional statement for one row. The parameters are the key and numbers,
// and the statement returns the row's used and ts, and its own time.
type rowUpdate struct {
	name string // name of the prepared statement, the same for all versions of a limit or plan; "": pgx prepares it
	sql  string
}

// update runs the statement u. update returns the row after the statement and the
// statement's time, or pgx.ErrNoRows. If possible it uses pgconn directly: looking up the
// statement by its text, planning how to encode and scan each value, and creating a Rows,
// as pgx does, take a tenth of a call.
func (s *Store) update(ctx context.Context, u rowUpdate, key string, numbers ...int64) (row store.State, now int64, err error) {
	db, release, err := s.acquire(ctx)
	if err != nil {
		return row, 0, err
	}
	defer release()
	if s.clock != nil {
		numbers = append(numbers, s.clock())
	}
	if w := rawConnOf(db); w != nil && u.name != "" {
		t, err := w.prepare(ctx, u)
		if err != nil {
			return row, 0, storeError(err, false) // only the statement's text was sent
		}
		if t != nil {
			if row, now, err = w.send(ctx, t, key, numbers); err == nil || !w.forget(t, err) {
				return row, now, err
			}
		}
	}
	args := []any{key}
	for _, n := range numbers {
		args = append(args, n)
	}
	err = db.QueryRow(ctx, u.sql, args...).Scan(&row.Used, &row.TS, &now)
	return row, now, err
}

// A rawConn holds the statements that are sent on a connection without pgx, and buffers
// for their parameters. Like its connection, a rawConn is used by one call at a time.
type rawConn struct {
	conn       *pgx.Conn
	statements map[string]*pgconn.StatementDescription // by name
	params     [][]byte
	bytes      []byte // memory for the encoded params
}

// rawConnKey is the key in a connection's CustomData.
const rawConnKey = "dipwell"

// rawConnOf returns the rawConn of a connection, or nil if calls must go
// through pgx: in modes that do not prepare statements, if there is a
// tracer, and in a transaction of the caller.
func rawConnOf(db DB) *rawConn {
	conn := connOf(db)
	if _, tx := db.(pgx.Tx); tx || conn == nil {
		return nil
	}
	data := conn.PgConn().CustomData()
	if w, ok := data[rawConnKey].(*rawConn); ok {
		return w
	}
	var w *rawConn
	if c := conn.Config(); c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.Tracer == nil {
		w = &rawConn{conn: conn, statements: map[string]*pgconn.StatementDescription{}, bytes: []byte{}} // not nil, because an empty key of nil would be sent as null
	}
	data[rawConnKey] = w
	return w
}

var binaryFormat = []int16{pgtype.BinaryFormatCode}

// send runs a statement.
func (w *rawConn) send(ctx context.Context, t *pgconn.StatementDescription, key string, numbers []int64) (row store.State, now int64, err error) {
	w.bytes = append(w.bytes[:0], key...)
	w.params = append(w.params[:0], w.bytes)
	for _, n := range numbers {
		at := len(w.bytes)
		w.bytes = binary.BigEndian.AppendUint64(w.bytes, uint64(n))
		w.params = append(w.params, w.bytes[at:])
	}
	found := false
	answer := w.conn.PgConn().ExecStatement(ctx, t, w.params, binaryFormat, binaryFormat)
	for answer.NextRow() {
		found = true
		v := answer.Values()
		row.Used, row.TS, now = int64(binary.BigEndian.Uint64(v[0])), int64(binary.BigEndian.Uint64(v[1])), int64(binary.BigEndian.Uint64(v[2]))
	}
	if _, err = answer.Close(); err == nil && !found {
		err = pgx.ErrNoRows
	}
	return row, now, err
}

// prepare returns the prepared statement of a limit's version, or nil if pgx should send
// it. Statements of old versions do not pile up, because all versions share a name.
func (w *rawConn) prepare(ctx context.Context, u rowUpdate) (*pgconn.StatementDescription, error) {
	t := w.statements[u.name]
	if t != nil && t.SQL == u.sql {
		return t, nil
	}
	if t == nil && len(w.statements) >= maxRawStatements {
		return nil, nil
	}
	pg := w.conn.PgConn()
	if t != nil {
		delete(w.statements, u.name)
		if err := pg.Deallocate(ctx, u.name); err != nil {
			return nil, err
		}
	}
	t, err := pg.Prepare(ctx, u.name, u.sql, nil)
	if err == nil {
		w.statements[u.name] = t
	}
	return t, err
}

// forget drops a statement that the server no longer has, or that an altered
// table has made unusable. forget reports whether the call may be sent
// again, because nothing was done.
func (w *rawConn) forget(t *pgconn.StatementDescription, err error) bool {
	if code := codeOf(err); code != codeNoStatement && code != codeStalePlan {
		return false
	}
	t.SQL = "" // the server may still have a statement of that name
	return w.conn.PgConn().TxStatus() == 'I'
}
