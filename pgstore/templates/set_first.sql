-- Decides groups like set.sql, right after an INSERT in the same transaction, which
-- has inserted those of their buckets that did not exist, with their charge, and
-- locked the others. New rows are recognized by their xmin; those of groups that
-- are not done are deleted. The parameters are those of set.sql, without write,
-- check and reset.
with q as materialized (
    select * from unnest((select $1::int[]), (select $2::int[]), (select $3::text[]), (select $4::int[]), (select $5::int[]),
        (select $6::bigint[]), (select $7::bigint[]), (select $8::bigint[]), (select $9::bigint[]), (select $10::bigint[]),
        (select $11::bigint[]), (select $12::bigint[]), (select $13::boolean[]), (select $14::boolean[]))
        with ordinality q(grp, limit_id, key, version, kind, cost, bound, unit, every, add, grid, enough, shadow, calendar, i)
),
asked as materialized (
    select q.*, case when b.made then 0 else b.used end as used, b.ts, b.version = q.version and b.lows is null as plain, b.made, b.place
    from q left join lateral (select b.used, b.ts, b.version, b.lows, b.xmin = pg_current_xact_id()::xid as made, b.ctid as place from dipwell.buckets b
        where b.limit_id = q.limit_id and b.key = q.key limit 1) b on true
),
-- The time that the INSERT has read, if it inserted anything.
clock as materialized (
    select coalesce($15::bigint, max(ts) filter (where made), (date_part('epoch', clock_timestamp()) * 1000000)::bigint) as n from asked
),
stepped as materialized (
    select q.*, c.n, {{later "c.n" "q.ts"}} as t, q.calendar and (c.n < q.grid or c.n >= q.grid + q.every) as late,
        case when q.calendar and q.used > 0 and q.ts < q.grid then (select dipwell_internal.used_at(dipwell_internal.spread(v, (select x.name from dipwell.limits x where x.id = q.limit_id), q.key), q.used, q.ts, c.n)
            from dipwell.versions v where v.limit_id = q.limit_id and v.number = q.version)
            else {{leftAfter "q.used" (ticksBetween "q.ts" "c.n" "q.grid" "q.every") "q.add" "q.enough"}} end as used0
    from asked q cross join clock c
),
decided as materialized (
    select s.*, case kind when 2 then {{added "used0" (wholeTokens "used0" "cost" "unit" "bound")}}
            when 4 then {{charged "used0" "cost" "bound"}} when 5 then {{refunded "used0" "cost"}}
            else {{added "used0" "cost"}} end as after,
        case when kind in (4, 5) then true
            else {{fits "used0" "case kind when 2 then unit else cost end" "bound"}} end as fits
    from stepped s
),
judged as materialized (
    select d.*, bool_and(plain and not late and (fits or shadow)) over (partition by grp) as done from decided d
),
changed as (
    insert into dipwell.buckets as b (used, ts, limit_id, version, key)
    select after, t, limit_id, version, key from judged where done and fits and not made and after <> used0
    on conflict (limit_id, key) do update set used = excluded.used, ts = excluded.ts
),
undone as (
    -- A plan made for a small table may read all of it, so the DELETE must not even
    -- start if there is nothing to delete. In a partitioned table ctid is unique
    -- only within a partition.
    delete from dipwell.buckets where ctid = any (array(select place from judged where made and not (done and fits)))
        and ((limit_id, key) in (select limit_id, key from judged where made and not (done and fits))) is true
        and (select count(*) from judged where made and not (done and fits)) > 0
)
select i, case when not made then used end, ts, n, coalesce(plain and not late, false), coalesce(done, false), false,
    case when calendar then used0 end
from judged
