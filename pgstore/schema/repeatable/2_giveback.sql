-- Cancellations give tokens back. Go twin: giveback.go. The lows of a row are an array:
-- mark, next, the number of live holds, 1 if the key has other records, and for each entry
-- its number and used. A row has the last used in a column of its own, low, so that a call
-- that charges it can lower it without a look at the others.

create function dipwell_internal.next_due(lim int, of_key text) returns bigint language plpgsql volatile as $$
begin
    return least((select x.expires from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live order by x.expires limit 1),
        (select min(case when x.slack is not null then x.part_due else x.due end) from dipwell.reservations x where x.limit_id = lim and x.key = of_key and not x.rest));
end $$;
comment on function dipwell_internal.next_due is 'When the first live record of a key ends; null if it has none.';

create function dipwell_internal.lows_columns(lim int, of_key text, list bigint[], out lows bigint[], out low bigint, out due bigint) language plpgsql volatile as $$
begin
    lows := list[:cardinality(list) - 1];
    low := list[cardinality(list)];
    due := dipwell_internal.next_due(lim, of_key);
end $$;
comment on function dipwell_internal.lows_columns is 'The columns that a row with these lows stores.';

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
comment on function dipwell_internal.lows_rise is 'Joins neighbouring entries if the first low is not below the second.';

create function dipwell_internal.lows_joined(lows bigint[], low bigint) returns bigint[] language sql immutable as $$
    select case when cardinality(lows) > 5 and lows[cardinality(lows) - 1] >= low then dipwell_internal.lows_rise(lows || low) else lows || low end
$$;
comment on function dipwell_internal.lows_joined is 'The lows of a row that stores lows, and low as the last of them.';

create function dipwell_internal.lows_of(lows bigint[], low bigint) returns bigint[] language sql immutable as
$$ select case when low > 0 then dipwell_internal.lows_joined(lows, low) end $$;
comment on function dipwell_internal.lows_of is 'The lows of a row with these columns; null if no record can give anything back.';

create function dipwell_internal.lows_cover(lows bigint[], number bigint) returns int language plpgsql immutable as $$
begin
    for i in reverse cardinality(lows) - 1..5 by 2 loop
        if lows[i] <= number then
            return i;
        end if;
    end loop;
    return null;
end $$;
comment on function dipwell_internal.lows_cover is 'The index of the entry that covers a record; null if none does.';

create function dipwell_internal.lows_limit(lows bigint[], at int, used bigint) returns bigint[] language plpgsql immutable as $$
begin
    if used < lows[at + 1] then
        lows[at + 1] := used;
        return dipwell_internal.lows_rise(lows);
    end if;
    return lows;
end $$;
comment on function dipwell_internal.lows_limit is 'Lowers the entry at an index to used, if that is less.';

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
comment on function dipwell_internal.lows_lower is 'Takes units off every low from the one that covers a record on, and returns those taken off the last.';

-- For a key with many holds, each hold joins two entries. The array is assembled at the
-- end, because each assignment or || before that would copy all of it.
create function dipwell_internal.lows_append(lows bigint[], used bigint) returns bigint[] language plpgsql immutable as $$
declare
    at  int := 7;
    gap bigint; -- between the low before at and that of at
begin
    if not ((cardinality(lows) / 2 - 1) > 32) then
        return array[lows[1], lows[2] + 1] || lows[3:] || array[lows[2], used];
    end if;
    gap := lows[8] - lows[6];
    for i in 9..cardinality(lows) - 1 by 2 loop
        if lows[i + 1] - lows[i - 1] < gap - 0 then
            at := i;
            gap := lows[i + 1] - lows[i - 1];
        end if;
    end loop;
    return array[lows[1], lows[2] + 1] || lows[3:at - 1] || lows[at + 2:] || array[lows[2], used];
end $$;
comment on function dipwell_internal.lows_append is 'Adds an entry for the next record, and joins the two closest if there are more than 32.';

create function dipwell_internal.room(lim int, of_key text, n bigint) returns bigint language plpgsql volatile as $$
declare
    live bigint := (select count(*) from (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live and x.expires > n limit 10000) y)
        + (select count(*) from (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.free and not x.settled and x.expires > n limit 10000) y)
        + (select count(*) from (select from dipwell.reservations x where x.limit_id = lim and x.key = of_key and (x.rest or x.due > n) limit 10000) y);
begin
    if live >= 10000 then
        perform dipwell_internal.wrong(format('key: has 10000 live holds and reservations of limit %s, the most of a key; settle or cancel some',
            (select x.name from dipwell.limits x where x.id = lim)));
    end if;
    return live;
end $$;
comment on function dipwell_internal.room is 'The number of live records of a key, also those that took nothing; an error if it can have no more.';

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
comment on function dipwell_internal.lows_room is 'The lows to which the next record of a key is appended; an error if it can have no more.';

create function dipwell_internal.touch(lows bigint[], a dipwell_internal.answer) returns bigint[] language plpgsql immutable as $$
begin
    if a.before = 0 or a.used = 0 then
        return null; -- as in a store that deleted the full row
    elsif a.clipped then
        return lows[1:5] || 0::bigint;
    end if;
    return dipwell_internal.lows_limit(lows, cardinality(lows) - 1, a.before);
end $$;
comment on function dipwell_internal.touch is 'The lows of a row that a call writes: the last is lowered to what was used before.';

create function dipwell_internal.resolve_records(l dipwell.limits, o dipwell.key_overrides, of_key text, present int, lows bigint[], n bigint) returns bigint[]
language plpgsql volatile as $$
declare
    p   record;
    at  int;
    lim int := l.id;
begin
    perform dipwell_internal.carry_records(l, o, of_key, present, n);
    for p in select x.mark, x.number, x.slack from dipwell.reservations x
        where x.limit_id = lim and x.key = of_key and x.slack is not null and x.part_due <= n order by x.part_due, x.number loop
        at := case when p.mark = lows[1] then dipwell_internal.lows_cover(lows, p.number - 1) end;
        if at is not null then
            lows := dipwell_internal.lows_limit(lows, at, p.slack);
        end if;
    end loop;
    update dipwell.reservations x set slack = null
        where x.limit_id = lim and x.key = of_key and x.slack is not null and x.part_due <= n;
    return dipwell_internal.retire_records(lim, of_key, lows, n);
end $$;
comment on function dipwell_internal.resolve_records is 'The lows for a write at n: records that are due lower them and are deleted; null if none is left.';

create function dipwell_internal.retire_records(lim int, of_key text, lows bigint[], n bigint) returns bigint[]
language plpgsql volatile as $$
declare
    live  bigint;
    waits bigint;
begin
    select count(*), coalesce(max(x.number) filter (where x.slack is not null), 0) into live, waits from dipwell.reservations x
        where x.limit_id = lim and x.key = of_key and x.mark = lows[1] and not x.rest and (x.due > n or x.slack is not null);
    if live = 0 and lows[3] = 0 then
        lows := null;
    end if;
    delete from dipwell.reservations x where x.limit_id = lim and x.key = of_key
        and case when x.rest then x.mark is distinct from lows[1] or x.units = 0 or x.number >= waits else x.due <= n and x.slack is null end;
    if lows[4] > 0 then
        lows[4] := (exists (select from dipwell.reservations x where x.limit_id = lim and x.key = of_key)
            or exists (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.free and not x.settled)
            or (select count(*) from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live) > lows[3])::int;
    end if;
    return lows;
end $$;
comment on function dipwell_internal.retire_records is 'Deletes records that have ended, and returns the lows, or null if no live record is left.';

create function dipwell_internal.give_rests(lim int, of_key text, number bigint, others boolean, inout lows bigint[], out given bigint)
language plpgsql volatile as $$
declare
    p      record;
    free   bigint := 9007199254740991; -- the least slack of the waiting records that were made after p
    waits  bigint[] := '{}';           -- their numbers, and what newer records had given back, which does not count for them
    before bigint[] := '{}';
    g      record;
begin
    given := 0;
    for p in select x.id, x.number, x.units, x.slack, x.rest from dipwell.reservations x
        where x.limit_id = lim and x.key = of_key and x.mark = lows[1]
            and (x.slack is not null or x.rest and (x.number <> give_rests.number) = others) order by x.number desc loop
        if p.slack is not null then
            free := least(free, p.slack);
            waits := waits || p.number;
            before := before || given;
        elsif least(p.units, free) <> 0 then
            update dipwell.reservations x set units = x.units - least(p.units, free)
                where x.id = p.id and x.limit_id = lim and x.key = of_key;
            select * into g from dipwell_internal.lows_lower(lows, p.number, least(p.units, free));
            lows := g.lows;
            given := given + g.units;
            free := free - g.units;
        end if;
    end loop;
    update dipwell.reservations x set slack = x.slack - (given - w.before)
        from unnest(waits, before) w (number, before)
        where given - w.before <> 0 and x.limit_id = lim and x.key = of_key and x.number = w.number and x.mark = lows[1] and x.slack is not null;
end $$;
comment on function dipwell_internal.give_rests is 'Gives back the units that a cancelled record withholds, or with others those of all others.';

create function dipwell_internal.give_back_part(lim int, of_key text, reservation uuid, n bigint, of_hold boolean default false) returns void
language plpgsql volatile as $$
declare
    l    dipwell.limits;
    b    dipwell.buckets;
    p    dipwell.reservations;
    c    record;
    g    record;
    held bigint;   -- used at n
    list bigint[]; -- the row's lows
begin
    select * into l from dipwell.limits x where x.id = lim;
    select * into b from dipwell.buckets x where x.limit_id = lim and x.key = of_key;
    if l.id is null or b.limit_id is null then -- limit dropped, or bucket full
        delete from dipwell.reservations x where x.id = reservation and x.limit_id = lim and x.key = of_key;
        return;
    end if;
    if of_hold and b.lows[1] = (select x.mark from dipwell.reservations x where x.id = reservation and x.limit_id = lim and x.key = of_key) then
        b.lows[3] := b.lows[3] - 1;
    end if;
    perform dipwell_internal.check_version(l, case when b.version < 0 then (dipwell_internal.override_of(lim, of_key)).version else dipwell_internal.version_of(b.version) end);
    select * into c from dipwell_internal.settle_row(l, b, n);
    b := c.b;
    list := dipwell_internal.lows_of(b.lows, b.low);
    held := dipwell_internal.used_at(c.r, b.used, b.ts, greatest(n, b.ts));
    select * into p from dipwell.reservations x where x.id = reservation and x.limit_id = lim and x.key = of_key;
    if held = 0 or list is null or p.mark <> list[1] then
        delete from dipwell.reservations x where x.id = reservation and x.limit_id = lim and x.key = of_key;
    else
        update dipwell.reservations x set rest = true, slack = null where x.id = reservation and x.limit_id = lim and x.key = of_key;
        list := dipwell_internal.lows_limit(list, cardinality(list) - 1, held);
        select * into g from dipwell_internal.give_rests(lim, of_key, p.number, false, list);
        held := held - g.given;
        select * into g from dipwell_internal.give_rests(lim, of_key, p.number, true, g.lows);
        held := held - g.given;
        list := dipwell_internal.retire_records(lim, of_key, case when held <> 0 then g.lows end, n);
    end if;
    update dipwell.buckets x set used = held, ts = greatest(n, b.ts), (lows, low, due) = (select * from dipwell_internal.lows_columns(lim, of_key, case when held <> 0 then list end))
        where x.limit_id = lim and x.key = of_key;
end $$;
comment on function dipwell_internal.give_back_part is 'Gives back a reservation''s part for one key, or with of_hold that of a hold.';

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
    -- If some parts are missing, their keys were reset.
    select count(*) as found, max(y.parts) as parts into p from
        (select x.parts from dipwell.reservations x where x.id = reservation and x.due > n and not x.rest for update) y;
    if p.found = 0 or p.found <> p.parts then
        return false;
    end if;
    for p in select distinct x.limit_id, x.key from dipwell.reservations x where x.id = reservation and not x.rest loop
        perform dipwell_internal.expire_holds(p.limit_id, p.key, n);
    end loop;
    for p in select x.limit_id, x.key from dipwell.reservations x where x.id = reservation and not x.rest order by x.limit_id, x.key loop
        perform dipwell_internal.give_back_part(p.limit_id, p.key, reservation, n);
    end loop;
    return true;
end $$;
comment on function dipwell_internal.give_back is 'Cancels a reservation before it is due. Returns false if there is none.';
