package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// A trail is the ability Audit of a store. Changes made in SQL are recorded by the
// functions of schema/.
type trail struct{ *Store }

var _ store.Auditor = trail{}

// Record implements store.Auditor.
func (s trail) Record(ctx context.Context, e store.AuditEntry) error {
	return s.engine().record(ctx, e)
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

// Audit implements store.Auditor.
func (s trail) Audit(ctx context.Context, before string, n int) ([]store.AuditEntry, error) {
	return s.page(ctx, "id, who, action, limit_name, key, what, note, role from dipwell.audit", before, n)
}

// page implements store.Auditor.Audit for a log, which is a list of the columns of a table; more
// are parameters of it from $3 on.
func (s *Store) page(ctx context.Context, log, before string, n int, more ...any) ([]store.AuditEntry, error) {
	if err := catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	return list(ctx, s.db, func(row pgx.CollectableRow) (e store.AuditEntry, err error) {
		if err = row.Scan(&e.ID, &e.Who, &e.Action, &e.Limit, &e.Key, &e.What, &e.Note, &e.Role); err == nil {
			e.At, err = catalog.EntryTime(e.ID)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", log[strings.LastIndexByte(log, ' ')+1:], err)
		}
		return e, err
	}, "select "+log+" where $1 = '' or id < $1 order by id desc limit $2", append([]any{before, n}, more...)...)
}
