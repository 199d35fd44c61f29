
-- == The sweep, which deletes full rows

-- The latest time before which no running statement can still decide. A statement that read
-- the clock before a row became full, and inserts the row after a sweep has deleted it, would
-- start the bucket at that earlier time, and the refill since then would count twice. Running
-- statements are found by their locks on the table, and by the second part if they have begun
-- but not locked it yet.
create function dipwell_internal.settled() returns bigint language sql volatile as $$
    select least(n - 1000000, (
        -- Statements that this role may not see are assumed to have begun a minute ago.
        select min(coalesce((date_part('epoch', s.query_start) * 1000000)::bigint, n - 60000000))
        from pg_locks k join pg_stat_activity s on s.pid = k.pid
        where k.locktype = 'relation' and k.relation = 'dipwell.buckets'::regclass and k.mode = 'RowExclusiveLock'
            and k.database = (select oid from pg_database where datname = current_database())
            and s.pid <> pg_backend_pid() and coalesce(s.state, 'active') = 'active'))
    from (select dipwell_internal.now_us() as n) c
$$;

-- The table buckets, or its partitions, with the first page and the number of pages of each.
-- Pages are numbered over all partitions.
create function dipwell_internal.parts() returns table (relid regclass, first bigint, pages bigint) language sql stable as $$
    select x.relid, (sum(x.pages) over (order by x.relid::oid) - x.pages)::bigint, x.pages
    from (select t.relid, pg_relation_size(t.relid) / current_setting('block_size')::bigint as pages from (
        select c.oid::regclass from pg_class c where c.oid = 'dipwell.buckets'::regclass and c.relkind <> 'p'
        union all select p.relid from pg_partition_tree('dipwell.buckets') p where p.isleaf and p.level > 0) t (relid)) x
$$;

-- Deletes at most max_rows rows that are full at n from a range of pages. Rows are locked,
-- and checked again as they are now, before they are deleted by ctid, which cannot change
-- while they are locked. A full row stays full under any later version. A row with due stays,
-- because hold_one looks there for live records of the key. The settings leave
-- the planner only a scan of these pages and a hash join, even if the statistics are those of
-- an empty table.
create function dipwell_internal.sweep_pages(part regclass, low bigint, high bigint, max_rows bigint, n bigint) returns bigint
language plpgsql volatile set jit = off set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off as $$
declare
    place text := format('b.ctid >= ''(%s,0)'' and b.ctid < ''(%s,0)''', low, high);
    rows_ tid[];
begin
    if current_setting('server_version_num')::int < 140000 then -- cannot scan a range of ctid
        place := format('b.ctid = any (array(select format(''(%%s,%%s)'', p, i)::tid from generate_series(%s, %s) p, generate_series(1, %s) i))',
            low, high - 1, current_setting('block_size')::int / 28);
    end if;
    execute format($sweep$
        select array(
            select b.ctid from %s b
            left join (dipwell.limits l join dipwell.versions v on v.limit_id = l.id and v.number = l.version) on l.id = b.limit_id
            where %s and b.due is null and case
                when l.version = b.version and l.every > 0 and not v.spread and v.origin >= 0 and not v.sliding
                then b.used <= least((greatest($1, b.ts) - l.grid) / l.every - (b.ts - l.grid) / l.every, l.ticks) * l.add
                else dipwell_internal.is_full(b.limit_id, b.key, b.used, b.ts, b.version, $1) end
            limit $2 for update of b skip locked)
        $sweep$, part, place) into rows_ using n, max_rows;
    if rows_ <> '{}' then
        execute format('delete from %s where ctid = any ($1)', part) using rows_;
    end if;
    return cardinality(rows_);
end $$;

-- Deletes at most max_rows rows that are full at n, reading max_pages pages, and ends records
-- that are due. Continues where the last call in any session stopped. If max_rows ends a call
-- within a range of pages, the next call reads that range again.
create function dipwell_internal.sweep_at(max_rows bigint, n bigint, max_pages bigint,
    out swept bigint, out looked bigint, out size bigint, out ended boolean, out page bigint, out covered bigint, out more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    range constant int := 16; -- pages
    s     dipwell.sweep_state;
    part  record;
    high  bigint;
begin
    n := dipwell_internal.past(n);
    swept := 0;
    looked := 0;
    ended := false;
    more := false;
    select x.page, x.passed - x.took into page, covered from dipwell.sweep_state x;
    if max_rows < 1 then
        return;
    end if;
    select * into s from dipwell.sweep_state for update skip locked;
    if not found then
        return; -- another sweep is running
    end if;
    if least(pg_relation_size('dipwell.buckets'), pg_relation_size('dipwell.hold_parts')) < 16 * current_setting('block_size')::int
        and (select relkind = 'r' from pg_class where oid = 'dipwell.buckets'::regclass) then
        perform dipwell_internal.make_room(); -- rewritten by VACUUM FULL, or emptied by a crash
    end if;
    select coalesce(sum(p.pages), 0) into size from dipwell_internal.parts() p;
    if s.page >= size then
        s.page := 0; -- the table was rewritten and is smaller
    end if;
    more := dipwell_internal.sweep_records(max_rows, n); -- before the rows, of which those with records stay
    while swept < max_rows and looked < least(max_pages, size) loop
        if s.page = 0 then
            s.began := dipwell_internal.now_us();
        end if;
        select * into part from dipwell_internal.parts() p where p.first + p.pages > s.page order by p.first limit 1;
        high := least(s.page + range, part.first + part.pages);
        swept := swept + dipwell_internal.sweep_pages(part.relid, s.page - part.first, high - part.first, max_rows - swept, n);
        exit when swept >= max_rows;
        looked := looked + high - s.page;
        s.page := high;
        if s.page >= size then
            s.page := 0;
            s.passed := dipwell_internal.now_us();
            s.took := s.passed - s.began;
            covered := s.began;
            ended := true;
            perform dipwell_internal.mark_overridden(x.id) from (
                select l.id from dipwell.limits l where l.overridden is not true and exists (select from dipwell.key_overrides o where o.limit_id = l.id)
                for no key update skip locked) x;
        end if;
    end loop;
    page := s.page;
    if (select count(*) from dipwell.revision) > 100 then -- one row with their sum
        with gone as (delete from dipwell.revision x where x.id = any (array(select y.id from dipwell.revision y for update skip locked)) returning x.n)
        insert into dipwell.revision (n) select sum(g.n) from gone g having count(*) > 0;
    end if;
    perform dipwell_internal.sweep_overrides(max_rows, n);
    delete from dipwell.top_hours x where x.ctid = any (array(
        select y.ctid from dipwell.top_hours y where y.id < dipwell_internal.audit_id(greatest(n - 604800000000, 0), 0) for update skip locked));
    delete from dipwell.usage x where x.ctid = any (array(
        select y.ctid from dipwell.usage y where y.hour < timestamptz 'epoch' + dipwell_internal.length(n - 2678400000000) limit max_rows for update skip locked));
    update dipwell.sweep_state x set page = sweep_at.page, began = s.began, passed = s.passed, took = s.took, swept = x.swept + sweep_at.swept;
end $$;

-- Ends reservations and holds that are due at n. Returns whether more may be due.
create function dipwell_internal.sweep_records(max_rows bigint, n bigint) returns boolean language plpgsql volatile as $$
declare
    p    record;
    more boolean := max_rows in ((select count(*) from (select from dipwell.reservations x where x.due <= n limit max_rows) y),
                                 (select count(*) from (select from dipwell.hold_parts x where x.due <= n limit max_rows) y));
begin
    for p in select distinct x.limit_id, x.key from (
            (select y.limit_id, y.key, true as live from dipwell.reservations y where y.due <= n order by y.due limit max_rows)
            union all (select y.limit_id, y.key, y.live from dipwell.hold_parts y where y.due <= n order by y.due limit max_rows)) x where x.live loop
        perform from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update skip locked;
        continue when not found and exists (select from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key);
        perform dipwell_internal.bring(p.limit_id, p.key, n);
        delete from dipwell.reservations x where x.limit_id = p.limit_id and x.key = p.key and x.due <= n
            and not exists (select from dipwell.buckets y join dipwell.limits l on l.id = y.limit_id where y.limit_id = p.limit_id and y.key = p.key and y.lows is not null);
    end loop;
    perform dipwell_internal.forget_holds(max_rows, n);
    return more;
end $$;

-- Rows are found by ctid from an array: a subquery behind IN may be planned to run again
-- for each row of the table, and would then find other rows each time.
create function dipwell_internal.forget_holds(max_rows bigint, n bigint) returns bigint language plpgsql volatile as $$
declare
    gone bigint;
begin
    delete from dipwell.hold_parts x where x.ctid = any (array(
        select y.ctid from dipwell.hold_parts y where y.due <= n and not y.live order by y.due limit max_rows for update skip locked));
    get diagnostics gone = row_count;
    return gone;
end $$;

-- Deletes at most max_rows overrides that have ended at n.
create function dipwell_internal.sweep_overrides(max_rows bigint, n bigint) returns void language plpgsql volatile as $$
declare
    p record;
begin
    for p in select x.limit_id, x.key from dipwell.key_overrides x where x.until <= n order by x.until limit max_rows loop
        perform from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update skip locked;
        if found then
            perform dipwell_internal.bring(p.limit_id, p.key, n);
        elsif not exists (select from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key) then
            perform dipwell_internal.keep_override(p.limit_id, p.key, null, n);
        end if;
    end loop;
end $$;
