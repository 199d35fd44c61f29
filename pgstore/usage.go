package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// usage has what keys used in each hour, for the Abilities of a store.
type usage struct{ *Store }

var _ store.UsageKeeper = usage{}

// The rows are locked in one order, so that services do not deadlock.
const addUsageSQL = `insert into dipwell.usage as u (limit_id, key, hour, by_sql, allowed, refused, tokens)
select l.id, x.key, x.hour, false, x.allowed, x.refused, x.tokens
from unnest($1::text[], $2::text[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[]) x (name, key, hour, allowed, refused, tokens)
join dipwell.limits l on l.name = x.name order by l.id, x.key, x.hour
on conflict (limit_id, key, hour, by_sql) do update set allowed = u.allowed + excluded.allowed, refused = u.refused + excluded.refused, tokens = u.tokens + excluded.tokens`

// usagePatience is how long the lines may wait for a limit that another transaction has
// locked, such as one that drops it. usagePatience is shorter than callers wait: after
// their timeout nobody would know whether the lines were added.
const usagePatience = 2 * time.Second

func (s usage) AddUsage(ctx context.Context, lines []store.UsageLine) error {
	n := len(lines)
	names, keys, hours := make([]string, n), make([]string, n), make([]time.Time, n)
	allowed, refused, tokens := make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range lines {
		l := &lines[i]
		names[i], keys[i], hours[i] = l.Limit, l.Key, time.UnixMicro(l.Hour).UTC()
		allowed[i], refused[i], tokens[i] = l.Allowed, l.Refused, l.Tokens
	}
	args := []any{names, keys, hours, allowed, refused, tokens}
	if !s.engine().hasFunctions() { // an engine without functions has no foreign key
		_, err := s.db.Exec(ctx, addUsageSQL, args...)
		return storeError(err, true)
	}
	err := functions(s).change(ctx, usagePatience, []any{nil}, "with added as ("+addUsageSQL+" returning 1) select count(*) from added", args...)
	return storeError(err, true)
}

func (s usage) Usage(ctx context.Context, d *store.Definition, key string, from, to int64) ([]store.UsageLine, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	return list(ctx, s.db, func(row pgx.CollectableRow) (store.UsageLine, error) {
		l := store.UsageLine{Limit: d.Name, Key: key}
		var hour time.Time
		err := row.Scan(&hour, &l.Allowed, &l.Refused, &l.Tokens)
		l.Hour = hour.UnixMicro()
		return l, err
	}, `select u.hour, sum(u.allowed)::bigint, sum(u.refused)::bigint, sum(u.tokens)::bigint from dipwell.usage u join dipwell.limits l on l.id = u.limit_id
		where l.name = $1 and u.key = $2 and u.hour >= $3 and u.hour < $4 group by u.hour order by u.hour`,
		d.Name, key, time.UnixMicro(max(from, now-catalog.UsageAge)).UTC(), time.UnixMicro(to).UTC())
}
