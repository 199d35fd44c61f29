package filestore

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// A trail is a log of entries of a store. The log is kept only in the file.
type trail struct {
	*Store
	log *catalog.EntryLog
}

var _ store.Auditor = trail{}

// Record implements store.Auditor. When it returns, the entry is on the disk.
func (s trail) Record(ctx context.Context, e store.AuditEntry) error {
	if s.state.Load()&^stateEach != 0 {
		return s.unavailable()
	}
	now, err := s.mem.Now(ctx)
	if err != nil {
		return err
	}
	return s.storeError(s.disk.tx(func() error {
		if err := s.disk.exec("insert into "+s.log.Name+` (id, at, who, "action", "limit", key, what, note) values (?, ?, ?, ?, ?, ?, ?, ?)`,
			catalog.EntryID(now, rand.Uint32()), time.UnixMicro(now).UTC().Format(time.DateTime), e.Who, e.Action, e.Limit, e.Key, e.What, e.Note); err != nil {
			return err
		}
		return s.disk.exec("delete from "+s.log.Name+" where id < ? or id <= (select id from "+s.log.Name+" order by id desc limit 1 offset ?)", s.log.Oldest(now), s.log.Entries)
	}))
}

func (s trail) Audit(ctx context.Context, before string, n int) (page []store.AuditEntry, err error) {
	if err = catalog.CheckBefore(before); err != nil {
		return nil, err
	}
	if s.state.Load()&stateClosed != 0 {
		return nil, errClosed
	}
	err = s.disk.list(ctx, func(rows *sql.Rows) error {
		var e store.AuditEntry
		err := rows.Scan(&e.ID, &e.Who, &e.Action, &e.Limit, &e.Key, &e.What, &e.Note)
		if err == nil {
			e.At, err = catalog.EntryTime(e.ID)
		}
		page = append(page, e)
		return err
	}, `select id, who, "action", "limit", key, what, note from `+s.log.Name+` where ? = '' or id < ? order by id desc limit ?`, before, before, n)
	return page, s.storeError(err)
}

// usage has what keys used in each hour, for the Abilities of a store. Usage is kept only
// in the file.
type usage struct{ *Store }

var _ store.UsageKeeper = usage{}

// AddUsage implements store.UsageKeeper. When it returns, the lines are on the disk.
func (s usage) AddUsage(_ context.Context, lines []store.UsageLine) error {
	if s.state.Load()&^stateEach != 0 {
		return s.unavailable()
	}
	return s.storeError(s.disk.tx(func() error {
		for i := range lines {
			l := &lines[i]
			id, known := s.limits.lookupID(l.Limit)
			if !known {
				continue
			}
			if err := s.disk.exec(`insert into usage (limit_id, key, hour, allowed, refused, tokens) values (?, ?, ?, ?, ?, ?)
				on conflict do update set allowed = allowed + excluded.allowed, refused = refused + excluded.refused, tokens = tokens + excluded.tokens`,
				id, l.Key, l.Hour, l.Allowed, l.Refused, l.Tokens); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (s usage) Usage(ctx context.Context, d *store.Definition, key string, from, to int64) (list []store.UsageLine, err error) {
	if s.state.Load()&stateClosed != 0 {
		return nil, errClosed
	}
	id, _ := s.limits.lookupID(d.Name)
	err = s.disk.list(ctx, func(rows *sql.Rows) error {
		l := store.UsageLine{Limit: d.Name, Key: key}
		err := rows.Scan(&l.Hour, &l.Allowed, &l.Refused, &l.Tokens)
		list = append(list, l)
		return err
	}, "select hour, allowed, refused, tokens from usage where limit_id = ? and key = ? and hour >= ? and hour < ? order by hour",
		id, key, max(from, s.now()-catalog.UsageAge), to)
	return list, s.storeError(err)
}
