
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
create function dipwell_internal.new_hold_id() returns text language sql volatile as
$$ select (lpad(to_hex(dipwell_internal.now_us() / 1000), 12, '0') || '-7' || right(gen_random_uuid()::text, 21))::uuid::text $$;

-- The answer of hold_one and settle_one. It has few columns, because each is set up again in
-- each call.
create type dipwell_internal.plain_held as (
    cost      bigint,
    remaining bigint,
    reset     bigint,
    used      bigint,
    ts        bigint,
    version   int,
    limit_id  int,
    key       text,
    expires   bigint
);

-- Makes a hold of one key, if nothing but numbers decides and the row has no reservations.
-- Otherwise null. The function has few expressions, as take has. records_of is a
-- number, because the planner could drop a condition for concurrency limits, and would then
-- plan each of their calls anew.
create function dipwell_internal.hold_one(limit_name text, key text, cost bigint, ttl bigint, hold text, at bigint default null) returns dipwell_internal.plain_held language plpgsql volatile as $$
declare
    n bigint := coalesce(at, dipwell_internal.now_us());
    r record;
    x record;
    h dipwell_internal.plain_held;
begin
    select l.id, l.name, l.version, l.unit, l.every, l.add, l.cap, l.ticks, l.grid, l.spread, coalesce(hold_one.key, '') as key, hold_one.cost * l.unit as units, l.plain or l.spread as plain, case when l.plain or l.spread then l.id else 0 end as records_of,
            dipwell_internal.hold_due(hold_one.ttl, hold_one.ttl, l.on_expire is not distinct from 'keep') as lasts into r
        from dipwell.limits l
        where l.name = limit_name and l.shared = (hold_one.key is null) and (l.plain or l.spread or l.algorithm = 'concurrency') and l.parent is null and l.parts is null and l.mode = 'enforce' and hold_one.cost between 1 and l.cap / l.unit
            and hold_one.ttl between 1000 and coalesce(nullif(l.ttl_us, 0), 86400000000);
    if not found then
        return null;
    end if;
    if r.spread then
        r.grid := r.grid + dipwell_internal.key_offset(r.name, r.key, r.every);
    end if;
    update dipwell.buckets b
        set (used, ts, lows, low, due) = (select u.used + r.units, greatest(n, b.ts),
                case when not r.plain then null when b.lows is null then array[(random() * 281474976710655)::bigint, 2, 1, 0, 1]
                    else dipwell_internal.lows_hold(b.lows, least(b.low, u.used), u.used + r.units) end,
                case when r.plain then u.used + r.units end, least(b.due, n + r.lasts)
            from (select dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) as used offset 0) u)
        where b.limit_id = r.id and b.key = r.key and b.version = r.version
            and dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) <= r.cap - r.units and (b.due <= n) is not true
            and case when not r.plain then b.used < 10000 -- each live record has at least a token
                when b.lows is null then b.due is null else b.lows[4] = 0 and b.lows[3] < 10000 end -- a row whose key has live records has due
            and (b.lows is not null or (select true from dipwell.hold_parts o where o.limit_id = r.records_of and o.key = r.key and o.free and not o.settled limit 1) is null)
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
    insert into dipwell.hold_parts as p (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key)
        values (x.at + hold_one.ttl, x.at + r.lasts, x.at + r.lasts, hold_one.ttl, r.units, r.unit, hold_one.cost, coalesce(x.number, 0), coalesce(x.mark, 0), r.id, 1, 1, 1, true, false, r.lasts > hold_one.ttl, false, false, hold_one.hold, r.key)
        on conflict do nothing
        returning p.tokens, greatest(r.cap - x.used, 0) / r.unit,
            case when r.plain then greatest(dipwell_internal.plain_reset(x.used, x.ts, x.at, r.every, r.add, r.grid), 0) when x.used = p.units then p.ttl else greatest(r.lasts, dipwell_internal.hold_reset(r.id, r.key, x.at)) end,
            x.used, x.ts, r.version, p.limit_id, p.key, p.expires into h;
    if not found then -- the id is in use: what was charged is given back while the row is still locked
        update dipwell.buckets b set used = b.used - r.units, due = case when b.lows[3] > 1 or b.lows is null then b.due end,
                (lows, low) = (select y.list[3:], y.list[2] from dipwell_internal.lows_settle(b.lows, b.low, b.lows[2] - 1, r.units) y (list) where b.lows[3] > 1)
            where b.limit_id = r.id and b.key = r.key;
    end if;
    return h; -- null if it was not made
end $$;

create function dipwell.hold(limit_name text, key text default null, cost bigint default 1, ttl interval default null, id text default null,
    plan text default null, floor bigint default null) returns dipwell.held
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    us   bigint := dipwell_internal.micros(ttl);
    name text := coalesce(id, dipwell_internal.new_hold_id());
    h    dipwell_internal.plain_held;
begin
    if (id is null or octet_length(id) between 1 and 64 and id !~ '[^!-~]') and plan is null and coalesce(floor, 0) = 0 and key is distinct from '' then
        h := dipwell_internal.hold_one(limit_name, key, cost, us, name);
        if h.cost is not null then
            return (true, h.remaining, null::interval, dipwell_internal.length(h.reset), cost, interval '0', false, null::uuid, name, dipwell_internal.time_of(h.expires), false)::dipwell.held;
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
create function dipwell_internal.settle_one(hold text, cost bigint, at bigint default null) returns dipwell_internal.plain_held language plpgsql volatile as $$
declare
    r record; -- the record of the hold, and its limit
    b record; -- the row
    n bigint;
    h dipwell_internal.plain_held;
begin
    select p.limit_id, p.key, p.number, p.mark, p.expires, p.units, coalesce(settle_one.cost, p.tokens) as cost, l.* into r
        from dipwell.hold_parts p
        cross join lateral (select y.name, y.unit, y.every, y.add, y.cap, y.ticks, y.version, y.grid, y.spread from dipwell.limits y where y.id = p.limit_id and y.unit = p.unit and (p.number = 0 or y.plain or y.spread) limit 1) l
        where p.id = hold and p.part = 1 and p.parts = 1 and p.takes = 1 and p.plan is null and coalesce(p.live, false)
            and coalesce(settle_one.cost, 0) between 0 and case p.number when 0 then 9007199254740991 else p.tokens end;
    if not found then
        return null;
    end if;
    select coalesce(y.due, 9223372036854775807) as due into b from dipwell.buckets y
        where y.limit_id = r.limit_id and y.key = r.key and y.version = r.version and coalesce(y.lows[1], 0) = r.mark and coalesce(y.lows[4], 0) = 0 for no key update;
    n := coalesce(at, dipwell_internal.now_us()); -- after the row is locked
    update dipwell.hold_parts p set live = false, settled = true, cost = r.cost, due = n + dipwell_internal.hold_stays(p.ttl)
        where p.id = hold and p.part = 1 and coalesce(p.live, false) and p.expires = r.expires and p.expires > n and b.due > n;
    if not found then
        return null;
    end if;
    if r.spread then
        r.grid := r.grid + dipwell_internal.key_offset(r.name, r.key, r.every);
    end if;
    update dipwell.buckets y set (used, ts, lows, low, due) = (
            select s.used - coalesce(s.list[1], least(s.back, y.low, s.used)), case r.number when 0 then y.ts else greatest(n, y.ts) end, nullif(s.list[3:], '{}'), s.list[2],
                case when s.list[2] is not null or r.number = 0 and s.used > s.back then y.due end
            from (select a.used, a.back, case when y.lows[3] > 1 or cardinality(y.lows) > 5 then dipwell_internal.lows_settle(y.lows, least(y.low, a.used), r.number, a.back) end as list
                from (select case r.number when 0 then y.used else dipwell_internal.plain_used(y.used, y.ts, n, r.every, r.add, r.grid, r.ticks) end as used,
                    r.units - case r.number when 0 then 0 else r.cost * r.unit end as back offset 0) a offset 0) s)
        where y.limit_id = r.limit_id and y.key = r.key
        returning r.cost, greatest(r.cap - y.used, 0) / r.unit,
            case when y.used = 0 then 0 when r.number = 0 then coalesce(dipwell_internal.hold_reset(r.limit_id, r.key, n), 0)
                else dipwell_internal.plain_reset(y.used, y.ts, n, r.every, r.add, r.grid) end,
            y.used, y.ts, r.version, r.limit_id, r.key, r.expires into h;
    return h;
end $$;

create function dipwell.settle(hold text, cost bigint default null) returns dipwell.settled
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    p dipwell_internal.plain_held := dipwell_internal.settle_one(hold, cost);
    h dipwell_internal.held;
begin
    if p.cost is null then
        perform dipwell_internal.check_hold_id(hold, 'hold'), dipwell_internal.check_cost(coalesce(cost, 0), 'cost');
        select * into h from dipwell_internal.settle_group(hold, case when cost is not null then array[cost] end, null, 'cost') g order by g.remaining limit 1;
        return (true, h.remaining, null::interval, dipwell_internal.length(h.reset), h.granted, interval '0', false, null::uuid, h.repeated)::dipwell.settled;
    end if;
    return (true, p.remaining, null::interval, dipwell_internal.length(p.reset), p.cost, interval '0', false, null::uuid, false)::dipwell.settled;
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
