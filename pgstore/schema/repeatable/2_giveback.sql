
-- == Records that give tokens back

-- The lows of a row are an array: mark, next, the number of live holds, 1 if the key has
-- other records, and for each entry its number and used. The last used is in a column of its
-- own, low, so that a call that charges the row can lower it without reading the others.

-- When the first live record of a key ends; null if it has none.
create function dipwell_internal.next_due(lim int, of_key text) returns bigint language plpgsql volatile as $$
begin
    return least((select x.till from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live order by x.till limit 1),
        (select min(case when x.slack is not null then x.part_due else x.due end) from dipwell.reservations x where x.limit_id = lim and x.key = of_key and not x.rest));
end $$;

-- Joins neighbouring entries if the first low is not below the second.
create function dipwell_internal.lows_rise(lows bigint[]) returns bigint[] language plpgsql immutable as $$
declare
    risen bigint[] := lows[1:4];
    k     int := 4;
    first bigint;
begin
    for i in 5..cardinality(lows) by 2 loop
        first := lows[i];
        while k > 4 and risen[k] >= lows[i + 1] loop
            first := risen[k - 1];
            k := k - 2;
        end loop;
        risen[k + 1] := first;
        risen[k + 2] := lows[i + 1];
        k := k + 2;
    end loop;
    return risen[1:k];
end $$;

-- The lows of a row that stores lows, and low as the last of them.
create function dipwell_internal.lows_joined(lows bigint[], low bigint) returns bigint[] language sql immutable as $$
    select case when cardinality(lows) > 5 and lows[cardinality(lows) - 1] >= low then dipwell_internal.lows_rise(lows || low) else lows || low end
$$;

-- The lows of a row with these columns; null if no record can give anything back.
create function dipwell_internal.lows_of(lows bigint[], low bigint) returns bigint[] language sql immutable as
$$ select case when low > 0 then dipwell_internal.lows_joined(lows, low) end $$;

-- The index of the entry that covers a record; null if none does.
create function dipwell_internal.lows_cover(lows bigint[], number bigint) returns int language plpgsql immutable as $$
begin
    for i in reverse cardinality(lows) - 1..5 by 2 loop
        if lows[i] <= number then
            return i;
        end if;
    end loop;
    return null;
end $$;

-- Lowers the entry at an index to used, if that is less.
create function dipwell_internal.lows_limit(lows bigint[], at int, used bigint) returns bigint[] language plpgsql immutable as $$
begin
    if used < lows[at + 1] then
        lows[at + 1] := used;
        return dipwell_internal.lows_rise(lows);
    end if;
    return lows;
end $$;

-- Takes units off every low from the one that covers a record on, and returns how many were
-- taken off the last.
create function dipwell_internal.lows_lower(inout lows bigint[], number bigint, inout units bigint) language plpgsql immutable as $$
declare
    first int := dipwell_internal.lows_cover(lows, number);
    falls boolean := false; -- an entry is not above the one before it
begin
    if first is null then
        units := 0;
        return;
    end if;
    for i in first + 1..cardinality(lows) by 2 loop
        units := least(units, lows[i]);
        lows[i] := lows[i] - units;
        falls := falls or i > 6 and lows[i - 2] >= lows[i];
    end loop;
    if falls then
        lows := dipwell_internal.lows_rise(lows);
    end if;
end $$;

-- Adds an entry for the next record, and joins the two closest if there are more than 32. For
-- a key with many holds, each hold joins two entries. The array is assembled at the end,
-- because each assignment or || before that would copy all of it.
create function dipwell_internal.lows_append(lows bigint[], used bigint) returns bigint[] language plpgsql immutable as $$
declare
    at  int := 7;
    gap bigint; -- the low of the entry at, less that of the entry before it
begin
    if cardinality(lows) / 2 <= 33 then
        return array[lows[1], lows[2] + 1] || lows[3:] || array[lows[2], used];
    end if;
    gap := lows[8] - lows[6];
    for i in 9..cardinality(lows) - 1 by 2 loop
        if lows[i + 1] - lows[i - 1] < gap then
            at := i;
            gap := lows[i + 1] - lows[i - 1];
        end if;
    end loop;
    return array[lows[1], lows[2] + 1] || lows[3:at - 1] || lows[at + 2:] || array[lows[2], used];
end $$;

-- The number of live records of a key, also those that took nothing; an error if it can have
-- no more.
create function dipwell_internal.room(lim int, of_key text, n bigint) returns bigint language plpgsql volatile as $$
declare
    live bigint := (select count(*) from (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live and x.till > n limit 10000) y)
        + (select count(*) from (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.free and not x.settled and x.expires > n limit 10000) y)
        + (select count(*) from (select from dipwell.reservations x where x.limit_id = lim and x.key = of_key and (x.rest or x.due > n) limit 10000) y);
begin
    if live >= 10000 then
        perform dipwell_internal.wrong(format('key: has 10000 live holds and reservations of limit %s, the most of a key; settle or cancel some',
            (select x.name from dipwell.limits x where x.id = lim)));
    end if;
    return live;
end $$;

-- The lows to which the next record of a key is appended; an error if it can have no more.
-- Live records are counted only if the list does not tell how many there are.
create function dipwell_internal.lows_room(lim int, of_key text, lows bigint[], mark bigint, n bigint) returns bigint[] language plpgsql volatile as $$
begin
    if lows is null then
        return array[mark, 1, 0, least(dipwell_internal.room(lim, of_key, n), 1)];
    elsif lows[4] > 0 or lows[3] >= 10000 then
        perform dipwell_internal.room(lim, of_key, n);
    end if;
    return lows;
end $$;

-- A row while it is brought up to a time, with its reservations, the newest first: those that
-- wait, and cancelled ones that withhold units (their slack is null). Holds that had expired
-- at till were given back. reset is when a change of the limit ended all records; null: none
-- did.
create type dipwell_internal.books as (
    used    bigint,
    ts      bigint,
    version int,
    rule    dipwell.versions,
    lows    bigint[],
    waits   dipwell.reservations[],
    till    bigint,
    ended   boolean,
    reset   bigint
);

create function dipwell_internal.with_slack(x dipwell.reservations, slack bigint) returns dipwell.reservations language plpgsql immutable as $$
begin
    x.slack := slack;
    return x;
end $$;

create function dipwell_internal.books_at(inout k dipwell_internal.books, n bigint) language plpgsql stable as $$
declare
    t bigint := greatest(n, k.ts);
begin
    k.used := dipwell_internal.used_at(k.rule, k.used, k.ts, t);
    k.ts := dipwell_internal.written_at(k.rule, k.used, k.ts, t);
end $$;

-- Converts units from those of which a token has was to those of which it has unit.
create function dipwell_internal.in_units(units bigint, was bigint, unit bigint) returns bigint language sql immutable as
$$ select case when was = unit then units when units is not null then dipwell_internal.mul_div(units, unit, was, false) end $$;

-- The lows of a row that was converted to used units under the rule r.
create function dipwell_internal.lows_convert(lows bigint[], was dipwell.versions, r dipwell.versions, used bigint) returns bigint[] language plpgsql immutable strict as $$
begin
    if used >= r.max_used then -- the row may have been clipped
        return lows[1:5] || 0::bigint;
    end if;
    for i in 6..cardinality(lows) by 2 loop
        lows[i] := dipwell_internal.in_units(lows[i], was.unit, r.unit);
    end loop;
    return dipwell_internal.lows_rise(lows);
end $$;

-- Converts a row, with the units used at the time at, and its records to the next rule.
create function dipwell_internal.books_convert(inout k dipwell_internal.books, was dipwell.versions, r dipwell.versions, at bigint) language plpgsql stable as $$
begin
    k.ts := dipwell_internal.carried_at(was, r, k.used, k.ts, at);
    if k.lows is not null and r.policy = 'reset' then
        k.used := 0;
        k.lows := null;
        k.waits := null;
        k.reset := k.till;
        return;
    elsif k.lows is not null then
        r.policy := 'keep'; -- a fraction of a record would give back what others took
        k.waits := array(select dipwell_internal.with_slack(x, dipwell_internal.in_units(x.slack, was.unit, r.unit)) from unnest(k.waits) x order by x.number desc);
    end if;
    k.used := dipwell_internal.convert_row(k.used, at, was, r);
    k.lows := case when not r.sliding then dipwell_internal.lows_convert(k.lows, was, r, k.used) end; -- nothing can be given back to it
end $$;

-- Drops units that are withheld for a reservation that is gone, and the lows if no live record
-- is left.
create function dipwell_internal.books_retire(inout k dipwell_internal.books, lim int, of_key text, t bigint) language plpgsql stable as $$
declare
    newest bigint := (select max(x.number) from unnest(k.waits) x where x.slack is not null);
begin
    k.waits := array(select x from unnest(k.waits) x where x.slack is not null or x.units > 0 and x.number < newest order by x.number desc);
    if k.used = 0 or k.lows[cardinality(k.lows)] = 0 or k.lows[3] = 0 and newest is null and not exists (select from dipwell.reservations x
            where x.limit_id = lim and x.key = of_key and x.mark = k.lows[1] and not x.rest and x.due > t) then
        k.lows := null;
    end if;
end $$;

-- Gives back units of a record, and units that other records withhold, the newest first.
-- Units that a waiting reservation needs are withheld.
create function dipwell_internal.books_give(inout k dipwell_internal.books, number bigint, units bigint, unit bigint) language plpgsql stable as $$
declare
    whole bigint := dipwell_internal.in_units(units, unit, (k.rule).unit);
    back_ bigint := least(whole, (select min(x.slack) from unnest(k.waits) x where x.number > books_give.number));
    own   dipwell.reservations; -- what is withheld of the record
    w     dipwell.reservations;
    g     record;
begin
    select * into g from dipwell_internal.lows_lower(k.lows, number, back_);
    k.lows := g.lows;
    k.used := k.used - g.units;
    if (cardinality(k.waits) > 0) is not true then
        return;
    end if;
    own.number := number;
    own.units := case when back_ > 0 then whole - back_ else units end;
    own.unit := case when back_ > 0 then (k.rule).unit else unit end;
    k.waits := array(select case when x.number > own.number then dipwell_internal.with_slack(x, x.slack - g.units) else x end from unnest(k.waits) x order by x.number desc);
    for w in select x.* from unnest(k.waits) x where x.slack is null order by x.number desc loop
        whole := dipwell_internal.in_units(w.units, w.unit, (k.rule).unit);
        back_ := least(whole, (select min(x.slack) from unnest(k.waits) x where x.number > w.number));
        continue when back_ = 0;
        select * into g from dipwell_internal.lows_lower(k.lows, w.number, back_);
        k.lows := g.lows;
        k.used := k.used - g.units;
        w.units := whole - back_;
        w.unit := (k.rule).unit;
        k.waits := array(select case when x.number > w.number then dipwell_internal.with_slack(x, x.slack - g.units) when x.number < w.number then x else w end from unnest(k.waits) x order by x.number desc);
    end loop;
    k.waits := array(select x from unnest(k.waits || own) x order by x.number desc);
end $$;

-- Ends the records that have ended at t, to which the row was stepped: first the
-- reservations, and then the holds.
create function dipwell_internal.books_end(inout k dipwell_internal.books, lim int, of_key text, t bigint) language plpgsql stable as $$
declare
    p       record;
    at      int;
    touched boolean := false;
begin
    if k.lows is not null then
        for p in select x.number, x.slack from unnest(k.waits) x where x.slack is not null and x.part_due <= t order by x.part_due, x.number loop
            at := dipwell_internal.lows_cover(k.lows, p.number - 1);
            if at is not null then
                k.lows := dipwell_internal.lows_limit(k.lows, at, p.slack);
            end if;
        end loop;
        k.waits := array(select x from unnest(k.waits) x where x.slack is null or x.part_due > t order by x.number desc);
        k := dipwell_internal.books_retire(k, lim, of_key, t);
        for p in select x.number, x.units, x.unit, x.keep from dipwell.hold_parts x
            where x.limit_id = lim and x.key = of_key and x.live and x.mark = k.lows[1] and x.till > k.till and x.till <= t order by x.till loop
            if not touched and not p.keep then
                k.lows := dipwell_internal.lows_limit(k.lows, cardinality(k.lows) - 1, k.used);
                touched := true;
            end if;
            k.lows[3] := k.lows[3] - 1;
            if not p.keep then
                k := dipwell_internal.books_give(k, p.number, p.units, p.unit);
            end if;
        end loop;
        if found then
            k := dipwell_internal.books_retire(k, lim, of_key, t);
        end if;
    end if;
    k.till := t;
end $$;

-- A row converted to its own definition at the present version, without what has ended at n.
-- The function changes nothing. Records that ended before a version or an override began or
-- ended are ended before the row is converted.
create function dipwell_internal.brought(l dipwell.limits, o dipwell.key_overrides, b dipwell.buckets, n bigint) returns dipwell_internal.books language plpgsql stable as $$
declare
    k dipwell_internal.books;
    r dipwell.versions := (dipwell_internal.own_definition(l, o, b.version, n)).rule;
    w record;
begin
    k.used := b.used;
    k.ts := b.ts;
    k.version := r.number;
    k.lows := dipwell_internal.lows_of(b.lows, b.low);
    k.till := -9007199254740991;
    k.ended := coalesce(b.due <= n, false) and exists (select from dipwell.hold_parts x where x.limit_id = l.id and x.key = b.key and x.live and x.till <= n and not x.keep);
    if k.lows[4] > 0 then
        k.waits := array(select x from dipwell.reservations x where x.limit_id = l.id and x.key = b.key and x.mark = k.lows[1] and (x.slack is not null or x.rest) order by x.number desc);
    end if;
    for w in select * from dipwell_internal.walk(l, o, b.version, b.ts, n, r.number) where b.version <> r.number or b.version < 0 and o.version <> l.version loop
        if not w.known then -- a definition that is gone
            k.used := 0;
            k.lows := null;
        end if;
        continue when w.r is null;
        k.rule := dipwell_internal.spread(w.was, l.name, b.key);
        k.used := dipwell_internal.used_at(k.rule, k.used, k.ts, w.at);
        k := dipwell_internal.books_end(k, l.id, b.key, least(w.at, n));
        k := dipwell_internal.books_convert(k, k.rule, w.r, w.at);
    end loop;
    k.rule := dipwell_internal.spread(r, l.name, b.key);
    if l.algorithm = 'concurrency' then
        k.used := greatest(k.used - coalesce((select sum(x.units) from dipwell.hold_parts x
            where k.ended and x.limit_id = l.id and x.key = b.key and x.live and x.till <= n)::bigint, 0), 0);
    elsif k.lows is not null and b.due <= n then
        if k.ended then
            k := dipwell_internal.books_at(k, n);
        end if;
        k := dipwell_internal.books_end(k, l.id, b.key, n);
    end if;
    return k;
end $$;

-- Ends the records of a key's holds that are due at n. If reset is not null, all records of
-- the key end, at that time.
create function dipwell_internal.end_parts(lim int, of_key text, n bigint, reset bigint) returns void language plpgsql volatile as $$
begin
    update dipwell.hold_parts x set live = false, reset = coalesce(x.till > end_parts.reset, false),
            due = case x.parts when 1 then least(n, x.expires) else x.expires end + dipwell_internal.hold_stays(x.ttl)
        where x.limit_id = lim and x.key = of_key and x.live and x.till <= case when end_parts.reset is null then n else 9223372036854775807 end;
    delete from dipwell.reservations x where x.limit_id = lim and x.key = of_key and end_parts.reset is not null;
end $$;

-- Stores a row and its records at n.
create function dipwell_internal.store_books(lim int, of_key text, k dipwell_internal.books, n bigint) returns void language plpgsql volatile as $$
begin
    update dipwell.reservations x set slack = null where x.limit_id = lim and x.key = of_key and x.slack is not null and x.part_due <= n;
    if k.lows is not null then
        update dipwell.reservations x set slack = u.slack, units = u.units, unit = u.unit, rest = u.slack is null
            from unnest(k.waits) u
            where x.limit_id = lim and x.key = of_key and x.mark = k.lows[1] and x.number = u.number
                and (x.slack, x.units, x.unit, x.rest) is distinct from (u.slack, u.units, u.unit, u.slack is null);
        insert into dipwell.reservations (id, limit_id, key, units, unit, due, part_due, number, mark, rest, parts) -- what holds withhold
            select gen_random_uuid(), lim, of_key, u.units, u.unit, n + 1, n + 1, u.number, k.lows[1], true, 1
            from unnest(k.waits) u
            where not exists (select from dipwell.reservations x where x.limit_id = lim and x.key = of_key and x.mark = k.lows[1] and x.number = u.number);
    end if;
    delete from dipwell.reservations x where x.limit_id = lim and x.key = of_key
        and case when x.rest then x.mark is distinct from k.lows[1] or not exists (select from unnest(k.waits) u where u.number = x.number) else x.due <= n and x.slack is null end;
    if k.lows[4] > 0 then
        k.lows[4] := (exists (select from dipwell.reservations x where x.limit_id = lim and x.key = of_key)
            or exists (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.free and not x.settled)
            or (select count(*) from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live) > k.lows[3])::int;
    end if;
    k.lows := case when k.used > 0 then k.lows end;
    update dipwell.buckets x set used = k.used, ts = k.ts, version = k.version,
            lows = k.lows[:cardinality(k.lows) - 1], low = k.lows[cardinality(k.lows)], due = dipwell_internal.next_due(lim, of_key)
        where x.limit_id = lim and x.key = of_key;
end $$;

-- Brings a locked row and its records up to n, and returns them; null if there is no row.
create function dipwell_internal.bring(lim int, of_key text, n bigint) returns dipwell_internal.books language plpgsql volatile as $$
declare
    l dipwell.limits;
    b dipwell.buckets;
    o dipwell.key_overrides;
    k dipwell_internal.books;
begin
    select * into b from dipwell.buckets x where x.limit_id = lim and x.key = of_key;
    select * into l from dipwell.limits x where x.id = lim;
    if b.limit_id is null or l.id is null then
        perform dipwell_internal.end_parts(lim, of_key, n, null);
        return null;
    end if;
    o := dipwell_internal.override_of(lim, of_key);
    perform dipwell_internal.check_version(l, case when b.version < 0 then o.version else dipwell_internal.version_of(b.version) end);
    k := dipwell_internal.brought(l, o, b, n);
    perform dipwell_internal.end_parts(lim, of_key, n, k.reset);
    if b.due <= n or k.version <> b.version or o.until <= n then
        perform dipwell_internal.store_books(lim, of_key, k, n);
        perform dipwell_internal.store_override(o, dipwell_internal.renewed(l, dipwell_internal.live_override(o, n)), n);
    end if;
    return k;
end $$;

-- Gives back a record of a key: a reservation's, or with of_hold a hold's.
create function dipwell_internal.give_back_part(lim int, of_key text, of_number bigint, of_mark bigint, units bigint, unit bigint, n bigint, of_hold boolean) returns void
language plpgsql volatile as $$
declare
    k dipwell_internal.books := dipwell_internal.bring(lim, of_key, n);
begin
    delete from dipwell.reservations x where x.limit_id = lim and x.key = of_key and x.number = of_number and x.mark = of_mark;
    if k.version is null then
        return;
    end if;
    k := dipwell_internal.books_at(k, n);
    if k.used > 0 and k.lows[1] = of_mark then
        k.lows := dipwell_internal.lows_limit(k.lows, cardinality(k.lows) - 1, k.used);
        if of_hold then
            k.lows[3] := k.lows[3] - 1;
        else
            k.waits := array(select x from unnest(k.waits) x where x.number <> of_number order by x.number desc);
        end if;
        k := dipwell_internal.books_retire(dipwell_internal.books_give(k, of_number, units, unit), lim, of_key, n);
    end if;
    perform dipwell_internal.store_books(lim, of_key, k, n);
end $$;

-- Cancels a reservation before it is due. Returns false if there is no such reservation.
create function dipwell_internal.give_back(reservation uuid, at bigint default null) returns boolean
language plpgsql volatile set enable_seqscan = off as $$
declare
    n bigint := coalesce(at, dipwell_internal.now_us());
    p record;
begin
    -- Buckets are locked before reservations, as everywhere.
    for p in select x.limit_id, x.key from dipwell.reservations x where x.id = reservation and x.due > n and not x.rest
        order by x.limit_id, x.key loop
        perform from dipwell.buckets t where t.limit_id = p.limit_id and t.key = p.key for update;
    end loop;
    n := coalesce(at, dipwell_internal.now_us());
    perform dipwell_internal.bring(x.limit_id, x.key, n) from dipwell.reservations x where x.id = reservation and x.due > n and not x.rest;
    -- If some parts are missing, their keys were reset.
    select count(*) as found, max(y.parts) as parts into p from
        (select x.parts from dipwell.reservations x where x.id = reservation and x.due > n and not x.rest for update) y;
    if p.found = 0 or p.found <> p.parts then
        return false;
    end if;
    for p in select * from dipwell.reservations x where x.id = reservation and not x.rest order by x.limit_id, x.key loop
        perform dipwell_internal.give_back_part(p.limit_id, p.key, p.number, p.mark, p.units, p.unit, n, false);
    end loop;
    return true;
end $$;
