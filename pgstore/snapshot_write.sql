-- Writes rows and records that were decided on the result of snapshot_read.sql.
-- Each group of buckets (grp) is written only if all of its rows are unchanged;
-- whoever changes a record also writes its bucket. Buckets are sorted by limit and
-- key, and locked in that order. Returns the groups that were written.
--
-- $1 to $9: buckets. $10 to $22: records to insert or update. $23 to $26: records
-- to delete.
with q as materialized (
    select * from unnest((select $1::int[]), (select $2::int[]), (select $3::text[]), (select $4::text[]), (select $5::text[]),
        (select $6::bigint[]), (select $7::bigint[]), (select $8::int[]), (select $9::text[]))
        with ordinality q (grp, limit_id, key, place, made, used, ts, version, lows, i)
),
locked as materialized (
    select o.grp, coalesce(b.place = o.place and b.made = o.made, false) as same
    from (select * from q order by i) o left join lateral (select b.ctid::text as place, b.xmin::text as made from dipwell.buckets b
        where b.limit_id = o.limit_id and b.key = o.key for no key update) b on true
),
done as materialized (select grp from locked group by grp having bool_and(same)),
changed as (
    insert into dipwell.buckets as b (used, ts, limit_id, version, key, lows)
    select q.used, q.ts, q.limit_id, q.version, q.key, q.lows::bigint[] from q where q.grp in (select grp from done)
    on conflict (limit_id, key) do update set used = excluded.used, ts = excluded.ts, version = excluded.version, lows = excluded.lows
),
noted as (
    insert into dipwell.reservations as x (id, limit_id, key, units, version, due, part_due, number, mark, slack, rest, parts)
    select r.id, r.limit_id, r.key, r.units, r.version, r.due, r.part_due, r.number, r.mark, nullif(r.slack, -1), r.rest, r.parts
    from unnest((select $10::int[]), (select $11::uuid[]), (select $12::int[]), (select $13::text[]), (select $14::bigint[]), (select $15::int[]),
        (select $16::bigint[]), (select $17::bigint[]), (select $18::bigint[]), (select $19::bigint[]), (select $20::bigint[]), (select $21::int[]),
        (select $22::boolean[])) r (grp, id, limit_id, key, units, version, due, part_due, number, mark, slack, parts, rest)
    where r.grp in (select grp from done)
    on conflict (id, limit_id, key) do update set units = excluded.units, version = excluded.version, slack = excluded.slack, rest = excluded.rest
),
-- The places (ctid) are looked up again, because VACUUM FULL may have moved the records
-- since they were read.
gone as materialized (
    select x.place from unnest((select $23::int[]), (select $24::uuid[]), (select $25::int[]), (select $26::text[])) e (grp, id, limit_id, key)
    join lateral (select x.ctid as place from dipwell.reservations x
        where x.id = e.id and x.limit_id = e.limit_id and x.key = e.key limit 1) x on true
    where e.grp in (select grp from done)
),
ended as (
    delete from dipwell.reservations where ctid = any (array(select place from gone)) and (select count(*) from gone) > 0
)
select grp from done
