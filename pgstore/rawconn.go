package pgstore

import (
	"context"
	"encoding/binary"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// maxRawStatements bounds the statements that a connection keeps prepared
// besides those in pgx's cache.
const maxRawStatements = 256

// maxRawParams is the largest number of parameters of a statement: the grid is the fourth,
// and the time of a test's clock the last.
const maxRawParams = 5

// update runs the conditional UPDATE of one row. It returns the row after the statement and
// the statement's time, or pgx.ErrNoRows. If possible it uses pgconn directly:
// looking up the statement by its text, planning how to encode and scan each
// value, and creating a Rows, as pgx does, take a tenth of a call.
func (s *Store) update(ctx context.Context, e *entry, key string, r *store.Rule, units, room int64) (row store.State, now int64, err error) {
	db, release, err := s.acquire(ctx)
	if err != nil {
		return row, 0, err
	}
	defer release()
	w := rawConnOf(db)
	if w == nil {
		return s.updatePgx(ctx, db, e, key, r, units, room)
	}
	t, err := w.prepare(ctx, rawKeyOf(e), e.take)
	if err != nil {
		return row, 0, storeError(err, false) // only the statement's text was sent
	}
	if t == nil {
		return s.updatePgx(ctx, db, e, key, r, units, room)
	}
	w.begin()
	w.addText(key)
	w.add(units)
	w.add(room)
	if spread(r) {
		w.add(gridOf(r.Origin, r.Every))
	}
	if s.clock != nil {
		w.add(s.clock())
	}
	row, now, err = w.send(ctx, t)
	if err != nil && w.forget(rawKeyOf(e), err) {
		return s.updatePgx(ctx, db, e, key, r, units, room)
	}
	return row, now, err
}

// updatePgx is update through pgx, in any query mode.
func (s *Store) updatePgx(ctx context.Context, db DB, e *entry, key string, r *store.Rule, units, room int64) (row store.State, now int64, err error) {
	args := []any{key, units, room}
	if spread(r) {
		args = append(args, gridOf(r.Origin, r.Every))
	}
	err = db.QueryRow(ctx, e.take, s.withClock(args)...).Scan(&row.Used, &row.TS, &now)
	return row, now, err
}

// A rawConn holds the statements that are sent on a connection without pgx, and
// buffers for their parameters. Like its connection it is used by one call at a
// time.
type rawConn struct {
	conn       *pgx.Conn
	statements map[rawKey]*pgconn.StatementDescription
	params     [][]byte
	texts      []byte
	numbers    []byte
}

// A rawKey identifies a statement of a limit, whichever version of the limit or plan it
// is for.
type rawKey struct {
	limit int32
	plan  int // terms.IndexOf
}

func rawKeyOf(e *entry) rawKey {
	return rawKey{limit: e.id, plan: terms.IndexOf(e.def.Number)}
}

// name returns the name of the prepared statement.
func (k rawKey) name() string {
	name := "dipwell_take_" + strconv.Itoa(int(k.limit))
	if k.plan > 0 {
		name += "p" + strconv.Itoa(k.plan)
	}
	return name
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
		w = &rawConn{conn: conn, statements: map[rawKey]*pgconn.StatementDescription{}, texts: []byte{}} // a nil text would be sent as null
	}
	data[rawConnKey] = w
	return w
}

var binaryFormat = []int16{pgtype.BinaryFormatCode}

// send runs a statement with the parameters in w.
func (w *rawConn) send(ctx context.Context, t *pgconn.StatementDescription) (row store.State, now int64, err error) {
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

// begin resets the parameters.
func (w *rawConn) begin() {
	if w.params == nil {
		w.params = make([][]byte, 0, maxRawParams)
		w.numbers = make([]byte, 0, maxRawParams*8) // never grows: params point into it
	}
	w.texts, w.params, w.numbers = w.texts[:0], w.params[:0], w.numbers[:0]
}

func (w *rawConn) addText(s string) {
	at := len(w.texts)
	w.texts = append(w.texts, s...)
	w.params = append(w.params, w.texts[at:])
}

func (w *rawConn) add(n int64) {
	at := len(w.numbers)
	w.numbers = binary.BigEndian.AppendUint64(w.numbers, uint64(n))
	w.params = append(w.params, w.numbers[at:])
}

// prepare returns the prepared statement of a limit's version, or nil if pgx
// should send it. Each limit has one statement name per form, so that old
// versions do not pile up.
func (w *rawConn) prepare(ctx context.Context, key rawKey, sql string) (*pgconn.StatementDescription, error) {
	t := w.statements[key]
	if t != nil && t.SQL == sql {
		return t, nil
	}
	if t == nil && len(w.statements) >= maxRawStatements {
		return nil, nil
	}
	pg := w.conn.PgConn()
	if t != nil {
		delete(w.statements, key)
		if err := pg.Deallocate(ctx, key.name()); err != nil {
			return nil, err
		}
	}
	t, err := pg.Prepare(ctx, key.name(), sql, nil)
	if err == nil {
		w.statements[key] = t
	}
	return t, err
}

// forget drops a statement that the server no longer has, or that an altered
// table has made unusable. It reports whether the call may be sent again,
// because nothing was done.
func (w *rawConn) forget(key rawKey, err error) bool {
	if code := codeOf(err); code != codeNoStatement && code != codeStalePlan {
		return false
	}
	w.statements[key].SQL = "" // the server may still have the name
	return w.conn.PgConn().TxStatus() == 'I'
}
