
-- == The public functions that take

-- Most takes need nothing but numbers: those of the limit, or of the plan that the call
-- names, and the row. Such takes are a SELECT and an UPDATE. If the UPDATE charges
-- nothing, the row is read. If the tokens are not there, the call is refused, which
-- writes nothing and uses no transaction id; if there is no row, it is inserted with the
-- charge. Rows of another definition and rows with records are left to the function ask.
--
-- Each expression of PL/pgSQL is prepared again in each transaction, which costs more than
-- to compute it. So the functions have few expressions, and the statements compute what they
-- need themselves.
create function dipwell.take(limit_name text, key text default null, cost bigint default 1, plan text default null, floor bigint default null) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n bigint := dipwell_internal.now_us();
    r record; -- the numbers that decide
    x record; -- the row
    d dipwell.decision;
    of_row text; -- key of it, if the limit has shards
    rows_ text[];
begin
    select l.id, l.version as number, l.unit, l.every, l.add, l.cap, l.grid, l.ticks,
            (l.plain or l.spread or (l.every = 0 and l.cap <= l.add or l.algorithm = 'leaky_bucket' and take.floor is null) and l.block_us is null) and l.parent is null and l.parts is null
                or l.shards > 1 and take.floor is null as plain, l.mode, l.shards, l.parent is not null or l.parts is not null as tree, l.shared, l.spread or l.shards > 1 or l.every = 0 as by_key,
            -9223372036854775808 as since, 9223372036854775807 as till, l.algorithm = 'leaky_bucket' as leaky into r
        from dipwell.limits l where l.name = limit_name;
    if plan is not null then
        select r.id, p.number, (p.rule).unit, r.every, (p.rule).add, (p.rule).cap, r.grid, ((p.rule).max_used + (p.rule).add - 1) / (p.rule).add as ticks,
                r.plain and coalesce(p.mode, 'enforce') in ('enforce', 'shadow') and (r.every > 0 or (p.rule).cap <= (p.rule).add) as plain, coalesce(p.mode, r.mode) as mode, r.shards, r.tree, r.shared, r.by_key,
                r.since, r.till, r.leaky into r
            from dipwell.plans p where p.limit_id = r.id and p.version = r.number and p.name = take.plan and p.callable = 'true';
    end if;
    if r.plain and cost >= 1 and coalesce(floor, 0) >= 0 and cost <= r.cap / r.unit - coalesce(floor, 0) and (key is null) = r.shared and key is distinct from '' then
        if r.by_key then
            if r.shards > 1 then
                begin
                    rows_ := dipwell_internal.two_rows(r.shards, coalesce(key, ''));
                    of_row := rows_[1]; -- the row to wait for, if others have locked all rows that have enough
                    for round in 1..2 loop -- of the two rows, then of all: the fullest that nobody has locked; a missing row is full
                        select b.key into x from (
                                select q.key, b.used from unnest((select rows_)) q (key) left join lateral (
                                    select case when y.version = r.number then dipwell_internal.plain_used(y.used, y.ts, n, r.every, r.add, r.grid, r.ticks) end as used
                                    from dipwell.buckets y where y.limit_id = r.id and y.key = q.key limit 1) b on true
                                where (b.used <= r.cap - take.cost * r.unit) is not false order by b.used nulls first offset 0) q
                            left join lateral (select y.key from dipwell.buckets y where y.limit_id = r.id and y.key = q.key limit 1 for no key update skip locked) b on true
                            where b.key is not null or q.used is null limit 1;
                        if found then
                            of_row := x.key;
                            exit;
                        end if;
                        rows_ := dipwell_internal.row_keys(r.shards, coalesce(key, ''));
                    end loop;
                    update dipwell.buckets b
                        set used = dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) + take.cost * r.unit, ts = greatest(n, b.ts)
                        where b.limit_id = r.id and b.key = of_row and b.version = r.number and (b.due <= n) is not true
                            and dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) <= r.cap - take.cost * r.unit
                        returning true, (r.cap - b.used) / r.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, r.every, r.add, r.grid),
                            take.cost, interval '0', false, null::uuid into d;
                    if found then
                        return d;
                    end if;
                    raise exception using errcode = 'triggered_action_exception'; -- releases the lock of a row that has not enough
                exception when triggered_action_exception then
                    return dipwell_internal.ask(0, limit_name, key, cost, plan, floor);
                end;
            elsif r.every = 0 then -- windows by a calendar: the present one
                select w.since, w.till, w.since, w.till - w.since into r.since, r.till, r.grid, r.every from dipwell_internal.window_at(r.id, r.number, take.limit_name, coalesce(take.key, ''), n) w;
            else -- windows without a start
                r.grid := r.grid + dipwell_internal.key_offset(limit_name, coalesce(key, ''), r.every);
            end if;
        end if;
        update dipwell.buckets b
            set used = dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) + take.cost * r.unit, ts = greatest(n, b.ts),
                low = b.low - greatest(b.low - dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks), 0)
            where b.limit_id = r.id and b.key = coalesce(take.key, '') and b.version = r.number and (b.due <= n) is not true and b.ts >= r.since and b.ts < r.till
                and dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) <= r.cap - (take.cost + coalesce(take.floor, 0)) * r.unit
            returning true, (r.cap - b.used) / r.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, r.every, r.add, r.grid),
                take.cost, interval '0', false, null::uuid into d;
        if found then
            return d;
        end if;
        select b.version = r.number and b.lows is null and b.due is null and b.ts >= r.since and b.ts < r.till and not r.leaky as plain, dipwell_internal.plain_used(b.used, b.ts, n, r.every, r.add, r.grid, r.ticks) as used, greatest(n, b.ts) as ts into x
            from dipwell.buckets b where b.limit_id = r.id and b.key = coalesce(take.key, '');
        if not found then
            insert into dipwell.buckets as b (used, ts, limit_id, version, key)
                select take.cost * r.unit, dipwell_internal.now_us(), r.id, r.number, coalesce(take.key, '')
                where octet_length(coalesce(take.key, '')) <= 512 and not exists (select from dipwell.key_overrides o where o.limit_id = r.id and o.key = coalesce(take.key, ''))
                on conflict do nothing
                returning true, (r.cap - b.used) / r.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, b.ts, r.every, r.add, r.grid),
                    take.cost, interval '0', false, null::uuid into d;
            if found then
                return d;
            end if;
        elsif x.plain and r.mode = 'enforce' and x.used > r.cap - (cost + coalesce(floor, 0)) * r.unit then
            return (false, greatest(r.cap - x.used, 0) / r.unit, dipwell_internal.plain_wait(x.used - (r.cap - (cost + coalesce(floor, 0)) * r.unit), x.ts, n, r.every, r.add, r.grid),
                dipwell_internal.plain_wait(x.used, x.ts, n, r.every, r.add, r.grid), 0::bigint, interval '0', false, null::uuid);
        end if;
    end if;
    if r.tree and plan is null and floor is null and (key is null) = r.shared and key is distinct from '' then
        d := dipwell_internal.take_path(limit_name, coalesce(key, ''), cost);
        if d.allowed is not null then
            return d;
        end if;
    end if;
    return dipwell_internal.ask(0, limit_name, key, cost, plan, floor);
end $$;
comment on function dipwell.take is
    'Takes cost tokens if they are all free, and otherwise none. Calls of a shared limit have no key; without one, those of any other are an error.';

-- Charges the rows of several keys, in the order of limit and key in which they are given, if
-- all fit, and returns a decision for each. If one does not fit, the function gives back what it
-- has charged and returns null. An UPDATE for each of two or three rows costs less than one
-- statement that locks, judges and charges all.
create function dipwell_internal.take_rows(ids int[], keys text[], costs bigint[], grids bigint[], n bigint) returns dipwell.decision[] language plpgsql volatile as $$
declare
    ds dipwell.decision[];
    d  dipwell.decision;
    origin bigint; -- a variable, because each mention of an element costs as much as an operator
    tokens bigint;
begin
    for i in 1..cardinality(ids) loop
        origin := grids[i];
        tokens := costs[i];
        update dipwell.buckets b
            set used = dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, origin, l.ticks) + tokens * l.unit, ts = greatest(n, b.ts),
                low = b.low - greatest(b.low - dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, origin, l.ticks), 0)
            from dipwell.limits l
            where l.id = ids[i] and (l.plain or l.spread) -- as it may not be after a wait for the row before
                and b.limit_id = ids[i] and b.key = keys[i] and b.version = l.version and (b.due <= n) is not true
                and dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, origin, l.ticks) <= l.cap - tokens * l.unit
            returning true, (l.cap - b.used) / l.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, l.every, l.add, origin),
                tokens, interval '0', false, null::uuid into d;
        if not found then
            update dipwell.buckets b set used = b.used - q.cost * v.unit from unnest(ids[:i - 1], keys[:i - 1], costs[:i - 1]) q (id, key, cost) join dipwell.versions v on v.limit_id = q.id
                where b.limit_id = q.id and b.key = q.key and b.version = v.number; -- the limit may have a new version
            return null;
        end if;
        ds[i] := d;
    end loop;
    return ds;
end $$;

-- Takes from a limit and those above it, if only numbers decide and all tokens are there.
-- Otherwise null. The rows are read first, so that a refusal, which is left to ask, locks and
-- writes nothing. A parent is usually older than its child; if it is younger, ask decides.
create function dipwell_internal.take_path(limit_name text, of_key text, cost bigint) returns dipwell.decision language plpgsql volatile as $$
declare
    n     bigint := dipwell_internal.now_us();
    above text := limit_name;
    path  text := of_key;
    ids   int[] := '{}'; -- the topmost first
    paths text[] := '{}';
    grids bigint[] := '{}';
    parts bigint; -- of the key of the topmost
    d     dipwell.decision;
    least_ dipwell.decision; -- the fewest remaining
begin
    while above is not null loop
        select l.id || ids, path || paths, g.grid || grids, l.parent, dipwell_internal.parent_key(path), dipwell_internal.key_parts(l) into ids, paths, grids, above, path, parts
            from dipwell.limits l
            cross join lateral (select l.grid + case when l.spread then dipwell_internal.key_offset(l.name, path, l.every) else 0 end as grid offset 0) g
            cross join lateral (select y.used, y.ts from dipwell.buckets y where y.limit_id = l.id and y.key = path and y.version = l.version and (y.due <= n) is not true limit 1) b
            where l.name = above and (l.plain or l.spread) and l.mode = 'enforce' and take_path.cost between 1 and l.cap / l.unit and l.id < all (ids)
                and dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, g.grid, l.ticks) <= l.cap - take_path.cost * l.unit;
        if not found then
            return null;
        end if;
    end loop;
    if '' = any (string_to_array(of_key, '/')) or cardinality(string_to_array(of_key, '/')) <> parts + cardinality(ids) - 1 then
        return null;
    end if;
    foreach d in array coalesce(dipwell_internal.take_rows(ids, paths, array_fill(cost, array[cardinality(ids)]), grids, n), '{}') loop
        if (least_.remaining < d.remaining) is not true then
            least_ := d;
        end if;
    end loop;
    return least_;
end $$;

-- Decides any verb for one key, with the parents of the limit. max_delay is that of a wait.
-- Where there is no debt, a wait cannot reserve. It is refused with the delay after which to
-- call again, or with the time until an equally long wait would be allowed.
create function dipwell_internal.ask(verb int, limit_name text, key text, cost bigint, plan text default null, floor bigint default null,
    max_delay bigint default null) returns dipwell.decision language plpgsql volatile as $$
declare
    c       dipwell_internal.call := dipwell_internal.call_of(verb, array[limit_name], array[key], array[cost], array[plan], array[floor], true);
    k       int := cardinality(c.ids);
    i       int := 0;
    a       record;
    top     record; -- of the level that decides
    granted bigint;
    due     bigint := 0;
    reservation uuid := gen_random_uuid();
begin
    if (verb = 6 or cost = 0) and (select l.shards from dipwell.limits l where l.id = (c.ids)[1]) > 1 then
        return (select (bool_and(d.allowed), least(sum(d.remaining), 9007199254740991)::bigint, max(dipwell_internal.length(case when not d.never and (d.shadow or not d.allowed) then d.retry end)),
                max(dipwell_internal.length(d.reset)), 0::bigint, interval '0', bool_or(d.never), null::uuid)::dipwell.decision
            from dipwell.limits l cross join lateral (select array[l.shards::int] as n) s
            cross join lateral dipwell_internal.decide(array_fill(l.id, s.n), dipwell_internal.row_keys(l.shards, (c.keys)[1]), array_fill(case verb when 6 then 6 else 1 end, s.n), array_fill(0::bigint, s.n), array_fill(null::bigint, s.n)) d
            where l.id = (c.ids)[1]);
    end if;
    c := dipwell_internal.choose_rows(c, verb);
    for a in select * from dipwell_internal.decide(c.ids, c.keys, array_fill(verb, array[k]), c.costs, array_fill(max_delay, array[k]), reservation,
            plans => c.plans, floors => c.floors) loop
        i := i + 1;
        if verb = 4 and not a.allowed then
            perform dipwell_internal.wrong(format('cost: %s is more than limit %s lets a charge be, %s', cost, (select l.name from dipwell.limits l where l.id = (c.ids)[i]), a.row_max_charge));
        elsif i = 1 then
            top := a;
            granted := a.granted;
        elsif (case when a.allowed <> top.allowed then top.allowed when a.allowed then a.remaining < top.remaining when a.never <> top.never then a.never else a.retry > top.retry end) then
            top := a;
        end if;
        if a.granted > 0 then
            due := greatest(due, a.delay);
        end if;
    end loop;
    if i = 0 then -- just dropped
        perform dipwell_internal.limit_id(limit_name, 'limit_name');
        return dipwell_internal.ask(verb, limit_name, key, cost, plan, floor, max_delay);
    end if;
    if max_delay is not null and top.row_debt = 0 and not (top.allowed or top.never) then
        due := case when top.retry <= max_delay then top.retry else 0 end;
        top.retry := greatest(top.retry - max_delay, 0);
        return (false, top.remaining, dipwell_internal.length(top.retry), dipwell_internal.length(top.reset), 0::bigint, dipwell_internal.length(due), false, null::uuid);
    end if;
    return (top.allowed, top.remaining, case when not top.never and (top.shadow or not top.allowed) then dipwell_internal.length(top.retry) end,
        dipwell_internal.length(top.reset), granted, dipwell_internal.length(greatest(top.delay, due)), top.never, case when due > 0 then reservation end);
end $$;

-- Limits whose keys have one row each are read together.
create function dipwell.ready(limit_name text, keys text[], cost bigint default 1, plan text default null) returns table (key text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    k int := coalesce(cardinality(keys), 0);
    l dipwell.limits;
begin
    perform dipwell_internal.wrong('keys: ' || case when keys is null then 'is null' when k > 1000 then format('has %s entries; at most 1000', k) end);
    perform dipwell_internal.limit_id(limit_name, 'limit_name');
    select * into l from dipwell.limits x where x.name = limit_name;
    perform dipwell_internal.check_cost(cost, 'cost'), dipwell_internal.check_verb(l, 1, null, 'limit_name');
    if plan is not null then
        perform dipwell_internal.check_callable(l, plan, 'plan');
    end if;
    if k = 0 then
        return;
    end if;
    keys := array(select dipwell_internal.check_key(l.id, q.key, format('keys[%s]', q.i)) from unnest(keys) with ordinality q (key, i) order by q.i);
    if l.shards > 1 or l.parent is not null then
        return query select nullif(q.key, '') from unnest(keys) with ordinality q (key, i)
            where (dipwell_internal.ask(1, limit_name, nullif(q.key, ''), cost, plan)).allowed order by q.i;
    else
        return query select nullif(keys[d.ordinality], '') from dipwell_internal.decide(array_fill(l.id, array[k]), keys, array_fill(1, array[k]), array_fill(cost, array[k]),
            array_fill(null::bigint, array[k]), plans => case when plan is not null then array_fill(plan, array[k]) end) with ordinality d where d.allowed order by d.ordinality;
    end if;
end $$;
comment on function dipwell.ready is 'The keys for which take would be allowed now, in the order given, at most 1000. Takes nothing.';

create function dipwell.take_all(limit_names text[], keys text[], costs bigint[] default null, plans text[] default null, floors bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    k   int := cardinality(limit_names);
    c   dipwell_internal.call;
    n   int;
    rid uuid;
    now bigint := dipwell_internal.now_us();
    r   record;
begin
    if plans is null and floors is null and k > 1 and cardinality(keys) = k and coalesce(cardinality(costs), k) = k then
        select array_agg(x.id) as ids, array_agg(x.key) as keys, array_agg(x.cost) as costs, array_agg(x.grid) as grids, array_agg(x.i) as i into r
            from (select l.id, q.key, q.cost, g.grid, q.i
                from unnest((select limit_names), (select take_all.keys), (select coalesce(costs, array_fill(1::bigint, array[k])))) with ordinality q (name, key, cost, i)
                join dipwell.limits l on l.name = q.name and (l.plain or l.spread) and l.mode = 'enforce' and l.parent is null and l.parts is null and not l.shared and q.cost between 1 and l.cap / l.unit
                cross join lateral (select l.grid + case when l.spread then dipwell_internal.key_offset(l.name, q.key, l.every) else 0 end as grid offset 0) g
                cross join lateral (select y.used, y.ts from dipwell.buckets y where y.limit_id = l.id and y.key = q.key and y.version = l.version and (y.due <= now) is not true limit 1) b
                where dipwell_internal.plain_used(b.used, b.ts, now, l.every, l.add, g.grid, l.ticks) <= l.cap - q.cost * l.unit
                order by l.id, q.key collate "C") x
            having count(*) = k and count(distinct (x.id, x.key)) = k;
        if found then
            return query select limit_names[x.i], x.key, x.allowed, x.remaining, x.retry_after, x.reset_after, x.granted, x.delay, x.never, x.reservation
                from unnest(r.i, r.keys, dipwell_internal.take_rows(r.ids, r.keys, r.costs, r.grids, now)) x (i, key) where x.allowed order by x.i;
            if found then
                return;
            end if;
        end if;
    end if;
    perform dipwell_internal.check_lists(limit_names, keys, costs, plans, floors);
    c := dipwell_internal.call_of(0, limit_names, keys, coalesce(costs, array_fill(1::bigint, array[k])), plans, floors);
    c := dipwell_internal.choose_rows(c, 0);
    n := cardinality(c.ids);
    rid := gen_random_uuid();
    return query
        with a as materialized (
            select * from dipwell_internal.decide(c.ids, c.keys, array_fill(0, array[n]), c.costs, array_fill(null::bigint, array[n]), rid, plans => c.plans, floors => c.floors) with ordinality
        )
        select l.name, nullif(dipwell_internal.key_of(l.shards, (c.keys)[o.at]), ''), a.allowed, a.remaining,
            case when not a.never and (a.shadow or not a.allowed) then dipwell_internal.length(a.retry) end, dipwell_internal.length(a.reset),
            case when o.i > k then a.granted when a.granted > 0 then coalesce(costs[o.i], 1) else 0 end, dipwell_internal.length(a.delay), a.never,
            case when (select bool_and(x.allowed) and bool_or(x.delay > 0 and x.granted > 0) from a x) then rid end
        from dipwell_internal.answered(c) o join a on a.ordinality = o.at join dipwell.limits l on l.id = (c.ids)[o.at] order by o.i;
    if not found then
        raise exception using errcode = 'undefined_object', constraint = 'limit_names', message = 'limit_names: a limit was dropped during the call';
    end if;
end $$;
comment on function dipwell.take_all is
    'Takes all costs (1 each by default) at one instant, or none of them. Returns a row for each limit, in the order of the call, and then one for each parent. The costs of a limit and key that are named twice are added up.';

-- At most n rows of a limit, of the keys with a prefix that come after another key. The index
-- has the keys in order. A plan that sorts, or that starts at the prefix for each page, would
-- read all rows of a limit for one page.
create function dipwell_internal.keys(lim int, prefix text, after text, shared boolean, n bigint)
returns table (key text, used bigint, ts bigint, version int)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
    return query select b.key, b.used, b.ts, b.version from dipwell.buckets b
        where b.limit_id = lim and b.key >= greatest(prefix collate "C", after collate "C") and (after = '' and not shared or b.key > after) and left(b.key, char_length(prefix)) = prefix
        order by b.key limit n;
end $$;
