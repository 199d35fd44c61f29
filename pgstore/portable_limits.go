package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

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
		read, err := s.limits.readLimits(ctx, in.db, "")
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
	rows, err := db.Query(ctx, "select "+overrideColumns+" from dipwell.overrides where limit_id = $1", id)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		o, err := scanOverride(rows)
		if err != nil {
			return err
		}
		check(o)
	}
	return rows.Err()
}

// keepLimit keeps limits from changing until the transaction of a new override ends. keepLimit
// returns store.ErrStaleDefinition if the limit has another version than the entry.
func (e *entry) keepLimit(ctx context.Context, db DB) error {
	if _, err := db.Exec(ctx, "select n from dipwell.revision where one = 1 for share"); err != nil {
		return err
	}
	var version int32
	err := db.QueryRow(ctx, "select version from dipwell.limits where id = $1", e.id).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && uint32(version) != e.def.Number { //nolint:gosec // versions are small numbers
		return store.ErrStaleDefinition
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
		err = insert(ctx, in.db, "limits", updateLimitSQL, append([]string{"id", "owner", "version"}, catalog.LimitColumns...),
			append([]any{id, d.Owner, int32(d.Number)}, catalog.LimitValues(&l)...))
		if err != nil || old != nil && old.Number == d.Number {
			return err
		}
		v := catalog.NewVersion(catalog.Present(d), &l)
		return insert(ctx, in.db, "versions", "", append([]string{"limit_id"}, catalog.VersionColumns...), append([]any{id}, v.Values()...))
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
			"delete from dipwell.reservations where limit_id = $1",
			"delete from dipwell.overrides where limit_id = $1",
			"delete from dipwell.usage where limit_id = $1",
			"delete from dipwell.versions where limit_id = $1",
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
	keys, err := list(ctx, s.db, pgx.RowToStructByPos[bucketKey], "select limit_id, key from dipwell.reservations where limit_id = $1 and hold is not null group by limit_id, key", id)
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

// updateLimitSQL turns the insert of an existing limit into an update. Columns that a
// newer program has added keep their values.
var updateLimitSQL = func() string {
	set := []string{"owner = excluded.owner", "version = excluded.version"}
	for _, c := range catalog.LimitColumns {
		set = append(set, fmt.Sprintf("%[1]q = excluded.%[1]q", c))
	}
	return " on conflict (id) do update set " + strings.Join(set, ", ")
}()

// insert adds a row to a table. conflict is its ON CONFLICT clause, or empty.
func insert(ctx context.Context, db DB, table, conflict string, columns []string, values []any) error {
	var params []string
	for i, v := range values {
		params = append(params, "$"+strconv.Itoa(i+1))
		if columns[i] != "per" { // the period stays "" for a concurrency limit, which has none
			values[i] = orNull(v)
		}
	}
	_, err := db.Exec(ctx, "insert into dipwell."+table+" ("+catalog.List("", columns)+") values ("+strings.Join(params, ", ")+")"+conflict, values...)
	return err
}
