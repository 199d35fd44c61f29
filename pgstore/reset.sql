-- Deletes buckets, in groups (grp) of which all or none are deleted. The parameters
-- have a row for each bucket, sorted by limit and key. A group is not done if a
-- limit has another version, if a key has reservations or holds, which must end with
-- its bucket, or if a bucket was changed before it was locked, and so may have
-- reservations now. A bucket without a row is done. $5 is the clock of a test, or
-- null.
--
-- The statement must be planned at each execution: a plan made for a small table
-- reads all of it in order to delete.
with q as materialized (
    select * from unnest((select $1::int[]), (select $2::int[]), (select $3::text[]), (select $4::int[]))
        with ordinality q(grp, limit_id, key, version, i)
),
seen as materialized (
    select q.*, b.used, b.ts, b.place, coalesce((select l.version from dipwell.limits l where l.id = q.limit_id) = q.version & 1048575 and coalesce(b.version >= 0, true), false)
            and (select x.number from dipwell.reservations x where x.limit_id = q.limit_id and x.key = q.key limit 1) is null
            and (select x.part from dipwell.hold_parts x where x.limit_id = q.limit_id and x.key = q.key and x.live limit 1) is null as plain
    from q left join lateral (select b.used, b.ts, b.version, b.lows, b.ctid as place from dipwell.buckets b
        where b.limit_id = q.limit_id and b.key = q.key limit 1) b on true
),
candidates as materialized (
    select s.*, bool_and(plain) over (partition by grp) as eligible from seen s
),
locked as materialized (
    select h.i, coalesce(b.place = h.place, false) as same
    from (select * from candidates where eligible and place is not null order by i) h left join lateral (select b.ctid as place from dipwell.buckets b
        where b.limit_id = h.limit_id and b.key = h.key for update) b on true
),
clock as materialized (
    select coalesce($5::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) as n from (select count(*) from locked) l
),
judged as materialized (
    select h.*, bool_and(h.eligible and (h.place is null or coalesce(l.same, false))) over (partition by h.grp) as done
    from candidates h left join locked l on l.i = h.i
),
gone as (
    -- In a partitioned table ctid is unique only within a partition.
    delete from dipwell.buckets where ctid = any (array(select place from judged where done and place is not null))
        and ((limit_id, key) in (select limit_id, key from judged where done and place is not null)) is true
        and (select count(*) from judged where done and place is not null) > 0
)
select i, used, ts, n, true, done, false, null::bigint from judged cross join clock
