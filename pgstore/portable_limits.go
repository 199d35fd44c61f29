package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// change changes limits in a transaction. The transaction locks the row of the revision,
// so that one change runs at a time. f gets the present limits, their ids, the present
// time, and the new revision.
func (s portable) change(ctx context.Context, name string, f func(in portable, reg *store.Registry, ids map[string]int32, at, revision int64) error) error {
	return s.transact(ctx, func(in portable) error {
		var revision int64
		if err := in.db.QueryRow(ctx, "select n from dipwell.revision where one = 1 for update").Scan(&revision); err != nil {
			return err
		}
		revision++
		read, err := s.limits.readPortable(ctx, in.db, "")
		if err != nil {
			return err
		}
		at, err := in.now(ctx)
		if err != nil {
			return err
		}
		if read.Bad[name] != nil {
			return read.Bad[name]
		}
		var reg store.Registry
		reg.Install(read.Defs)
		reg.EachOverride = func(limit string, check func(o *store.Override)) error {
			return eachOverride(ctx, in.db, read.IDs[limit], check)
		}
		if err = f(in, &reg, read.IDs, at, revision); err != nil {
			return err
		}
		_, err = in.db.Exec(ctx, "update dipwell.revision set n = $1 where one = 1", revision)
		return err
	})
}

// eachOverride reads the overrides of a limit one at a time.
func eachOverride(ctx context.Context, db querier, id int32, check func(o *store.Override)) error {
	rows, err := db.Query(ctx, "select key, override from dipwell.overrides where limit_id = $1", id)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		o, err := scanOverride(rows, catalog.DecodeOverride)
		if err != nil {
			return err
		}
		check(o)
	}
	return rows.Err()
}

// readPortable reads all limits, or only one, from portable tables.
func (l *limits) readPortable(ctx context.Context, db querier, only string) (*catalog.Limits, error) {
	read := &catalog.Limits{Only: only, IDs: map[string]int32{}, Bad: map[string]error{}}
	rows, err := db.Query(ctx, portableLimitsSQL, only)
	if err != nil {
		return nil, err
	}
	var id *int32
	var name, text string
	_, err = pgx.ForEachRow(rows, []any{&read.Revision, &id, &name, &text}, func() error {
		if id == nil { // there are no limits
			return nil
		}
		d, err := catalog.DecodeDefinition(name, text, l.reg.Lookup(name))
		if err != nil {
			read.Bad[name] = fmt.Errorf("%w: limit %s cannot be read: %w", store.ErrStore, name, err)
			return nil
		}
		read.Defs, read.IDs[name] = append(read.Defs, d), *id
		return nil
	})
	return read, err
}

const (
	portableLimitsSQL = `select r.n, l.id, coalesce(l.name, ''), coalesce(l.definition, '')
from dipwell.revision r left join dipwell.limits l on $1::text = '' or l.name = $1::text where r.one = 1 order by l.id`
	setLimitSQL = `insert into dipwell.limits (id, name, definition) values ($1, $2, $3)
on conflict (id) do update set definition = excluded.definition`
)

// keepLimit keeps limits from changing until the transaction of a new override ends. If it is
// the first one, keepLimit records that keys of the limit may have overrides, and notifies all
// programs. keepLimit returns store.ErrStaleDefinition if the limit has another version than
// the entry.
func (e *entry) keepLimit(ctx context.Context, db DB, first bool) error {
	sql := "select n from dipwell.revision where one = 1 for share"
	if first {
		sql = "update dipwell.revision set n = n + 1 where one = 1"
	}
	if _, err := db.Exec(ctx, sql); err != nil {
		return err
	}
	var text string
	var l catalog.StoredLimit
	err := db.QueryRow(ctx, "select definition from dipwell.limits where id = $1", e.id).Scan(&text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &l)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && l.Version != e.def.Number:
		return store.ErrStaleDefinition
	case err == nil && first:
		l.Overridden = true
		_, err = db.Exec(ctx, setLimitSQL, e.id, e.def.Name, l.String())
	}
	return err
}

// put does what dipwell_internal.put_limit does, using the registry that all stores
// share. The id of a new limit is the revision that made it and is never used again, so
// rows of a dropped limit stay void.
func (s portable) put(ctx context.Context, l store.Limit, by string) (change int64, err error) {
	err = s.change(ctx, l.Name, func(in portable, reg *store.Registry, ids map[string]int32, at, revision int64) error {
		change = 0
		old := reg.Lookup(l.Name)
		d, err := reg.Define(at, l, by)
		if err != nil {
			return err
		}
		if d == old {
			return errNoWrite
		}
		change = 1
		id, known := ids[l.Name]
		if !known {
			id = int32(revision)
		}
		_, err = in.db.Exec(ctx, setLimitSQL, id, l.Name, catalog.Stored(d).String())
		return err
	})
	return change, err
}

func (s portable) drop(ctx context.Context, name, by string) error {
	return s.change(ctx, name, func(in portable, reg *store.Registry, ids map[string]int32, _, _ int64) error {
		if err := reg.Drop(name, by); err != nil {
			return err
		}
		if err := in.endHolds(ctx, reg, ids[name], name); err != nil {
			return err
		}
		for _, statement := range []string{
			"delete from dipwell.records where limit_id = $1",
			"delete from dipwell.overrides where limit_id = $1",
			"delete from dipwell.usage where limit_id = $1",
			"delete from dipwell.limits where id = $1",
		} {
			if _, err := in.db.Exec(ctx, statement, ids[name]); err != nil {
				return err
			}
		}
		return nil
	})
}

// endHolds ends the parts of holds that belong to a limit which reg no longer has.
func (s portable) endHolds(ctx context.Context, reg *store.Registry, id int32, name string) error {
	keys, err := list(ctx, s.db, pgx.RowToStructByPos[bucketKey], "select limit_id, key from dipwell.records where limit_id = $1 and hold <> '' group by limit_id, key", id)
	if err != nil || len(keys) == 0 {
		return err
	}
	return s.onTable(ctx, keys, func(t *portableTable, now int64) error {
		for _, k := range keys {
			if _, err := store.SweepRow(t, reg, name, k.Key, now); err != nil {
				return err
			}
		}
		return nil
	})
}
