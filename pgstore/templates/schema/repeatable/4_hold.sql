-- The public functions of holds. The most common calls, on one plain limit and a row
-- without reservations, are two statements each. All others are left to hold_group and
-- settle_group.

create type dipwell.held as (
    allowed     boolean,
    remaining   bigint,
    retry_after interval,
    reset_after interval,
    granted     bigint,
    delay       interval,
    never       boolean,
    reservation uuid,
    hold        text,
    expires     timestamptz,
    repeated    boolean
);

create type dipwell.settled as (
    allowed     boolean,
    remaining   bigint,
    retry_after interval,
    reset_after interval,
    granted     bigint,
    delay       interval,
    never       boolean,
    reservation uuid,
    repeated    boolean
);

create function dipwell_internal.time_of(x bigint) returns timestamptz language sql immutable as
$$ select timestamptz 'epoch' + x / 1048576 * interval '1048576 microseconds' + x % 1048576 * interval '1 microsecond' $$;
comment on function dipwell_internal.time_of is
    'The time x µs after the Unix epoch.';

create function dipwell_internal.micros(x interval) returns bigint language sql immutable as
$$ select case when x > interval '100000 years' then 9223372036854775807 when x < interval '-100000 years' then -9223372036854775807
    else (date_part('epoch', x) * 1000000)::bigint end $$;
comment on function dipwell_internal.micros is
    'The length of an interval in µs; of one that is too long to be counted, the most that a bigint holds.';

-- The time comes first, so that holds made one after the other are neighbours in the
-- index. Random ids would each change a page of their own, which is written in full after
-- each checkpoint.
create function dipwell_internal.new_hold_id() returns text language sql volatile as $$
    select left(t, 8) || '-' || right(t, 4) || '-7' || right(gen_random_uuid()::text, 21) from lpad(to_hex(dipwell_internal.now_us() / 1000), 12, '0') t
$$;
comment on function dipwell_internal.new_hold_id is
    'A UUID of the time in ms and 74 random bits (version 7).';

-- One statement inserts the hold and charges the row. If the id is in use, the charge is
-- rolled back while the row is still locked, and hold_decide answers.
create function dipwell.hold(limit_name text, key text default null, cost bigint default 1, ttl interval default null, id text default null,
    plan text default null, floor bigint default null) returns dipwell.held
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n    bigint := dipwell_internal.now_us();
    us   bigint := dipwell_internal.micros(ttl);
    name text := coalesce(id, dipwell_internal.new_hold_id());
    x    record;
begin
    if us between 1000 and 2678400000000 and octet_length(name) between 1 and 64 and name !~ '[^!-~]' and plan is null and coalesce(floor, 0) = 0 then
        with b as (
            update dipwell.buckets b
            set used = {{added "dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, l.grid, l.ticks)" "hold.cost * l.unit"}}, ts = {{later "n" "b.ts"}},
                lows = case when l.plain then dipwell_internal.lows_hold(b.lows, dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, l.grid, l.ticks),
                    {{added "dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, l.grid, l.ticks)" "hold.cost * l.unit"}}) end
            from dipwell.limits l
            where l.name = limit_name and (l.plain or l.algorithm = 'concurrency') and l.parent is null and l.parts is null and l.mode = 'enforce' and hold.cost between 1 and l.cap / l.unit
                and us <= coalesce(nullif(l.ttl_us, 0), 86400000000)
                and b.limit_id = any (array[l.id]) and b.key = case when l.cap >= 0 then coalesce(hold.key, '') end and hold.key is distinct from ''
                and b.version = l.version
                and dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, l.grid, l.ticks) <= {{roomBefore "hold.cost * l.unit" "l.cap"}}
                and (b.lows is null or not exists (select from dipwell.reservations r where r.limit_id = b.limit_id and r.key = b.key))
            returning b.used, b.ts, b.lows, b.limit_id, l.version, l.unit, l.every, l.add, l.cap, l.grid, l.plain, coalesce(l.on_expire = 'keep', false) as keep,
                dipwell_internal.now_us() as at -- the update may have waited longer than ttl
        ), i as (
            insert into dipwell.hold_parts (expires, due, ttl, units, tokens, number, mark, limit_id, version, part, parts, takes, live, free, keep, reset, settled, id, key)
            select b.at + us, b.at + us, us, hold.cost * b.unit, hold.cost, coalesce(b.lows[2] - 1, 0), coalesce(b.lows[1], 0), b.limit_id, b.version, 1, 1, 1, true, false, b.keep, false, false,
                name, coalesce(hold.key, '')
            from b on conflict do nothing returning true)
        select b.*, (select true from i) as made into x from b;
        if x.made then
            return (true, {{tokensLeft "x.used" "x.unit" "x.cap"}}, null::interval,
                case when x.plain then dipwell_internal.plain_wait(x.used, x.ts, x.at, x.every, x.add, x.grid)
                    else dipwell_internal.length(dipwell_internal.hold_reset(x.limit_id, coalesce(key, ''), x.at)) end,
                cost, interval '0', false, null::uuid, name, dipwell_internal.time_of(x.at + us), false);
        elsif x.used is not null then
            update dipwell.buckets b set used = b.used - cost * x.unit, lows = case when cardinality(b.lows) > 4 then b.lows[:cardinality(b.lows) - 2] end
                where b.limit_id = x.limit_id and b.key = coalesce(hold.key, '');
        end if;
    end if;
    return dipwell_internal.hold_decide(limit_name, key, cost, us, name, plan, floor);
end $$;
comment on function dipwell.hold is
    'Takes cost tokens if they are free, and holds them until settle. If the hold is not settled within ttl, they are given back. While the hold lives, the same call with the same id returns the same hold and takes nothing.';

create function dipwell_internal.hold_decide(limit_name text, key text, cost bigint, ttl bigint, id text, plan text, floor bigint) returns dipwell.held
language plpgsql volatile as $$
declare
    c       dipwell_internal.call := dipwell_internal.call_of(7, array[limit_name], array[key], array[cost], array[plan], array[floor], true, ttl);
    h       dipwell_internal.held;
    top     dipwell_internal.held; -- of the level that decides
    granted bigint;
    ends    bigint; -- of the override that ends first
    d       dipwell.held;
begin
    perform dipwell_internal.check_hold_id(id, 'id');
    for h in select * from dipwell_internal.hold_group(c.ids, c.keys, c.costs, c.takes, id, ttl, null, c.plans, c.floors) loop
        granted := coalesce(granted, h.granted);
        ends := least(ends, (h.row_override ->> 'until')::bigint);
        if top.allowed is null or dipwell_internal.decides_over(h.allowed, h.never, h.remaining, h.retry, top.allowed, top.never, top.remaining, top.retry) then
            top := h;
        end if;
    end loop;
    if granted is null then -- just dropped
        perform dipwell_internal.limit_id(limit_name, 'limit_name');
        return dipwell_internal.hold_decide(limit_name, key, cost, ttl, id, plan, floor);
    elsif cardinality(c.ids) > 1 and not top.allowed and not top.never and top.ts + top.retry >= ends then
        select x.never, x.retry into top.never, top.retry from dipwell_internal.group_retry(c, 0, top.ts, top.retry) x;
    end if;
    d := dipwell_internal.held_row(top, id);
    d.granted := granted;
    return d;
end $$;
comment on function dipwell_internal.hold_decide is
    'Makes any hold of one key, by hold_group.';

create function dipwell_internal.held_row(h dipwell_internal.held, id text) returns dipwell.held language plpgsql immutable as $$
begin
    return (h.allowed, h.remaining, case when not h.never and (h.shadow or not h.allowed) then dipwell_internal.length(h.retry) end, dipwell_internal.length(h.reset),
        h.granted, interval '0', h.never, null::uuid, case when h.allowed then id end, dipwell_internal.time_of(h.expires), h.repeated);
end $$;
comment on function dipwell_internal.held_row is
    'The result of hold for one limit and key.';

create function dipwell_internal.check_verb(l dipwell.limits, verb int, ttl bigint, field text) returns void language plpgsql immutable as $$
begin
    if verb = 7 and l.algorithm = 'leaky_bucket' then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: %s is a leaky bucket, which cannot be held', field, l.name);
    elsif l.shards > 1 and verb in (3, 7) then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: %s has shards, so that its tokens can neither be held nor reserved', field, l.name);
    elsif verb = 7 then
        perform dipwell_internal.check_ttl(ttl, l);
    elsif l.algorithm = 'concurrency' and verb not in (1, 6) then
        raise exception using errcode = 'invalid_parameter_value', constraint = field, message = format('%s: %s counts what is held; only hold, check and reset are possible, not %s',
            field, l.name, (array['take', 'check', 'take_up_to', 'reserve', 'charge', 'refund', 'reset'])[verb + 1]);
    end if;
end $$;
comment on function dipwell_internal.check_verb is
    'Raises an error that names the field if a verb is not possible on a limit; 7 stands for a hold with a ttl. Go twin: Definition.CheckVerb.';

create function dipwell.hold_all(limit_names text[], keys text[], costs bigint[] default null, ttl interval default null, id text default null,
    plans text[] default null, floors bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid, hold text, expires timestamptz, repeated boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    k    int := cardinality(limit_names);
    us   bigint := dipwell_internal.micros(ttl);
    c    dipwell_internal.call;
    hs   dipwell_internal.held[];
    h    dipwell_internal.held;
    row_ dipwell.held;
begin
    perform dipwell_internal.check_lists(limit_names, keys, costs, plans, floors);
    id := coalesce(id, dipwell_internal.new_hold_id());
    perform dipwell_internal.check_hold_id(id, 'id');
    c := dipwell_internal.call_of(7, limit_names, keys, coalesce(costs, array_fill(1::bigint, array[k])), plans, floors, false, us);
    select array_agg(g) into hs from dipwell_internal.hold_group(c.ids, c.keys, c.costs, c.takes, id, us, null, c.plans, c.floors) g;
    if hs is null then
        raise exception using errcode = 'undefined_object', constraint = 'limit_names', message = 'limit_names: a limit was dropped during the call';
    end if;
    for i in 1..k + cardinality(c.ids) - c.named loop
        h := hs[coalesce((c.own)[i], c.named + i - k)];
        row_ := dipwell_internal.held_row(h, case when h.expires is not null then id end);
        select l.name, nullif(h.key, '') into limit_name, key from dipwell.limits l where l.id = h.limit_id;
        allowed := row_.allowed;
        remaining := row_.remaining;
        retry_after := row_.retry_after;
        reset_after := row_.reset_after;
        granted := case when i > k then row_.granted when row_.granted > 0 then coalesce(costs[i], 1) else 0 end;
        delay := row_.delay;
        never := row_.never;
        hold := row_.hold;
        expires := row_.expires;
        repeated := row_.repeated;
        return next;
    end loop;
end $$;
comment on function dipwell.hold_all is
    'Takes all costs (1 each by default) at one instant, or none of them, and makes one hold of them. Returns a row for each limit, in the order of the call, and then one for each parent.';

create function dipwell_internal.check_lists(limit_names text[], keys text[], costs bigint[], plans text[], floors bigint[]) returns void language plpgsql immutable as $$
declare
    k     int := cardinality(limit_names);
    field text;
    dims  text;
begin
    if k is null or k < 1 or k > 16 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'limit_names',
            message = format('limit_names: %s; from 1 to 16', dipwell_internal.entries(k));
    elsif cardinality(keys) is distinct from k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'keys',
            message = format('keys: %s, but limit_names has %s', dipwell_internal.entries(cardinality(keys)), k);
    elsif cardinality(costs) <> k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'costs',
            message = format('costs: %s, but limit_names has %s', dipwell_internal.entries(cardinality(costs)), k);
    elsif cardinality(plans) <> k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'plans',
            message = format('plans: %s, but limit_names has %s', dipwell_internal.entries(cardinality(plans)), k);
    elsif cardinality(floors) <> k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'floors',
            message = format('floors: %s, but limit_names has %s', dipwell_internal.entries(cardinality(floors)), k);
    end if;
    for field, dims in values ('limit_names', array_dims(limit_names)), ('keys', array_dims(keys)), ('costs', array_dims(costs)), ('plans', array_dims(plans)), ('floors', array_dims(floors)) loop
        perform dipwell_internal.check_bounds(field, dims, k);
    end loop;
end $$;
comment on function dipwell_internal.check_lists is
    'Raises an error that names the field if the lists of a call differ in length or bounds, or have no or more than 16 entries.';

-- Entries beyond the bounds of a list are null, and a key of null is the shared bucket.
create function dipwell_internal.check_bounds(field text, dims text, k int) returns void language plpgsql immutable as $$
begin
    if dims <> format('[1:%s]', k) then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: has the bounds %s; a list of %s has [1:%s]', field, dims, dipwell_internal.entries(k), k);
    end if;
end $$;
comment on function dipwell_internal.check_bounds is
    'Raises an error that names the field if the bounds of a list of k entries are not [1:k].';

-- "coalesce(p.live, false)" keeps the planner from using the index of live holds. In a
-- plan made while the table is small, a scan of that whole index looks as cheap as a
-- lookup by id. The search for another live hold of the key begins with the last to
-- expire: holds that were settled stay in the index until a vacuum, and most of them
-- expire first. Reservations are searched for after the row is locked, because one may
-- have been made meanwhile.
create function dipwell.settle(hold text, cost bigint default null) returns dipwell.settled
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n    bigint;
    x    record;
    held bigint; -- units used
    t    bigint;
    list bigint[];
    back bigint;
begin
    if cost is null or cost >= 0 then
        select p.limit_id, p.key, p.number, p.mark, p.units, p.expires, p.ttl, coalesce(settle.cost, p.tokens) as cost,
                l.unit, l.every, l.add, l.cap, l.grid, l.ticks, l.version, b.used, b.ts, b.lows into x
            from dipwell.hold_parts p
            cross join lateral (select * from dipwell.limits y where y.id = p.limit_id limit 1) l
            cross join lateral (select * from dipwell.buckets y where y.limit_id = p.limit_id and y.key = p.key for no key update) b
            where p.id = hold and p.part = 1 and p.parts = 1 and p.plan is null and coalesce(p.live, false) and (settle.cost is null or settle.cost <= p.tokens or p.number = 0)
                and b.version = l.version and p.version = l.version and (l.plain and p.units / l.unit = p.tokens and p.units % l.unit = 0 or p.number = 0); -- not converted at the end of an override
        n := dipwell_internal.now_us();
        if x.expires > n then
            t := {{later "n" "x.ts"}};
            held := dipwell_internal.plain_used(x.used, x.ts, n, x.every, x.add, x.grid, x.ticks);
            if x.number = 0 then
                held := {{refunded "x.used" "x.units"}};
                t := x.ts;
            else
                back := {{without "x.units" "x.cost * x.unit"}};
                list := x.lows;
                if {{isNone "held"}} then
                    list := null;
                elsif list[1] = x.mark and back > 0 then
                    list := dipwell_internal.lows_limit(list, cardinality(list) - 1, held);
                    select y.lows, y.units into list, back from dipwell_internal.lows_lower(list, x.number, back) y;
                    held := {{without "held" "back"}};
                end if;
            end if;
            with p as (
                update dipwell.hold_parts p set live = false, settled = true, cost = x.cost, due = n + greatest(x.ttl, 60000000)
                where p.id = hold and p.part = 1 and coalesce(p.live, false) and p.expires = x.expires
                    and (x.number = 0 or not exists (select from dipwell.reservations r where r.limit_id = x.limit_id and r.key = x.key)) returning true)
            update dipwell.buckets b set used = held, ts = t,
                lows = case when (select true from dipwell.hold_parts o where o.limit_id = x.limit_id and o.key = x.key and o.live and o.id <> hold order by o.expires desc limit 1) then list end
            where b.limit_id = x.limit_id and b.key = x.key and (select true from p);
            if found then
                return (true, {{tokensLeft "held" "x.unit" "x.cap"}}, null::interval,
                    case when held = 0 then interval '0' when x.number = 0 then dipwell_internal.length(coalesce(dipwell_internal.hold_reset(x.limit_id, x.key, n), 0))
                        else dipwell_internal.plain_wait(held, t, n, x.every, x.add, x.grid) end,
                    x.cost, interval '0', false, null::uuid, false);
            end if;
        end if;
    end if;
    return dipwell_internal.settle_decide(hold, cost);
end $$;
comment on function dipwell.settle is
    'Ends a hold with the actual cost (null: what was held). Gives back what was not used, or charges the difference. The same call again returns the same result and changes nothing.';

create function dipwell_internal.settle_decide(hold text, cost bigint) returns dipwell.settled language plpgsql volatile as $$
declare
    h     dipwell_internal.held;
    again boolean;
begin
    perform dipwell_internal.check_hold_id(hold, 'hold');
    if cost is not null then
        perform dipwell_internal.check_cost(cost, 'cost');
    end if;
    -- settle_group says nothing of a limit that was dropped. The hold is locked before it is
    -- read, because another call may be settling it.
    if not exists (select from dipwell.hold_parts p join dipwell.limits l on l.id = p.limit_id where p.id = hold) then
        select x.ps[1].settled into again from dipwell_internal.lock_hold(hold, true, null) x;
    end if;
    for h in select * from dipwell_internal.settle_group(hold, case when cost is not null then array[cost] end, null, 'cost') g order by g.remaining limit 1 loop
        return (true, h.remaining, null::interval, dipwell_internal.length(h.reset), h.granted, interval '0', false, null::uuid, h.repeated);
    end loop;
    return (true, null::bigint, null::interval, null::interval, 0::bigint, interval '0', false, null::uuid, coalesce(again, false));
end $$;
comment on function dipwell_internal.settle_decide is
    'Settles any hold of one take, by settle_group.';

create function dipwell.settle_all(hold text, costs bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid, repeated boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform dipwell_internal.check_hold_id(hold, 'hold');
    perform dipwell_internal.check_bounds('costs', array_dims(costs), cardinality(costs));
    for i in 1..coalesce(cardinality(costs), 0) loop
        perform dipwell_internal.check_cost(costs[i], format('costs[%s]', i));
    end loop;
    return query select l.name, nullif(g.key, ''), true, g.remaining, null::interval, dipwell_internal.length(g.reset), g.granted, interval '0', false, null::uuid, g.repeated
        from dipwell_internal.settle_group(hold, costs) g join dipwell.limits l on l.id = g.limit_id;
end $$;
comment on function dipwell.settle_all is
    'Ends a hold of several limits with the actual costs, one for each take of the call that made it (null: what was held). Returns a row for each limit and key.';

create function dipwell.extend(hold text, ttl interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform dipwell_internal.check_hold_id(hold, 'hold');
    return (select dipwell_internal.time_of(max(g.expires)) from dipwell_internal.extend_group(hold, dipwell_internal.micros(ttl)) g);
end $$;
comment on function dipwell.extend is
    'Makes a hold expire ttl from now, and returns that time.';

create view dipwell.holds as
    select p.id as hold, l.name as limit_name, nullif(p.key, '') as key, p.tokens,
        timestamptz 'epoch' + p.expires / 1048576 * interval '1048576 microseconds' + p.expires % 1048576 * interval '1 microsecond' as expires
    from dipwell.hold_parts p
    join dipwell.limits l on l.id = p.limit_id
    where p.live and p.expires > dipwell_internal.now_us();
