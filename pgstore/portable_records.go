package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// lowsColumns returns the columns lows, low and due of a row.
func lowsColumns(l *store.Lows) (text *string, low, due *int64) {
	if l == nil {
		return nil, nil, nil
	}
	all := texts.Marshal(l)
	return &all, &l.Entries[len(l.Entries)-1].Used, &l.Due
}

// These statements find records whose time has come, for the sweep.
const (
	dueRowsSQL   = `select limit_id, key from dipwell.records where due <= $1 group by limit_id, key limit $2`
	endedSQL     = "select limit_id, key from dipwell.overrides where until <= $1 limit $2"
	forgetSQL    = "delete from dipwell.holds where forget <= $1"
	forgetDueSQL = "delete from dipwell.reservations where due <= $1"

	deleteDueSQL     = "delete from dipwell.records where limit_id = $1 and key = $2 and due <= $3"
	deleteDueFreeSQL = deleteDueSQL + " and number = 0"
)

// sweepDue ends reservations, holds and overrides that are due at now, at most
// portablePage rows of each.
func (s portable) sweepDue(ctx context.Context, now int64) error {
	for _, sql := range []string{dueRowsSQL, endedSQL} {
		if err := s.sweepRows(ctx, now, sql, now, portablePage); err != nil {
			return err
		}
	}
	for sql, before := range map[string]any{forgetSQL: now, forgetDueSQL: now, "delete from dipwell.top_hours where id < $1": catalog.TopHours.Oldest(now),
		"delete from dipwell.usage where hour < $1": time.UnixMicro(now - catalog.UsageAge).UTC()} {
		if _, err := s.db.Exec(ctx, sql, before); err != nil {
			return storeError(err, false)
		}
	}
	return nil
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
