-- Reads rows with their lows and records, for calls that need these: see
-- snapshot.go. $1, $2: buckets. $3: reservations to cancel, whose buckets are read
-- too. $4: the clock of a test, or null. $5: largest number of records of a bucket;
-- one more is returned if there are too many.
--
-- A row of the result is a bucket or, if parts is not null, a part of a
-- reservation. place and made (ctid and xmin) identify the version of the row for
-- snapshot_write.sql. The version of the limit is null if the row has holds.
with c as materialized (select coalesce($4::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) as n),
held as materialized (
    select u.i, x.* from unnest((select $3::uuid[])) with ordinality u (id, i) cross join c
    join lateral (select x.limit_id, x.key, x.number, x.mark, x.parts from dipwell.reservations x
        where x.id = u.id and x.due > c.n and not x.rest limit 32) x on true
),
asked as materialized (
    select * from unnest((select $1::int[]), (select $2::text[])) a (limit_id, key) union select limit_id, key from held
)
select c.n, a.limit_id, a.key, b.used, b.ts, b.version, b.lows, b.place, b.made,
    case when b.lows is null or not exists (select from dipwell.hold_parts x where x.limit_id = a.limit_id and x.key = a.key and x.live) then l.version end,
    null::int as parts, 0::bigint as i,
    r.ids, r.numbers, r.marks, r.units, r.slacks, r.versions, r.dues, r.ends, r.rests
from asked a cross join c
left join lateral (select l.version from dipwell.limits l where l.id = a.limit_id limit 1) l on true
left join lateral (select b.used, b.ts, b.version, b.lows, b.ctid::text as place, b.xmin::text as made
    from dipwell.buckets b where b.limit_id = a.limit_id and b.key = a.key limit 1) b on true
left join lateral (select array_agg(x.id) as ids, array_agg(x.number) as numbers, array_agg(x.mark) as marks,
        array_agg(x.units) as units, array_agg(coalesce(x.slack, -1)) as slacks, array_agg(x.version) as versions,
        array_agg(x.part_due) as dues, array_agg(x.due) as ends, array_agg(x.rest) as rests
    from (select x.id, x.number, x.mark, x.units, x.slack, x.version, x.part_due, x.due, x.rest
        from dipwell.reservations x where x.limit_id = a.limit_id and x.key = a.key order by x.number limit $5::int + 1) x) r on true
union all
select c.n, h.limit_id, h.key, h.number, h.mark, null, null, null, null, null, h.parts, h.i,
    null, null, null, null, null, null, null, null, null
from held h cross join c
