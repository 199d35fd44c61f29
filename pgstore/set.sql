-- Decides any number of groups at once, each all or nothing. The parameters have a
-- row for each bucket, sorted by limit and key, so that two statements that lock
-- the same buckets cannot deadlock. No bucket occurs twice. Calls that would have
-- to wait for tokens are not charged.
--
-- kind: 0 take, 1 check, 2 take_up_to, 4 charge, 5 refund (store.Verb), 6 write.
-- cost: units. bound: the limit of used units after it. enough: ticks after which
-- the row is full. write stores cost as used and unit as ts if the bucket still has
-- bound as used and grid as ts.
-- calendar: windows differ in length. grid is the start of the current one, every
-- its length; at other times the bucket is not decided here. A row of an earlier
-- window is stepped by the function used_at, and used_now of the result is what is
-- used of it now.
-- ends: the end of the bucket's override; from then on it is not decided here.
-- $15 is the clock of a test, or null. Arrays are passed through subqueries: if the
-- planner could see their length, it would plan each execution again.
--
-- Groups with a missing bucket are not decided: its insert could wait for a
-- concurrent one, out of locking order.
--
-- If the limit or the bucket has another version than the parameters, or a record of the
-- bucket ends, the group is left to other statements, and so is one that is not charged
-- and has a bucket with records. The last column but one tells that the bucket exists but
-- could not be locked.
with q as materialized (
    select * from unnest((select $1::int[]), (select $2::int[]), (select $3::text[]), (select $4::int[]), (select $5::int[]),
        (select $6::bigint[]), (select $7::bigint[]), (select $8::bigint[]), (select $9::bigint[]), (select $10::bigint[]),
        (select $11::bigint[]), (select $12::bigint[]), (select $13::boolean[]), (select $14::boolean[]), (select $16::bigint[]))
        with ordinality q(grp, limit_id, key, version, kind, cost, bound, unit, every, add, grid, enough, shadow, calendar, ends, i)
),
-- Groups refused according to the snapshot are answered from it: they lock nothing
-- and use no transaction id.
seen as materialized (
    select q.*, b.used, b.ts, coalesce((q.version < 0 or (select l.version from dipwell.limits l where l.id = q.limit_id) = q.version & 1048575)
            and greatest(c.n, b.ts) < q.ends
            and not (q.calendar and (c.n < q.grid or c.n >= q.grid + q.every))
            and coalesce(b.version = q.version and (b.due <= c.n) is not true, true), false) as plain, b.lows is not null as listed,
        case when q.calendar and b.ts < q.grid then (select dipwell_internal.used_at(dipwell_internal.spread(v, (select x.name from dipwell.limits x where x.id = q.limit_id), q.key), b.used, b.ts, c.n)
            from dipwell.versions v where v.limit_id = q.limit_id and v.number = q.version) end as used_now,
        c.n
    from q cross join (select coalesce($15::bigint, (date_part('epoch', statement_timestamp()) * 1000000)::bigint) as n) c
    left join lateral (select b.used, b.ts, b.version, b.lows, b.due from dipwell.buckets b
        where b.limit_id = q.limit_id and b.key = q.key limit 1) b on true
),
candidates as materialized (
    select s.*, bool_and(plain and used is not null and kind <> 1 and case when shadow or used_now is not null or kind = 4 then true
            when kind = 6 then used = bound and ts = grid
            when kind = 5 then used > least((greatest(n, ts) - grid) / every - (ts - grid) / every, enough) * add -- otherwise it is full
            else used - least((greatest(n, ts) - grid) / every - (ts - grid) / every, enough) * add <= bound - case kind when 2 then unit else cost end end) over (partition by grp) as eligible
    from seen s
),
locked as materialized (
    select h.i, b.used, b.ts, coalesce(b.version = h.version, true) as plain, b.lows is not null as listed, b.due
    from (select * from candidates where eligible order by i) h left join lateral (select b.used, b.ts, b.version, b.lows, b.due from dipwell.buckets b
        where b.limit_id = h.limit_id and b.key = h.key for no key update) b on true
),
-- The clock is read once all locks are held.
clock as materialized (
    select coalesce($15::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) as n from (select count(*) from locked) l
),
stepped as materialized (
    select q.*, l.used, l.ts, l.listed, l.plain and (l.due <= c.n) is not true and not (l.listed and q.kind = 6) and greatest(c.n, l.ts) < q.ends and not (q.calendar and (c.n < q.grid or c.n >= q.grid + q.every)) as plain, c.n,
        case when q.kind = 6 then q.unit else greatest(c.n, l.ts) end as t,
        case when q.calendar and l.ts < q.grid then (select dipwell_internal.used_at(dipwell_internal.spread(v, (select x.name from dipwell.limits x where x.id = q.limit_id), q.key), l.used, l.ts, c.n)
            from dipwell.versions v where v.limit_id = q.limit_id and v.number = q.version)
            else greatest(l.used - least((greatest(c.n, l.ts) - q.grid) / q.every - (l.ts - q.grid) / q.every, q.enough) * q.add, 0) end as used0
    from locked l join q on q.i = l.i cross join clock c
),
decided as materialized (
    select s.*, case kind when 2 then used0 + least(cost, (bound - used0) / unit * unit)
            when 4 then least(used0 + cost, greatest(bound, used0)) when 5 then greatest(used0 - cost, 0)
            when 6 then cost else used0 + cost end as after,
        case when kind in (4, 5) then true when kind = 6 then used = bound and ts = grid
            else used0 <= bound - case kind when 2 then unit else cost end end as fits
    from stepped s
),
judged as materialized (
    select d.*, bool_and(plain and used is not null and (fits or shadow and not listed)) over (partition by grp) as done from decided d
),
changed as (
    insert into dipwell.buckets as b (used, ts, limit_id, version, key, low)
    select after, t, limit_id, version, key, case when kind = 4 and after < used0 + cost then 0 else used0 end from judged
    where done and fits and case kind when 6 then after <> used or t <> ts else after <> used0 end
    on conflict (limit_id, key) do update set used = excluded.used, ts = excluded.ts, low = b.low - greatest(b.low - excluded.low, 0)
)
select s.i, case when j.i is null then s.used else j.used end, case when j.i is null then s.ts else j.ts end,
    coalesce(j.n, s.n), coalesce(j.plain, s.plain) and (coalesce(j.done, false) or not coalesce(j.listed, s.listed)), coalesce(j.done, false), j.i is not null and j.used is null,
    case when s.calendar then coalesce(j.used0, s.used_now) end
from seen s left join judged j on j.i = s.i
