
-- == Old versions of limits

-- Rows of keys that nobody calls would keep them for as long as the
-- slowest key needs to fill, and each sweep would step them through all versions since. So of
-- a limit that has many, the rows of old ones are converted as their next call would.

-- Converts rows and overrides of older versions of a limit to the present one, and returns
-- how many. Plain rows are converted before they are locked, and written if they are still
-- the same.
create function dipwell_internal.retire_rows_of(l dipwell.limits, n bigint, before int, max_rows bigint) returns bigint language plpgsql volatile as $$
declare
    b    dipwell.buckets;
    o    dipwell.key_overrides;
    rows bigint;
    more bigint := 0;
begin
    with older as materialized (
        select x.key, x.used, x.ts, x.version, (d.rule).number as to_version, c.used as to_used, c.ts as to_ts
        from (select * from dipwell.buckets y where y.limit_id = l.id and y.version > 0 and dipwell_internal.version_of(y.version) < before and y.lows is null limit max_rows) x
            cross join lateral dipwell_internal.own_definition(l, null, x.version, n) d
            cross join lateral dipwell_internal.carry(l, null, x.key, x.version, (d.rule).number, n, x.used, x.ts) c),
    locked as materialized (
        select y.key from dipwell.buckets y join older x on x.key = y.key
            where y.limit_id = l.id and (y.used, y.ts, y.version) = (x.used, x.ts, x.version) and y.lows is null
            for no key update of y skip locked)
    update dipwell.buckets y set used = x.to_used, ts = x.to_ts, version = x.to_version
        from older x join locked k on k.key = x.key where y.limit_id = l.id and y.key = x.key;
    get diagnostics rows = row_count;
    -- Rows with records or an override.
    for b in select x.* from dipwell.buckets x left join dipwell.key_overrides k on k.limit_id = x.limit_id and k.key = x.key
            where x.limit_id = l.id and (x.version > 0 and x.lows is not null and dipwell_internal.version_of(x.version) < before or x.version < 0 and k.version < before)
            order by x.key limit max_rows / 50 for update of x skip locked loop
        perform dipwell_internal.bring(l.id, b.key, n);
        rows := rows + 1;
    end loop;
    -- Overrides of keys without a row.
    for o in select * from dipwell.key_overrides x where x.limit_id = l.id and x.version < before
            and not exists (select from dipwell.buckets y where y.limit_id = x.limit_id and y.key = x.key) limit max_rows / 50 for update skip locked loop
        perform dipwell_internal.store_override(o, dipwell_internal.renewed(l, o), n);
        rows := rows + 1;
    end loop;
    return rows;
end $$;

-- Converts the rows of older versions, of limits with more than 8 versions, and returns how
-- many.
create function dipwell_internal.retire_rows(at bigint default null) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    n    bigint := case when at is null then dipwell_internal.now_us() else dipwell_internal.past(at) end;
    x    record;
    l    dipwell.limits;
    rows bigint := 0;
begin
    for x in select v.limit_id as id, count(*) as many from dipwell.versions v group by 1 having count(*) > 8 loop
        select * into l from dipwell.limits y where y.id = x.id;
        rows := rows + dipwell_internal.retire_rows_of(l, n, l.version, greatest(50, 64000 / x.many)); -- a row is stepped through each version: a second in all
    end loop;
    return rows;
end $$;

-- Deletes versions that nothing refers to any more, and returns how many. A transaction that
-- read the limits before a change may still insert a row of the old version. If that version
-- were deleted, the row would count as full. SQL reads the limits in each call, and a program
-- at most a minute before it (catalog.go: maxUnheard). So a version is kept until all
-- transactions have ended that began within a minute after it was superseded. Transactions
-- that this role may not see are assumed to have begun at most nine minutes ago.
create function dipwell_internal.retire(at bigint default null) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    minute constant bigint := 60000000;
    oldest bigint;
    x      record;
    rows   bigint;
    gone   bigint := 0;
begin
    if at is null then
        select least(dipwell_internal.now_us() - 9 * minute, (date_part('epoch', min(a.xact_start)) * 1000000)::bigint) into oldest
            from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid();
    else
        oldest := dipwell_internal.past(at) - 9 * minute;
    end if;
    for x in select v.limit_id as id, max(v.number) + 1 as ended from dipwell.versions v join dipwell.versions s on s.limit_id = v.limit_id and s.number = v.number + 1
            where s.since < oldest - minute group by 1 loop
        delete from dipwell.versions v where v.limit_id = x.id and v.number < least(x.ended,
            (select min(dipwell_internal.version_of(b.version)) from dipwell.buckets b where b.limit_id = x.id and b.version >= 0),
            (select min(o.version) from dipwell.key_overrides o where o.limit_id = x.id));
        get diagnostics rows = row_count;
        gone := gone + rows;
    end loop;
    if gone > 0 then
        perform dipwell_internal.note_change();
    end if;
    return gone;
end $$;
