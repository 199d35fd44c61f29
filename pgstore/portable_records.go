package pgstore

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// Statements for the records of reservations in the portable tables. The row of
// the bucket is locked before its records are read.
const (
	recordsSQL          = "select number, mark, units, coalesce(slack, -1), version, part_due, due, rest from dipwell.reservations where limit_id = $1 and key = $2 order by number"
	insertRecordSQL     = "insert into dipwell.reservations (id, limit_id, key, units, version, due, part_due, number, mark, slack, rest, parts) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, false, $11)"
	reservationPartsSQL = "select limit_id, key, number, mark, parts from dipwell.reservations where id = $1 and due > $2 and not rest order by limit_id, key"
	deleteRecordsSQL    = "delete from dipwell.reservations where limit_id = $1 and key = $2"
	updateRecordSQL     = "update dipwell.reservations set units = $5, slack = $6, version = $7, rest = $8 where limit_id = $1 and key = $2 and number = $3 and mark = $4"
	deleteRecordSQL     = deleteRecordsSQL + " and number = $3 and mark = $4"
	dueRowsSQL          = "select distinct limit_id, key from dipwell.reservations where due <= $1 limit $2"
	deleteDueSQL        = deleteRecordsSQL + " and due <= $3"
)

// lowsOf decodes the column lows.
func lowsOf(column []int64) *store.Lows {
	if len(column) < 4 {
		return nil
	}
	l := &store.Lows{Mark: column[0], Next: column[1]}
	for e := range slices.Chunk(column[2:], 2) {
		l.Entries = append(l.Entries, store.Low{Number: e[0], Used: e[1]})
	}
	return l
}

// lowsColumn encodes the column lows.
func lowsColumn(l *store.Lows) []int64 {
	if l == nil {
		return nil
	}
	out := []int64{l.Mark, l.Next}
	for _, e := range l.Entries {
		out = append(out, e.Number, e.Used)
	}
	return out
}

// records reads the records of a row.
func records(ctx context.Context, tx pgx.Tx, id int32, key string) ([]store.Record, error) {
	found, err := tx.Query(ctx, recordsSQL, id, key)
	if err != nil {
		return nil, storeError(err, false)
	}
	rs, err := pgx.CollectRows(found, pgx.RowToStructByPos[store.Record])
	return rs, storeError(err, false)
}

// queueRecords queues the writes that turn the records before into those after.
func queueRecords(b *pgx.Batch, id int32, key string, before, after []store.Record) {
	for _, old := range before {
		i := slices.IndexFunc(after, func(r store.Record) bool { return r.Number == old.Number && r.Mark == old.Mark })
		switch {
		case i < 0:
			b.Queue(deleteRecordSQL, id, key, old.Number, old.Mark)
		case after[i] != old:
			r := after[i]
			b.Queue(updateRecordSQL, id, key, r.Number, r.Mark, r.Units, slackColumn(r.Slack), int32(r.Version), r.Rest)
		}
	}
}

func slackColumn(slack int64) *int64 {
	if slack < 0 {
		return nil
	}
	return &slack
}

// queueRow queues the write of a bucket. A full one is deleted.
func queueRow(b *pgx.Batch, id int32, key string, row store.State) {
	if row.Used == 0 {
		b.Queue(deleteRowSQL, id, key)
		return
	}
	b.Queue(updateRowSQL, id, key, row.Used, row.TS, int32(row.Version), lowsColumn(row.Lows))
}

// A reservationPart is what a reservation took from one bucket.
type reservationPart struct {
	LimitID int32
	Key     string
	Number  int64
	Mark    int64
	Parts   int // of the reservation; if some are missing, they were reset
}

func (s portable) reservationParts(ctx context.Context, tx pgx.Tx, id store.Reservation) (parts []reservationPart, now int64, err error) {
	if now, err = s.txClock(ctx, tx); err != nil {
		return nil, 0, err
	}
	found, err := tx.Query(ctx, reservationPartsSQL, uuidOf(id), now)
	if err != nil {
		return nil, 0, storeError(err, false)
	}
	if parts, err = pgx.CollectRows(found, pgx.RowToStructByPos[reservationPart]); err != nil {
		return nil, 0, storeError(err, false)
	}
	if len(parts) == 0 || len(parts) != parts[0].Parts {
		return nil, 0, store.ErrReservation
	}
	return parts, now, nil
}

func (s portable) cancel(ctx context.Context, id store.Reservation) error {
	return s.transactOnce(ctx, func(tx pgx.Tx) error { return s.cancelIn(ctx, tx, id) })
}

// cancelIn gives a reservation back, once, and only before it is due. As
// everywhere, buckets are locked before records; the records are read again
// under the locks.
func (s portable) cancelIn(ctx context.Context, tx pgx.Tx, id store.Reservation) error {
	parts, _, err := s.reservationParts(ctx, tx, id)
	if err != nil {
		return err
	}
	rows := make([]store.State, len(parts))
	var b pgx.Batch
	for _, p := range parts {
		b.Queue(lockSQL, p.LimitID, p.Key)
	}
	results := tx.SendBatch(ctx, &b)
	for i := range rows {
		if err = scanRow(results, &rows[i]); err != nil {
			break
		}
	}
	if err = closeBatch(results, err); err != nil {
		return err
	}
	again, now, err := s.reservationParts(ctx, tx, id)
	if err != nil {
		return err
	}
	if !slices.Equal(parts, again) {
		return store.ErrReservation
	}
	for i, p := range parts {
		if err = s.giveBack(ctx, tx, p, rows[i], now); err != nil {
			return err
		}
	}
	return nil
}

func (s portable) giveBack(ctx context.Context, tx pgx.Tx, p reservationPart, row store.State, now int64) error {
	d := s.limits.byID(p.LimitID)
	if d == nil || row.Used == 0 { // limit dropped, or bucket full
		gone, err := tx.Exec(ctx, deleteRecordSQL, p.LimitID, p.Key, p.Number, p.Mark)
		if err == nil && gone.RowsAffected() == 0 { // another program was faster
			return store.ErrReservation
		}
		return storeError(err, false)
	}
	before, err := records(ctx, tx, p.LimitID, p.Key)
	if err != nil {
		return err
	}
	row, after, err := d.GiveBack(row, p.Key, now, slices.Clone(before), p.Number, p.Mark)
	if err != nil {
		return err
	}
	var b pgx.Batch
	queueRow(&b, p.LimitID, p.Key, row)
	queueRecords(&b, p.LimitID, p.Key, before, after)
	return execBatch(ctx, tx, &b)
}

// sweepDue deletes the records of at most portablePage rows that were due at
// now.
func (s portable) sweepDue(ctx context.Context, now int64) error {
	found, err := s.db.Query(ctx, dueRowsSQL, now, portablePage)
	if err != nil {
		return storeError(err, false)
	}
	keys, err := pgx.CollectRows(found, pgx.RowToStructByPos[bucketKey])
	if err != nil {
		return storeError(err, false)
	}
	for _, k := range keys {
		err := s.transact(ctx, func(tx pgx.Tx) error { return s.sweepRecords(ctx, tx, k.LimitID, k.Key, now) })
		if err != nil && !errors.Is(err, store.ErrStaleDefinition) { // left to the next sweep
			return err
		}
	}
	return nil
}

func (s portable) sweepRecords(ctx context.Context, tx pgx.Tx, id int32, key string, now int64) error {
	var row store.State
	var lows []int64
	err := tx.QueryRow(ctx, lockSQL, id, key).Scan(&row.Used, &row.TS, &row.Version, &lows)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return storeError(err, false)
	}
	row.Lows = lowsOf(lows)
	d := s.limits.byID(id)
	if d == nil || row.Lows == nil {
		_, err = tx.Exec(ctx, deleteDueSQL, id, key, now)
		return storeError(err, false)
	}
	before, err := records(ctx, tx, id, key)
	if err != nil {
		return err
	}
	row, after, err := d.Advance(row, key, now, slices.Clone(before))
	if err != nil {
		return err
	}
	var b pgx.Batch
	queueRow(&b, id, key, row)
	queueRecords(&b, id, key, before, after)
	return execBatch(ctx, tx, &b)
}
