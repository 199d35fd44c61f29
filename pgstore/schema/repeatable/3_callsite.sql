-- Definitions of call sites. Go twin: callsite.go.

create function dipwell_internal.compile_call_site(d dipwell.limits, base dipwell.versions, site text) returns dipwell.plans language plpgsql stable as $$
declare
    s record;
    r dipwell.versions;
    p dipwell.plans;
begin
    select * into s from dipwell_internal.plans_of('#:' || site);
    r := dipwell_internal.compile_variant(d, base, 'of a call site', s.rate, dipwell_internal.parse_per(s.per), s.burst, s.max_debt);
    p.limit_id := base.limit_id;
    p.version := base.number;
    p.mode := s.mode;
    p.callable := true;
    p.unit := r.unit;
    p.add := r.add;
    p.cap := r.cap;
    p.debt := r.debt;
    p.max_charge := r.max_charge;
    p.max_used := r.max_used;
    return p;
end $$;
comment on function dipwell_internal.compile_call_site is
    'The plan that the settings of a call site make of the version base of a limit, without its name and number.';

create function dipwell_internal.put_call_site(d dipwell.limits, base dipwell.versions, i int, site text) returns void language plpgsql volatile as $$
declare
    p dipwell.plans := dipwell_internal.compile_call_site(d, base, site);
begin
    p.name := '#' || i;
    p.number := ((1024 + i) << 20) + base.number;
    insert into dipwell.plans select p.*;
end $$;
comment on function dipwell_internal.put_call_site is
    'Compiles a definition of a call site for the version base of a limit.';

-- A definition that is in use is only looked up. A new one gets the index after the last
-- one, so that indexes are used again as late as possible. The limit is locked, so that
-- no other call takes the same index and no new version begins, for which the definition
-- would not be compiled.
--
-- A search for definitions that no row refers to reads all rows of the limit. Only one
-- search runs at a time. The next one may begin after a second, or after nine times its
-- duration if that is longer; until then one definition too many is refused. In that case
-- the result has no index. It is not an error, because an error would undo the record of
-- the search.
create function dipwell_internal.call_site(lim int, site text, at bigint default null) returns dipwell.call_sites
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    d    dipwell.limits;
    base dipwell.versions;
    p    dipwell.plans;
    c    dipwell.call_sites;
    free int; -- an index that no definition has
    n    bigint;
    live int;
    last bigint; -- when rows were searched last
    stepped boolean;
    most constant int := 256; -- number.MaxCallSites
begin
    for round in 1..2 loop
        if round = 1 then
            select * into d from dipwell.limits x where x.id = lim;
        else
            select * into d from dipwell.limits x where x.id = lim for no key update;
        end if;
        if d.id is null then
            raise exception using errcode = 'undefined_object', constraint = 'limit_name', message = 'limit_name: the limit was dropped';
        end if;
        base := (dipwell_internal.base_definition(d)).rule;
        p := dipwell_internal.compile_call_site(d, base, site);
        -- Each rule is compared once, and the number of the one that counts alike is
        -- looked up, so that the time grows with the number of definitions and not with
        -- its square.
        select s.* into c from dipwell.plans x join dipwell.call_sites s on s.limit_id = x.limit_id and s.i = (x.number >> 20) - 1024
            where x.limit_id = lim and s.limit_id = lim and x.version = d.version and s.ended is null
                and row(x.mode, x.unit, x.add, x.cap, x.debt, x.max_charge, x.max_used) is not distinct from row(p.mode, p.unit, p.add, p.cap, p.debt, p.max_charge, p.max_used)
            order by s.i limit 1;
        if found then
            return c;
        end if;
        continue when round = 1;
        n := coalesce(at, dipwell_internal.now_us());
        select count(*) filter (where s.ended is null), max(s.looked) filter (where s.looked > s.made) into live, last
            from dipwell.call_sites s where s.limit_id = lim;
        stepped := coalesce(last - n > 86400000000, false); -- the clock, back: no search takes hours
        if live >= most and (stepped or coalesce(n - last >= 1000000, true)) then
            perform dipwell_internal.end_call_sites(lim, n, case when stepped then last else n end, 0);
            select count(*) into live from dipwell.call_sites s where s.limit_id = lim and s.ended is null;
        end if;
        select (x.i + g) % 1024 into free
            from (select coalesce((select s.i from dipwell.call_sites s where s.limit_id = lim order by s.made desc, s.i desc limit 1), -1) as i) x, generate_series(1, 1024) g
            where not exists (select from dipwell.call_sites s where s.limit_id = lim and s.i = (x.i + g) % 1024) order by g limit 1;
        if free is null or live >= most then
            return null;
        end if;
        insert into dipwell.call_sites (limit_id, i, settings, made, looked) values (lim, free, site, n, n) on conflict do nothing returning * into c;
        if found then
            perform dipwell_internal.put_call_site(d, base, free, site);
            return c;
        end if;
    end loop;
    raise exception using errcode = 'serialization_failure', message = 'another transaction made a definition of the same limit; try again';
end $$;
comment on function dipwell_internal.call_site is
    'The definition of a call site with these settings. It is made if there is none that counts alike. Null if the limit has as many as it may have. at replaces the clock, for tests.';

create function dipwell_internal.end_call_sites(lim int, n bigint, unlooked bigint, over bigint) returns bigint language plpgsql volatile as $$
declare
    begun bigint := dipwell_internal.now_us();
    named int[] := array(select distinct (x.version >> 20) - 1024 from (
            select b.version from dipwell.buckets b where b.limit_id = lim
            union all select r.version from dipwell.reservations r where r.limit_id = lim
            union all select h.version from dipwell.hold_parts h where h.limit_id = lim) x
        where x.version >= 1024 << 20);
    gone bigint;
begin
    update dipwell.call_sites s set looked = n + 10 * greatest(dipwell_internal.now_us() - begun, 0), ended = case when s.i <> all (named) then coalesce(s.ended, n) end
        where s.limit_id = lim and (s.looked <= unlooked or s.ended is not null);
    delete from dipwell.plans p using dipwell.call_sites s
        where s.limit_id = lim and s.ended < over and p.limit_id = lim and p.number >> 20 = 1024 + s.i;
    delete from dipwell.call_sites s where s.limit_id = lim and s.ended < over;
    get diagnostics gone = row_count;
    update dipwell.revision set n = revision.n + 1;
    return gone;
end $$;
comment on function dipwell_internal.end_call_sites is
    'Ends the definitions of call sites that no row, reservation or hold refers to, if they were not looked up since unlooked; ended ones that rows refer to are used again. Deletes those that ended before over. Returns their number.';
