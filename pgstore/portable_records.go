package pgstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// In the column lows, lowsHead numbers come before the entries, and lowsDue is the index of
// due, from 1.
const (
	lowsHead = 6
	lowsDue  = 3
)

// lowsOf decodes the columns lows and low.
func lowsOf(column []int64, low *int64) *store.Lows {
	if len(column) < lowsHead+2 {
		return nil
	}
	l := &store.Lows{Mark: column[0], Next: column[1], Due: column[2], Live: column[3], Holds: column[4], Waits: column[5] != 0}
	for e := range slices.Chunk(column[lowsHead:], 2) {
		l.Entries = append(l.Entries, store.Low{Number: e[0], Used: e[1]})
	}
	return l.LoweredTo(*low)
}

// lowsColumns encodes the columns lows and low.
func lowsColumns(l *store.Lows) (out []int64, low *int64) {
	if l == nil {
		return nil, nil
	}
	out = []int64{l.Mark, l.Next, l.Due, l.Live, l.Holds, 0}
	if l.Waits {
		out[5] = 1
	}
	for _, e := range l.Entries {
		out = append(out, e.Number, e.Used)
	}
	return out, &out[len(out)-1]
}

// These statements find records whose time has come, for the sweep.
const (
	dueRowsSQL = `select limit_id, key from dipwell.reservations where due <= $1 group by limit_id, key limit $2`
	endedSQL   = "select limit_id, key from dipwell.overrides where until <= $1 limit $2"
	forgetSQL  = "delete from dipwell.holds where forget <= $1"

	deleteDueSQL     = "delete from dipwell.reservations where limit_id = $1 and key = $2 and due <= $3"
	deleteDueFreeSQL = deleteDueSQL + " and number = 0 and hold is not null"
)

// sweepDue ends reservations, holds and overrides that are due at now, at most
// portablePage rows of each.
func (s portable) sweepDue(ctx context.Context, now int64) error {
	for _, sql := range []string{dueRowsSQL, endedSQL} {
		if err := s.sweepRows(ctx, now, sql, now, portablePage); err != nil {
			return err
		}
	}
	_, err := s.db.Exec(ctx, forgetSQL, now)
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.top_hours where id < $1", catalog.TopHours.Oldest(now))
	}
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.usage where hour < $1", time.UnixMicro(now-catalog.UsageAge).UTC())
	}
	return storeError(err, false)
}

// sweepRows calls SweepRow for the keys that a statement lists, each in a transaction.
func (s portable) sweepRows(ctx context.Context, now int64, sql string, args ...any) error {
	keys, err := list(ctx, s.db, pgx.RowToStructByPos[bucketKey], sql, args...)
	if err != nil {
		return err
	}
	for _, k := range keys {
		err := s.transact(ctx, func(in portable) error { return in.sweepRow(ctx, k, now) })
		if err != nil && !errors.Is(err, store.ErrStaleDefinition) { // the next sweep tries again
			return err
		}
	}
	return nil
}

func (s portable) sweepRow(ctx context.Context, k bucketKey, now int64) error {
	d := s.limits.byID(k.LimitID)
	if d == nil && !dropped(ctx, s.db, k.LimitID) {
		return errNoWrite // the limit is new, or this program cannot read it
	} else if d == nil {
		_, err := s.db.Exec(ctx, deleteDueSQL, k.LimitID, k.Key, now)
		return storeError(err, false)
	}
	return s.onTable(ctx, []bucketKey{k}, func(t *portableTable, _ int64) error {
		_, err := store.SweepRow(t, &s.limits.reg, d.Name, k.Key, now)
		t.out.Queue(deleteDueFreeSQL, k.LimitID, k.Key, now)
		return err
	})
}
