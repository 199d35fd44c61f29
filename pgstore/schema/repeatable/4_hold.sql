
-- == The public functions of holds

-- The most common calls, on one limit whose numbers decide and a row without
-- reservations, are a few statements, hold_one and settle_one, from Go too. Calls of other
-- kinds are left to hold_group and settle_group.

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

-- The length of an interval in µs; for an interval that is too long, the largest bigint.
create function dipwell_internal.micros(x interval) returns bigint language sql immutable as
$$ select case when x > interval '100000 years' then 9223372036854775807 when x < interval '-100000 years' then -9223372036854775807
    else (date_part('epoch', x) * 1000000)::bigint end $$;

-- A UUID of the time and 74 random bits (version 7). The time comes first, so that holds made
-- one after the other are neighbours in the index. Random ids would each change a page of
-- their own, which is written in full after each checkpoint.
create function dipwell_internal.new_hold_id() returns text language plpgsql volatile as $$
declare
    t text := lpad(to_hex(dipwell_internal.now_us() / 1000), 12, '0');
begin
    return left(t, 8) || '-' || right(t, 4) || '-7' || right(gen_random_uuid()::text, 21);
end $$;

-- Makes a hold of one key, if nothing but numbers decides and the row has no reservations.
-- Otherwise null. The function has few expressions, as take has: each is prepared again in
-- each transaction. records_of is a number, because the planner could drop a condition for
-- concurrency limits, and would then plan each of their calls anew.
create function dipwell_internal.hold_one(limit_name text, key text, cost bigint, ttl bigint, hold text, at bigint default null) returns dipwell_internal.held language plpgsql volatile as $$
declare
    r record;
    x record;
begin
    select l.id, l.version, l.unit, l.every, l.add, l.cap, l.ticks, k.key, c.n, l.grid + case when l.spread then dipwell_internal.key_offset(l.name, k.key, l.every) else 0 end as grid,
            l.plain or l.spread as plain, case when l.plain or l.spread then l.id else 0 end as records_of, coalesce(l.on_expire = 'keep', false) as keep, c.n + dipwell_internal.hold_due(hold_one.ttl, hold_one.ttl, coalesce(l.on_expire = 'keep', false)) as due into r
        from dipwell.limits l cross join (select coalesce(hold_one.key, '') as key) k cross join (select coalesce(hold_one.at, dipwell_internal.now_us()) as n offset 0) c
        where l.name = limit_name and l.shared = (hold_one.key is null) and (l.plain or l.spread or l.algorithm = 'concurrency') and l.parent is null and l.parts is null and l.mode = 'enforce' and hold_one.cost between 1 and l.cap / l.unit
            and hold_one.ttl <= coalesce(nullif(l.ttl_us, 0), 86400000000);
    if not found then
        return null;
    end if;
    update dipwell.buckets b
        set used = dipwell_internal.plain_used(b.used, b.ts, r.n, r.every, r.add, r.grid, r.ticks) + hold_one.cost * r.unit, ts = greatest(r.n, b.ts),
            lows = case when not r.plain then null when b.lows is null then array[(random() * 281474976710655)::bigint, 2, 1, 0, 1]
                else dipwell_internal.lows_hold(b.lows, least(b.low, dipwell_internal.plain_used(b.used, b.ts, r.n, r.every, r.add, r.grid, r.ticks)),
                    dipwell_internal.plain_used(b.used, b.ts, r.n, r.every, r.add, r.grid, r.ticks) + hold_one.cost * r.unit) end,
            low = case when r.plain then dipwell_internal.plain_used(b.used, b.ts, r.n, r.every, r.add, r.grid, r.ticks) + hold_one.cost * r.unit end,
            due = least(b.due, r.due)
        where b.limit_id = r.id and b.key = r.key and b.version = r.version
            and dipwell_internal.plain_used(b.used, b.ts, r.n, r.every, r.add, r.grid, r.ticks) <= r.cap - hold_one.cost * r.unit and (b.due <= r.n) is not true
            and case when not r.plain then b.used < 10000 -- each live record has at least a token
                else b.lows is null or b.lows[4] = 0 and b.lows[3] < 10000 end
            and (b.lows is not null or (select true from dipwell.hold_parts o where o.limit_id = r.records_of and o.key = r.key and o.live limit 1) is null
                and (select true from dipwell.hold_parts o where o.limit_id = r.records_of and o.key = r.key and o.free and not o.settled limit 1) is null)
        returning b.used, b.ts, b.lows[1] as mark, b.lows[2] - 1 as number, coalesce(hold_one.at, dipwell_internal.now_us()) as at into x; -- it may have waited longer than ttl
    if not found then
        insert into dipwell.buckets (used, ts, limit_id, version, key) -- a full one, if there is none
            select 0, 0, r.id, r.version, r.key
            where octet_length(r.key) <= 512 and not exists (select from dipwell.key_overrides o where o.limit_id = r.id and o.key = r.key)
            on conflict do nothing;
        if found then
            return dipwell_internal.hold_one(limit_name, key, cost, ttl, hold, at);
        end if;
        return null;
    end if;
    insert into dipwell.hold_parts (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key)
        values (x.at + hold_one.ttl, x.at + r.due - r.n, x.at + r.due - r.n, hold_one.ttl, hold_one.cost * r.unit, r.unit, hold_one.cost, coalesce(x.number, 0), coalesce(x.mark, 0), r.id, 1, 1, 1, true, false, r.keep, false, false, hold_one.hold, r.key)
        on conflict do nothing;
    if found then
        return (true, false, false, cost, greatest(r.cap - x.used, 0) / r.unit, 0::bigint,
            case when r.plain then greatest(dipwell_internal.plain_reset(x.used, x.ts, x.at, r.every, r.add, r.grid), 0) when x.used = cost then ttl else dipwell_internal.hold_reset(r.id, r.key, x.at) end,
            x.used, x.ts, r.version, false, r.id, r.key, 1, cost, x.at + ttl, false, null::text, null::text, null::jsonb);
    end if;
    -- The id is in use: what was charged is given back while the row is still locked.
    update dipwell.buckets b set used = b.used - (cost * r.unit),
            due = case when b.lows[3] > 1 or b.lows is null then b.due end,
            (lows, low) = (select y.list[2:cardinality(y.list) - 1], y.list[cardinality(y.list)] from dipwell_internal.lows_settle(b.lows, b.low, b.lows[2] - 1, cost * r.unit) y (list) where b.lows[3] > 1)
        where b.limit_id = r.id and b.key = r.key;
    return null;
end $$;

create function dipwell.hold(limit_name text, key text default null, cost bigint default 1, ttl interval default null, id text default null,
    plan text default null, floor bigint default null) returns dipwell.held
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    us   bigint := dipwell_internal.micros(ttl);
    name text := coalesce(id, dipwell_internal.new_hold_id());
    h    dipwell_internal.held;
begin
    if us between 1000 and 2678400000000 and octet_length(name) between 1 and 64 and name !~ '[^!-~]' and plan is null and coalesce(floor, 0) = 0 and key is distinct from '' then
        h := dipwell_internal.hold_one(limit_name, key, cost, us, name);
        if h.allowed then
            return (true, h.remaining, null::interval, dipwell_internal.length(h.reset), cost, interval '0', false, null::uuid, name, dipwell_internal.time_of(h.expires), false);
        end if;
    end if;
    return dipwell_internal.hold_decide(limit_name, key, cost, us, name, plan, floor);
end $$;
comment on function dipwell.hold is
    'Takes cost tokens if they are free, and holds them until settle. If the hold is not settled within ttl, they are given back. While the hold lives, the same call with the same id returns the same hold and takes nothing.';

-- Makes any hold of one key, by hold_group.
create function dipwell_internal.hold_decide(limit_name text, key text, cost bigint, ttl bigint, id text, plan text, floor bigint) returns dipwell.held
language plpgsql volatile as $$
declare
    c  dipwell_internal.call := dipwell_internal.call_of(7, array[limit_name], array[key], array[cost], array[plan], array[floor], true, ttl);
    hs dipwell_internal.held[]; -- of each level
    d  dipwell.held;
begin
    perform dipwell_internal.check_hold_id(id, 'id');
    hs := array(select h from dipwell_internal.hold_group(c.ids, c.keys, c.costs, c.takes, id, ttl, null, c.plans, c.floors) h);
    if cardinality(hs) = 0 then -- just dropped
        perform dipwell_internal.limit_id(limit_name, 'limit_name');
        return dipwell_internal.hold_decide(limit_name, key, cost, ttl, id, plan, floor);
    end if;
    d := dipwell_internal.held_row(hs[(select i from generate_subscripts(hs, 1) i order by (hs[i]).allowed, case when (hs[i]).allowed then (hs[i]).remaining end, (hs[i]).never desc, (hs[i]).retry desc, i limit 1)], id);
    d.granted := (hs[1]).granted;
    return d;
end $$;

-- The result of hold for one limit and key.
create function dipwell_internal.held_row(h dipwell_internal.held, id text) returns dipwell.held language plpgsql immutable as $$
begin
    return (h.allowed, h.remaining, case when not h.never and (h.shadow or not h.allowed) then dipwell_internal.length(h.retry) end, dipwell_internal.length(h.reset),
        h.granted, interval '0', h.never, null::uuid, case when h.allowed then id end, dipwell_internal.time_of(h.expires), h.repeated);
end $$;

create function dipwell_internal.ttl_error(l dipwell.limits, ttl bigint) returns text language sql stable as $$
    select 'ttl: ' || case when ttl is null then 'is missing'
        when ttl < 1000 then format('%s µs is less than 1ms', ttl)
        when ttl > coalesce(nullif(l.ttl_us, 0), 86400000000) then
            format('is longer than limit %s lets a hold be, %s', l.name, dipwell_internal.format_per(coalesce(nullif(l.ttl_us, 0), 86400000000))) end
$$;

create function dipwell_internal.check_verb(l dipwell.limits, verb int, ttl bigint, field text) returns void language plpgsql stable as $$
declare
    verbs constant text[] := '{take,check,take_up_to,reserve,charge,refund,reset,hold}';
    reason text := coalesce(format('%s: %s ', field, l.name) || case
            when verb = 7 and l.algorithm = 'leaky_bucket' then 'is a leaky bucket, which cannot be held'
            when verb in (3, 7) and l.algorithm = 'sliding_window' then 'is a sliding window, which has neither reservations nor holds'
            when l.shards > 1 and verb not in (0, 1, 2, 6) then format('has shards; only take, take_up_to, check and reset are possible, not %s', verbs[verb + 1])
            when l.adaptive is not null and verb not in (0, 1, 6) then 'is adaptive; only take, check and reset are possible'
            when l.algorithm = 'concurrency' and verb not in (1, 6, 7) then format('counts what is held; only hold, check and reset are possible, not %s', verbs[verb + 1])
        end, case when verb = 7 then dipwell_internal.ttl_error(l, ttl) end);
begin
    perform dipwell_internal.wrong(reason);
end $$;

create function dipwell.hold_all(limit_names text[], keys text[], costs bigint[] default null, ttl interval default null, id text default null,
    plans text[] default null, floors bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid, hold text, expires timestamptz, repeated boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    k  int := cardinality(limit_names);
    us bigint := dipwell_internal.micros(ttl);
    c  dipwell_internal.call;
    hs dipwell_internal.held[];
begin
    perform dipwell_internal.check_lists(limit_names, keys, costs, plans, floors);
    id := coalesce(id, dipwell_internal.new_hold_id());
    perform dipwell_internal.check_hold_id(id, 'id');
    perform dipwell_internal.wrong('costs: are all 0; a hold takes at least 1 token of one of its limits') from unnest(costs) x having max(x) = 0;
    c := dipwell_internal.call_of(7, limit_names, keys, coalesce(costs, array_fill(1::bigint, array[k])), plans, floors, false, us);
    select array_agg(g) into hs from dipwell_internal.hold_group(c.ids, c.keys, c.costs, c.takes, id, us, null, c.plans, c.floors) g;
    if hs is null then
        raise exception using errcode = 'undefined_object', constraint = 'limit_names', message = 'limit_names: a limit was dropped during the call';
    end if;
    return query select l.name, nullif((c.keys)[o.at], ''), h.allowed, h.remaining, h.retry_after, h.reset_after,
            case when o.i > k then h.granted when h.granted > 0 then coalesce(costs[o.i], 1) else 0 end, h.delay, h.never, h.reservation, h.hold, h.expires, h.repeated
        from dipwell_internal.answered(c) o
        cross join lateral dipwell_internal.held_row(hs[o.at], case when (hs[o.at]).expires is not null then id end) h
        join dipwell.limits l on l.id = (c.ids)[o.at] order by o.i;
end $$;
comment on function dipwell.hold_all is
    'Takes all costs (1 each by default) at one instant, or none of them, and makes one hold of them. Returns a row for each limit, in the order of the call, and then one for each parent.';

-- Entries beyond the bounds of a list are null, and null is the key of a shared limit.
create function dipwell_internal.list_error(field text, dims text, k int) returns text language sql stable as $$
    select case when dims <> '[1:' || k || ']' then format('%s: has the bounds %s; a list of %s has [1:%s]', field, dims, dipwell_internal.entries(k), k) end
$$;

create function dipwell_internal.check_lists(limit_names text[], keys text[], costs bigint[], plans text[], floors bigint[]) returns void language plpgsql stable as $$
declare
    k int := cardinality(limit_names);
begin
    perform dipwell_internal.wrong(format('limit_names: %s; from 1 to 16', dipwell_internal.entries(k))) where (k between 1 and 16) is not true;
    perform dipwell_internal.wrong(coalesce(case when x.n <> k then format('%s: %s, but limit_names has %s', x.field, dipwell_internal.entries(x.n), k) end,
            dipwell_internal.list_error(x.field, x.dims, k)))
        from (values ('limit_names', k, array_dims(limit_names)), ('keys', coalesce(cardinality(keys), 0), array_dims(keys)), ('costs', cardinality(costs), array_dims(costs)),
            ('plans', cardinality(plans), array_dims(plans)), ('floors', cardinality(floors), array_dims(floors))) x (field, n, dims);
end $$;

-- Settles a hold of one key to at most what was held, if nothing but numbers decides.
-- For other holds the result is null. "coalesce(p.live, false)" keeps the planner from
-- using the index of live holds. In a plan made while the table is small, a scan of that
-- whole index looks as cheap as a lookup by id.
create function dipwell_internal.settle_one(hold text, cost bigint, at bigint default null) returns dipwell_internal.held language plpgsql volatile as $$
declare
    x record;
begin
    select p.*, c.n, l.unit, l.every, l.add, l.cap, l.version, l.grid, a.used - coalesce(s.list[1], 0) as used, case when p.number = 0 then b.ts else greatest(c.n, b.ts) end as ts,
            case when b.lows[3] > 1 then s.list[2:] end as list into x
        from (select y.limit_id, y.key, y.number, y.mark, y.units, y.unit, y.expires, y.takes, coalesce(settle_one.cost, y.tokens) as cost, dipwell_internal.hold_stays(y.ttl) as stays
            from dipwell.hold_parts y where y.id = hold and y.part = 1 and y.parts = 1 and y.takes = 1 and y.plan is null and coalesce(y.live, false)
                and (settle_one.cost is null or settle_one.cost between 0 and y.tokens or y.number = 0 and settle_one.cost > 0) limit 1) p
        cross join lateral (select y.unit, y.every, y.add, y.cap, y.ticks, y.version, y.grid + case when y.spread then dipwell_internal.key_offset(y.name, p.key, y.every) else 0 end as grid
            from dipwell.limits y where y.id = p.limit_id and y.unit = p.unit and (p.number = 0 or y.plain or y.spread) limit 1) l
        cross join lateral (select y.used, y.ts, y.lows, y.low, y.due from dipwell.buckets y
            where y.limit_id = p.limit_id and y.key = p.key and y.version = l.version and (p.number = 0 or y.lows[1] = p.mark and y.lows[4] = 0) limit 1 for no key update) b
        cross join lateral (select coalesce(settle_one.at, dipwell_internal.now_us()) as n where b.used >= 0 offset 0) c -- after the row is locked
        cross join lateral (select case when p.number = 0 then greatest(b.used - p.units, 0) else dipwell_internal.plain_used(b.used, b.ts, c.n, l.every, l.add, l.grid, l.ticks) end as used offset 0) a
        cross join lateral (select case when p.number > 0 then dipwell_internal.lows_settle(b.lows, least(b.low, a.used), p.number, p.units - p.cost * p.unit) end as list offset 0) s
        where p.expires > c.n and (b.due <= c.n) is not true;
    if not found then
        return null;
    end if;
    update dipwell.hold_parts y set live = false, settled = true, cost = x.cost, due = x.n + x.stays
        where y.id = hold and y.part = 1 and coalesce(y.live, false) and y.expires = x.expires;
    if not found then
        return null;
    end if;
    update dipwell.buckets y set used = x.used, ts = x.ts, lows = x.list[:cardinality(x.list) - 1], low = x.list[cardinality(x.list)],
            due = case when x.list is not null or x.number = 0 and x.used > 0 then y.due end
        where y.limit_id = x.limit_id and y.key = x.key;
    return (true, false, false, x.cost, greatest(x.cap - x.used, 0) / x.unit, 0::bigint,
        case when x.used = 0 then 0 when x.number = 0 then coalesce(dipwell_internal.hold_reset(x.limit_id, x.key, x.n), 0)
            else dipwell_internal.plain_reset(x.used, x.ts, x.n, x.every, x.add, x.grid) end,
        x.used, x.ts, x.version, false, x.limit_id, x.key, x.takes, x.cost, x.expires, false, null::text, null::text, null::jsonb);
end $$;

create function dipwell.settle(hold text, cost bigint default null) returns dipwell.settled
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    h dipwell_internal.held := dipwell_internal.settle_one(hold, cost);
begin
    if h.allowed is null then
        perform dipwell_internal.check_hold_id(hold, 'hold'), dipwell_internal.check_cost(coalesce(cost, 0), 'cost');
        select * into h from dipwell_internal.settle_group(hold, case when cost is not null then array[cost] end, null, 'cost') g order by g.remaining limit 1;
    end if;
    return (true, h.remaining, null::interval, dipwell_internal.length(h.reset), h.granted, interval '0', false, null::uuid, h.repeated);
end $$;
comment on function dipwell.settle is
    'Ends a hold with the actual cost (null: what was held). Gives back what was not used, or charges the difference. The same call again returns the same result and changes nothing.';

create function dipwell.settle_all(hold text, costs bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid, repeated boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform dipwell_internal.check_hold_id(hold, 'hold');
    perform dipwell_internal.wrong(dipwell_internal.list_error('costs', array_dims(costs), cardinality(costs)));
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
comment on function dipwell.extend is 'Makes a hold expire ttl from now, and returns that time.';

create view dipwell.holds as
    select p.id as hold, l.name as limit_name, nullif(p.key, '') as key, p.tokens,
        timestamptz 'epoch' + p.expires / 1048576 * interval '1048576 microseconds' + p.expires % 1048576 * interval '1 microsecond' as expires
    from dipwell.hold_parts p
    join dipwell.limits l on l.id = p.limit_id
    where p.live and p.expires > dipwell_internal.now_us();
