-- The statements of the program of schema version 7 that call functions of the
-- schema. TestOldStatements runs them on the present one: programs of the version
-- before go on while a database is upgraded. One blank line ends a statement.

select dipwell_internal.put_limit(jsonb_populate_record(null::dipwell.limits, $1::jsonb),
    jsonb_populate_record(null::dipwell.versions, $2::jsonb), $3::bigint)

select dipwell_internal.drop_limit($1, $2)

select allowed, never, shadow, granted, remaining, retry, reset, delay, row_used, row_ts, row_version
from dipwell_internal.decide($1::int[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::uuid, $7::bigint)

select dipwell_internal.give_back($1::uuid, $2::bigint)

select swept, looked, coalesce(size, 0), ended, page, covered,
    case when $4 then set_config('synchronous_commit', 'off', true) end
from dipwell_internal.sweep_at($1, coalesce($2, dipwell_internal.settled()), $3)

select dipwell_internal.retire($1)

select dipwell_internal.make_room()

select min(u.at) from unnest($2::bigint[], $3::bigint[]) u (at, ahead) where dipwell_internal.zone_offset($1::text, u.at) <> u.ahead

select key, used, ts, version from dipwell_internal.keys($1, $2, $3, $5, $4)

select n, array(select dipwell_internal.calendar_boundary(v, k) from generate_series(dipwell_internal.tick(v, n) - 1, dipwell_internal.tick(v, n) + $4::bigint) k)
from dipwell.versions v cross join (select coalesce($3::bigint, 0) as n) c where v.limit_id = $1 and v.number = $2

select dipwell_internal.used_at(dipwell_internal.spread(v, $1, $2), $3, $4, $5) from dipwell.versions v
