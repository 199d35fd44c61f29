
-- == Holds: how they are kept and settled

-- Buckets are locked before hold_parts, in the order of limit and key.

-- The column lows of a row after one more hold.
create function dipwell_internal.lows_hold(lows bigint[], low bigint, used bigint) returns bigint[] language plpgsql immutable as $$
begin
    lows := dipwell_internal.lows_append(dipwell_internal.lows_joined(lows, low), used);
    return lows[1:2] || lows[3] + 1 || lows[4:cardinality(lows) - 1];
end $$;

-- How many units a hold gives back, and then low and lows of the row after it, without lows
-- if it was the last. Each expression is prepared again in each transaction, which costs more
-- than to compute it. So the common case, a record of the last entry, has only two expressions.
create function dipwell_internal.lows_settle(lows bigint[], low bigint, number bigint, units bigint) returns bigint[] language plpgsql immutable as $$
begin
    if lows[3] > 1 and lows[cardinality(lows)] <= number and (cardinality(lows) = 5 or not (lows[cardinality(lows) - 1] >= low - least(units, low))) then
        return array[least(units, low), low - least(units, low)] || lows[1:2] || lows[3] - 1 || lows[4:];
    end if;
    lows[3] := lows[3] - 1;
    return (select case lows_settle.lows[3] when 0 then array[x.units, null] else array[x.units, x.lows[cardinality(x.lows)]] || x.lows[:cardinality(x.lows) - 1] end
        from dipwell_internal.lows_lower(dipwell_internal.lows_joined(lows_settle.lows, low), number, lows_settle.units) x);
end $$;

-- For how many µs the record of an ended hold stays.
create function dipwell_internal.hold_stays(ttl bigint) returns bigint language sql immutable as
$$ select least(greatest(ttl, 60000000), 3600000000) $$;

-- Until when a row of hold_parts is live, in µs, if the part took something. A part that
-- keeps its tokens stays live after it has expired: it can still be settled to less.
create function dipwell_internal.hold_due(expires bigint, ttl bigint, keep boolean) returns bigint language sql immutable as
$$ select expires + case when keep then dipwell_internal.hold_stays(ttl) else 0 end $$;

-- When a row of hold_parts may be deleted, in µs.
create function dipwell_internal.hold_gone(p dipwell.hold_parts) returns bigint language sql immutable as
$$ select case when p.live then p.expires + dipwell_internal.hold_stays(p.ttl) else p.due end $$;

create function dipwell_internal.hold_conflict(reason text, field text default 'hold') returns void language plpgsql as $$
begin
    raise exception using errcode = 'object_not_in_prerequisite_state', constraint = field, message = field || ': ' || reason;
end $$;

-- Whether a key has holds that may give something back to its row. The function is volatile,
-- so that it sees holds that were made while its statement waited for the row.
create function dipwell_internal.has_live_hold(lim int, of_key text, n bigint) returns boolean language plpgsql volatile as $$
begin
    return exists (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live and x.till > n
        and (x.number = 0 or x.mark = (select b.lows[1] from dipwell.buckets b where b.limit_id = lim and b.key = of_key and b.low > 0)));
end $$;

-- The µs from n until need more tokens of a concurrency limit fit; null: never.
create function dipwell_internal.hold_retry(lim int, of_key text, used bigint, need bigint, cap bigint, n bigint) returns bigint language plpgsql stable as $$
begin
    if need > cap then
        return null;
    elsif used <= cap - need then
        return 0;
    end if;
    return greatest(0, coalesce((select min(y.till) from (select x.till, sum(x.units) over (order by x.till, x.id, x.part) as back from dipwell.hold_parts x
        where x.limit_id = lim and x.key = of_key and x.live and x.till > n) y where y.back >= used + need - cap) - n, dipwell_internal.hold_reset(lim, of_key, n)));
end $$;

-- The µs from n until the last hold of a key expires; null if it has none.
create function dipwell_internal.hold_reset(lim int, of_key text, n bigint) returns bigint language plpgsql stable as $$
begin
    return greatest(0, (select x.till from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live
        order by x.till desc limit 1) - n);
end $$;

create type dipwell_internal.held as (
    allowed   boolean,
    never     boolean,
    shadow    boolean,
    granted   bigint,
    remaining bigint,
    retry     bigint,
    reset     bigint,
    used      bigint,
    ts        bigint,
    version   int,
    bound     boolean,
    limit_id  int,
    key       text,
    takes     int,
    cost      bigint,
    expires   bigint,
    repeated  boolean,
    plan      text,
    row_plan  text,
    row_override jsonb
);

-- The answer for each part of a hold. If the limit of a part was dropped, remaining, reset and
-- version are null.
create function dipwell_internal.hold_state(ps dipwell.hold_parts[], repeated boolean, at bigint) returns setof dipwell_internal.held
language plpgsql volatile as $$
declare
    h dipwell_internal.held;
    p dipwell.hold_parts;
    a record;
begin
    foreach p in array ps loop
        select * into a from dipwell_internal.decide(array[p.limit_id], array[p.key], array[1], array[0::bigint], array[null::bigint], null, at,
            array[(select x.name from dipwell.plans x join dipwell.limits l on l.id = x.limit_id and l.version = x.version where x.limit_id = p.limit_id and x.name = p.plan)]);
        h := row(true, false, false, 0, a.remaining, 0, a.reset, a.row_used, a.row_ts, a.row_version, null,
            p.limit_id, p.key, p.takes, coalesce(p.cost, p.tokens), p.expires, repeated, p.plan, a.row_plan, a.row_override);
        h.granted := case
            when repeated and not p.settled then case when p.free and (select coalesce((select x.mode from dipwell.plans x
                where x.limit_id = l.id and x.version = l.version and x.name = p.plan), l.mode) from dipwell.limits l where l.id = p.limit_id) = 'shadow' then 0 else h.cost end
            when p.free or p.reset or a.row_version is null then 0
            else h.cost end;
        return next h;
    end loop;
end $$;

-- Adds a record of what a hold has taken to the lows of a locked row.
create function dipwell_internal.set_lows(lim int, of_key text, n bigint, till bigint, out number bigint, out mark bigint) language plpgsql volatile as $$
declare
    b    dipwell.buckets;
    list bigint[];
begin
    select * into b from dipwell.buckets x where x.limit_id = lim and x.key = of_key;
    list := dipwell_internal.lows_room(lim, of_key, dipwell_internal.lows_of(b.lows, b.low), (random() * 281474976710655)::bigint, n);
    number := list[2];
    mark := list[1];
    update dipwell.buckets x set lows = dipwell_internal.lows_hold(list[:cardinality(list) - 1], list[cardinality(list)], b.used), low = b.used, due = least(x.due, till)
        where x.limit_id = lim and x.key = of_key;
end $$;

-- The number of the next part of a hold that took nothing from a key. The number is one more
-- than that of the last free part, so a key never has more free parts than its last number.
create function dipwell_internal.free_number(lim int, of_key text, n bigint) returns bigint language plpgsql volatile as $$
declare
    number bigint := 1 + coalesce((select x.number from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.free and not x.settled order by x.number desc limit 1), 0);
begin
    if number > 10000 or exists (select from dipwell.hold_parts x where x.limit_id = lim and x.key = of_key and x.live)
            or exists (select from dipwell.reservations x where x.limit_id = lim and x.key = of_key) then
        perform dipwell_internal.room(lim, of_key, n);
    end if;
    update dipwell.buckets x set lows[4] = 1 where x.limit_id = lim and x.key = of_key and x.lows is not null;
    return number;
end $$;

-- Takes from several keys, all or nothing, and makes a hold: a row for each, or none if a
-- limit was dropped. The first pass looks for a hold with this id. If another call makes one
-- at the same time, the insert fails, what was taken is rolled back, and the next pass finds
-- that hold.
create function dipwell_internal.hold_group(limit_ids int[], keys text[], costs bigint[], takes int[], hold text, ttl bigint,
    at bigint default null, plans text[] default null, floors bigint[] default null) returns setof dipwell_internal.held
language plpgsql volatile set enable_seqscan = off as $$
declare
    k     int := cardinality(limit_ids);
    ps    dipwell.hold_parts[];
    h     dipwell_internal.held;
    done  dipwell_internal.held[];
    n     bigint;
    a     record;
    place bigint; -- in the list of lows
    list  bigint; -- its mark
    l     dipwell.limits;
    verdict boolean;
    unit  bigint[]; -- in a token
    units bigint; -- taken
    free  boolean[]; -- nothing was taken
    call_ text; -- the plans and floors, if any
begin
    if exists (select from unnest(plans) x where x is not null) or exists (select from unnest(floors) x where x > 0) then
        call_ := format('%s %s', plans, floors);
    end if;
    perform dipwell_internal.wrong('cost: is 0 for every limit of the hold; a hold takes at least 1 token of one of them') from unnest(costs) x having max(x) = 0;
    for round in 1..16 loop
        select array_agg(x order by x.part) into ps from dipwell.hold_parts x where x.id = hold;
        n := coalesce(at, dipwell_internal.now_us());
        if n >= (select max(dipwell_internal.hold_gone(x)) from unnest(ps) x) then
            ps := null; -- it may be deleted but was not swept yet
            delete from dipwell.hold_parts x where x.id = hold and not x.live;
            for a in select * from dipwell.hold_parts x where x.id = hold and coalesce(x.live, false) order by x.limit_id, x.key loop
                perform from dipwell.buckets t where t.limit_id = a.limit_id and t.key = a.key for update;
                perform dipwell_internal.bring(a.limit_id, a.key, n);
            end loop;
            delete from dipwell.hold_parts x where x.id = hold and not x.live;
        end if;
        if exists (select from unnest(ps) p where p.live and (select b.version < 0 or dipwell_internal.version_of(b.version) < (select y.version from dipwell.limits y where y.id = p.limit_id)
                from dipwell.buckets b where b.limit_id = p.limit_id and b.key = p.key)) then -- a change may have ended it
            select x.ps, x.n into ps, n from dipwell_internal.lock_hold(hold, false, at) x;
        end if;
        if ps is not null then
            if (select array_agg(x.limit_id order by x.part) <> limit_ids or array_agg(x.key order by x.part) <> keys or array_agg(x.tokens order by x.part) <> hold_group.costs
                    or array_agg(x.takes order by x.part) <> hold_group.takes or max(x.ttl) <> hold_group.ttl or max(x.call) is distinct from call_ from unnest(ps) x) then
                perform dipwell_internal.hold_conflict('is of another call', 'id');
            elsif (select bool_or(x.settled) or max(x.expires) <= n or bool_and(x.reset) from unnest(ps) x) then
                perform dipwell_internal.hold_conflict('is of a hold that has ended', 'id');
            end if;
            return query select * from dipwell_internal.hold_state(ps, true, at) x where x.version is not null;
            return;
        end if;
        begin
            done := '{}';
            unit := '{}';
            free := '{}';
            verdict := true;
            for a in select * from dipwell_internal.decide(limit_ids, keys, array_fill(0, array[k]), costs, array_fill(null::bigint, array[k]), null, at, plans, floors) loop
                h := row(a.allowed, a.never, a.shadow, a.granted, a.remaining, a.retry, a.reset, a.row_used, a.row_ts, a.row_version, a.bound,
                    null, null, null, null, null, null, null, a.row_plan, a.row_override);
                n := a.n;
                done := done || h;
                unit := unit || a.row_unit;
                free := free || a.row_free;
                verdict := verdict and h.allowed;
            end loop;
            if cardinality(done) = 0 then
                return; -- a limit is gone
            end if;
            for i in 1..k loop
                h := done[i];
                select limit_ids[i], keys[i], hold_group.takes[i], costs[i], case when verdict then n + ttl end, false, plans[i]
                    into h.limit_id, h.key, h.takes, h.cost, h.expires, h.repeated, h.plan;
                if verdict then
                    select * into l from dipwell.limits x where x.id = h.limit_id;
                    if l.algorithm = 'concurrency' and h.granted > 0 then
                        h.reset := greatest(h.reset, ttl);
                    end if;
                    units := case when free[i] then 0 else h.granted * unit[i] end;
                    place := 0;
                    list := 0;
                    if units = 0 then
                        place := dipwell_internal.free_number(h.limit_id, h.key, n);
                    elsif l.algorithm <> 'concurrency' then
                        select x.number, x.mark into place, list from dipwell_internal.set_lows(h.limit_id, h.key, n, dipwell_internal.hold_due(h.expires, ttl, l.on_expire = 'keep')) x;
                    else
                        if h.used > 10000 then -- each live record has at least a token
                            perform dipwell_internal.room(h.limit_id, h.key, n);
                        end if;
                        update dipwell.buckets x set due = least(x.due, h.expires) where x.limit_id = h.limit_id and x.key = h.key;
                    end if;
                    insert into dipwell.hold_parts (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key, plan, call)
                        values (h.expires, dipwell_internal.hold_due(h.expires, ttl, units = 0 or l.on_expire = 'keep'), dipwell_internal.hold_due(h.expires, ttl, l.on_expire = 'keep'), ttl, units, unit[i], h.cost, place, list, h.limit_id, i, k, h.takes,
                            units > 0, units = 0, l.on_expire is not distinct from 'keep', false, false, hold, h.key, h.plan, call_);
                end if;
                done[i] := h;
            end loop;
            foreach h in array done loop
                return next h;
            end loop;
            return;
        exception when unique_violation then
            null;
        end;
    end loop;
    raise exception using errcode = 'serialization_failure', message = 'the hold was made by another call after this transaction began; try again';
end $$;

-- Locks the buckets and the rows of a hold, and gives back the expired holds of the buckets.
create function dipwell_internal.lock_hold(hold text, charges boolean, at bigint, out ps dipwell.hold_parts[], out n bigint) language plpgsql volatile as $$
declare
    p   record;
    ids int[]; -- the limit that each part is settled to; if it was dropped, the one that has its name now
begin
    for p in select l.id, x.key, x.part, l.version from dipwell.hold_parts x
        join dipwell.limits l on l.id = coalesce((select d.id from dipwell.limits d where d.name = x.dropped), x.limit_id)
        where x.id = hold order by l.id, x.key loop
        ids[p.part] := p.id;
        loop
            perform from dipwell.buckets t where t.limit_id = p.id and t.key = p.key for update;
            exit when found or not charges;
            insert into dipwell.buckets (used, ts, limit_id, version, key)
                values (0, coalesce(at, dipwell_internal.now_us()), p.id, p.version, p.key) on conflict do nothing;
            exit when found;
        end loop;
    end loop;
    perform from dipwell.hold_parts x where x.id = hold order by x.part for update;
    update dipwell.hold_parts x set limit_id = ids[x.part] where x.id = hold and x.dropped is not null and x.limit_id <> ids[x.part];
    n := coalesce(at, dipwell_internal.now_us());
    perform dipwell_internal.bring(x.limit_id, x.key, n) from (select distinct y.limit_id, y.key from dipwell.hold_parts y where y.id = hold) x;
    select array_agg(x order by x.part) into ps from dipwell.hold_parts x where x.id = hold;
    if ps is null or cardinality(ps) <> ps[1].parts or n >= (select max(dipwell_internal.hold_gone(x)) from unnest(ps) x) then
        raise exception using errcode = 'no_data_found', constraint = 'hold', message = 'hold: is unknown';
    end if;
end $$;

-- Settles a hold to the costs of its takes; null: what was held.
create function dipwell_internal.settle_group(hold text, costs bigint[], at bigint default null, field text default 'costs')
returns setof dipwell_internal.held language plpgsql volatile set enable_seqscan = off as $$
declare
    ps   dipwell.hold_parts[];
    p       dipwell.hold_parts;
    n       bigint;
    k       int; -- takes of the call
    l       dipwell.limits;
    c       bigint;
    a       record;
    j       int := 0;
    counted bigint[]; -- tokens that the row of each part counts
    charged int[] := '{}'; -- parts that are charged more
    ids     int[] := '{}';
    keys    text[] := '{}';
    charges bigint[] := '{}';
    late    bigint[] := '{}'; -- what an expired hold held, in tokens: it may be charged in any case
    named   text[] := '{}'; -- plans that the call named, unless they are gone
    over    dipwell.hold_parts; -- a part that cannot cost so much: of the levels of a take, the one that can cost the least
    most    bigint; -- that it can cost
    differs boolean := false; -- it was settled to other costs
    dear    int; -- a take that costs something though nothing was held of it
begin
    select x.ps, x.n into ps, n from dipwell_internal.lock_hold(hold, true, at) x;
    select max(length(ltrim(x.takes::bit(16)::text, '0'))) into k from unnest(ps) x;
    field := case when k = 1 then 'cost' else field end;
    if cardinality(costs) <> k then
        perform dipwell_internal.wrong(case when field = 'cost' and k > 1 then format('cost: the hold is of %s takes; use settle_all', k)
            else format('costs: %s, but the hold is of %s', dipwell_internal.entries(cardinality(costs)), case k when 1 then '1 take' else k || ' takes' end) end);
    end if;
    for i in 1..cardinality(ps) loop
        p := ps[i];
        c := p.tokens;
        if costs is not null then
            select sum(costs[t])::numeric, min(t) filter (where costs[t] > 0) into c, dear from generate_series(1, k) t where p.takes & (1 << (t - 1)) <> 0;
            if p.tokens = 0 and c > 0 then
                perform dipwell_internal.wrong(format('%s: %s is too much: nothing of limit %s was held, so that it costs 0', case when k = 1 then 'cost' else format('costs[%s]', dear) end,
                    costs[dear], coalesce((select x.name from dipwell.limits x where x.id = p.limit_id), '(dropped)')));
            end if;
        end if;
        differs := differs or p.settled and (p.cost <> c or (p.costs <> settle_group.costs) is true);
        p.cost := c;
        ps[i] := p;
    end loop;
    if differs then
        perform dipwell_internal.hold_conflict('was settled to another cost');
    elsif ps[1].settled then
        return query select * from dipwell_internal.hold_state(ps, true, at);
        return;
    end if;
    for i in 1..cardinality(ps) loop
        p := ps[i];
        select * into l from dipwell.limits x where x.id = p.limit_id;
        continue when not found or p.free or p.reset or l.algorithm = 'concurrency';
        counted[i] := case when p.units > 0 and not p.live and not p.keep then 0 else p.tokens end;
        if p.cost > counted[i] then
            charged := charged || i;
            ids := ids || p.limit_id;
            keys := keys || p.key;
            charges := charges || p.cost - counted[i];
            late := late || case when counted[i] = 0 then p.tokens end;
            named := array_append(named, (select x.name from dipwell.plans x where x.limit_id = l.id and x.version = l.version and x.name = p.plan));
        end if;
    end loop;
    update dipwell.hold_parts x set live = false, settled = true, due = n + dipwell_internal.hold_stays(x.ttl),
            reset = x.reset or not exists (select from dipwell.limits y where y.id = x.limit_id),
            cost = (select y.cost from unnest(ps) y where y.part = x.part), costs = settle_group.costs
        where x.id = hold;
    foreach p in array ps loop
        if p.live and p.number = 0 then
            update dipwell.buckets x set used = greatest(x.used - p.units, 0), due = dipwell_internal.next_due(x.limit_id, x.key) where x.limit_id = p.limit_id and x.key = p.key;
        elsif p.live then
            perform dipwell_internal.give_back_part(p.limit_id, p.key, p.number, p.mark, greatest(p.tokens - p.cost, 0) * p.unit, p.unit, n, true);
        end if;
    end loop;
    if cardinality(ids) > 0 then
        for a in select * from dipwell_internal.decide(ids, keys, array_fill(4, array[cardinality(ids)]), charges, late, null, at, named) loop
            j := j + 1;
            continue when a.allowed or not a.never;
            if over.id is null or over.takes = ps[charged[j]].takes and counted[charged[j]] + greatest(a.row_max_charge, late[j]) < most then
                over := ps[charged[j]];
                most := counted[charged[j]] + greatest(a.row_max_charge, late[j]);
            end if;
        end loop;
        if over.id is not null then
            perform dipwell_internal.wrong(format('%s: %s is more than limit %s lets this hold be settled to, %s',
                case when k = 1 then 'cost' else format('costs[%s]', length(over.takes::bit(16)::text) - length(rtrim(over.takes::bit(16)::text, '0')) + 1) end,
                over.cost, (select x.name from dipwell.limits x where x.id = over.limit_id), most));
        end if;
    end if;
    return query select * from dipwell_internal.hold_state(ps, false, at);
end $$;

create function dipwell_internal.extend_group(hold text, ttl bigint, at bigint default null) returns setof dipwell_internal.held
language plpgsql volatile set enable_seqscan = off as $$
declare
    ps dipwell.hold_parts[];
    p  dipwell.hold_parts;
    n  bigint;
begin
    select x.ps, x.n into ps, n from dipwell_internal.lock_hold(hold, false, at) x;
    if ps[1].settled or ps[1].expires <= n or (select bool_or(x.units > 0 and not x.live and not x.reset)
        or bool_and(x.reset or not exists (select from dipwell.limits l where l.id = x.limit_id)) from unnest(ps) x) then
        perform dipwell_internal.hold_conflict('has ended');
    end if;
    foreach p in array ps loop
        perform dipwell_internal.wrong(dipwell_internal.ttl_error(l, ttl)) from dipwell.limits l where l.id = p.limit_id;
        p.due := dipwell_internal.hold_due(n + ttl, p.ttl, p.keep or not p.live);
        update dipwell.buckets b set due = p.due where b.limit_id = p.limit_id and b.key = p.key and p.live and b.due > p.due;
        update dipwell.hold_parts x set expires = n + extend_group.ttl, due = p.due, till = p.due where x.id = hold and x.part = p.part;
    end loop;
    select array_agg(x order by x.part) into ps from dipwell.hold_parts x where x.id = hold;
    return query select * from dipwell_internal.hold_state(ps, false, at);
end $$;

create function dipwell_internal.check_hold_id(id text, field text) returns void language plpgsql stable as $$
declare
    reason text := field || ': ' || case
        when coalesce(id, '') = '' then 'is missing'
        when octet_length(id) > 64 then format('has %s bytes; at most 64', octet_length(id))
        when id ~ '[^!-~]' then format('"%s" has other characters than printable ASCII without spaces', id) end;
begin
    perform dipwell_internal.wrong(reason);
end $$;
