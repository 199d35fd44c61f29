package filestore

import (
	"context"
	"database/sql"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

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
