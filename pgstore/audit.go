package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// A trail is a log of entries of a store. Changes made in SQL are recorded by the functions of
// schema/. The busiest keys of each hour and what was decided in each minute are in one table.
type trail struct {
	*Store
	log *catalog.EntryLog
}

var _ store.Auditor = trail{}

func (s trail) minutes() bool { return s.log == &catalog.Minutes }

func (s trail) Record(ctx context.Context, e store.AuditEntry) error {
	if s.log == &catalog.Changes {
		return s.engine().record(ctx, e)
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, "insert into dipwell.top_hours (id, at, process, of_minute, report) values ($1, $2, $3, $4, $5)",
		catalog.EntryID(now, rand.Uint32()), time.UnixMicro(now).UTC(), e.Who, s.minutes(), e.What)
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.top_hours where of_minute = $3 and (id < $1 or id <= (select id from dipwell.top_hours where of_minute = $3 order by id desc limit 1 offset $2))",
			s.log.Oldest(now), s.log.Entries, s.minutes())
	}
	return storeError(err, true)
}

func (s functions) record(ctx context.Context, e store.AuditEntry) error {
	_, err := s.db.Exec(ctx, "select dipwell_internal.record_change($1, $2, $3, $4, $5, $6, $7)", e.Who, e.Action, e.Limit, e.Key, e.What, e.Note, s.testNow())
	return storeError(err, true)
}

func (s portable) record(ctx context.Context, e store.AuditEntry) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, `insert into dipwell.audit (id, at, who, action, limit_name, key, what, note) values ($1, $2, $3, $4, $5, $6, $7, $8)`,
		catalog.EntryID(now, rand.Uint32()), time.UnixMicro(now).UTC(), e.Who, e.Action, e.Limit, e.Key, e.What, e.Note)
	if err == nil {
		_, err = s.db.Exec(ctx, "delete from dipwell.audit where id < $1 or id <= (select id from dipwell.audit order by id desc limit 1 offset $2)", catalog.Changes.Oldest(now), catalog.Changes.Entries)
	}
	return storeError(err, true)
}

// These are the columns of the logs.
const (
	changesSQL = "id, who, action, limit_name, key, what, note, role from dipwell.audit where true"
	reportsSQL = "id, process, case when of_minute then 'minute' else 'top' end, '', '', report::text, '', '' from dipwell.top_hours where of_minute = $3"
)

func (s trail) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	if err := catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	log, args := changesSQL, []any{before, n}
	if s.log != &catalog.Changes {
		log, args = reportsSQL, append(args, s.minutes())
	}
	return list(ctx, s.db, func(row pgx.CollectableRow) (e store.AuditEntry, err error) {
		if err = row.Scan(&e.ID, &e.Who, &e.Action, &e.Limit, &e.Key, &e.What, &e.Note, &e.Role); err == nil {
			e.At, err = catalog.EntryTime(e.ID)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", s.log.Name, err)
		}
		return e, err
	}, "select "+log+" and ($1 = '' or id < $1) order by id desc limit $2", args...)
}
