
-- == Old versions of limits

-- Converts rows and overrides of older versions to the present one, for limits with more than
-- 8 versions, and returns how many. Otherwise rows of keys that nobody calls would keep all
-- later versions.
create function dipwell_internal.retire_rows(at bigint default null) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    n    bigint := case when at is null then dipwell_internal.now_us() else dipwell_internal.past(at) end;
    l    dipwell.limits;
    most bigint; -- a row is stepped through each version: a second in all
    did  bigint;
    rows bigint := 0;
begin
    for l in select x.* from dipwell.limits x loop
        select greatest(1, 1280 / count(*)) into most from dipwell.versions v where v.limit_id = l.id having count(*) > 8;
        continue when not found;
        perform dipwell_internal.bring(l.id, x.key, n) from (
            select y.key from dipwell.buckets y left join dipwell.key_overrides k on k.limit_id = y.limit_id and k.key = y.key
            where y.limit_id = l.id and case when y.version < 0 then k.version else dipwell_internal.version_of(y.version) end < l.version
            order by y.key limit most for update of y skip locked) x;
        get diagnostics did = row_count;
        rows := rows + did;
        perform dipwell_internal.store_override(x.o, dipwell_internal.renewed(l, x.o), n) from ( -- overrides of keys without a row
            select o from dipwell.key_overrides o where o.limit_id = l.id and o.version < l.version
                and not exists (select from dipwell.buckets y where y.limit_id = o.limit_id and y.key = o.key) limit most for update skip locked) x;
        get diagnostics did = row_count;
        rows := rows + did;
    end loop;
    return rows;
end $$;

-- Deletes versions that nothing refers to any more, and returns how many. A transaction that
-- read the limits before a change may still insert a row of the old version. If that version
-- were deleted, the row would count as full. SQL reads the limits in each call; what a
-- program knows of them is at most a minute old (catalog.MaxUnheard). So a version is
-- kept until all transactions have ended that began within a minute after it was superseded.
-- Transactions that this role may not see are assumed to have begun at most nine minutes ago.
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
