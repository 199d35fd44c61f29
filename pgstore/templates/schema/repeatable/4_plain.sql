-- Calls of plain limits on rows of the current version without reservations. The ticks of
-- a plain limit have equal length and are the same for all keys. Other calls, and invalid
-- arguments, are left to dipwell_internal.decide.

create function dipwell_internal.ask(verb int, limit_name text, key text, cost bigint, plan text default null, floor bigint default null, vain boolean default false) returns dipwell.decision language plpgsql volatile as $$
declare
    x     record; -- the limit, its rule, and the row if there is one
    of    text := coalesce(key, '');
    used  bigint; -- at the time of the decision
    ts    bigint; -- the time of the decision
    n     bigint;
    moved bigint; -- tokens that the call adds or removes
    units bigint; -- the same in units
    d     dipwell.decision;
begin
    for round in 1..16 loop
        -- The same statement reads the clock and the row, because the row may be as
        -- recent as the snapshot.
        select l.id, l.version, l.unit, l.every, l.add, l.cap, l.grid, l.ticks, l.shards, v.debt, v.max_used, b.used, b.ts,
                l.plain and l.mode = 'enforce' and coalesce(b.version = l.version and b.lows is null, l.overridden is not true)
                    and ask.plan is null and ask.floor is null and ask.cost between case verb when 1 then 0 else 1 end
                        and case verb when 2 then case when v.burst > 0 then v.max_used / l.unit end when 3 then v.most when 4 then least(v.max_charge, v.max_used / l.unit) when 5 then v.max_used / l.unit else v.burst end
                    and verb <= 5 and ask.key is distinct from '' and octet_length(of) <= 512 as plain
            into x
            from dipwell.limits l
            cross join lateral (select w.debt, w.most, w.burst, w.max_used, w.max_charge from dipwell.versions w where w.limit_id = l.id and w.number = l.version limit 1) v
            left join lateral (select y.used, y.ts, y.version, y.lows from dipwell.buckets y where y.limit_id = l.id and y.key = of limit 1) b on true
            where l.name = limit_name;
        exit when x.plain is not true;
        n := dipwell_internal.now_us();
        ts := {{later "n" "x.ts"}};
        used := coalesce(dipwell_internal.plain_used(x.used, x.ts, n, x.every, x.add, x.grid, x.ticks), 0);
        moved := case verb when 2 then least(cost, {{tokensLeft "used" "x.unit" "x.cap"}}) else cost end;
        units := moved * x.unit;
        if verb <> 5 and (moved < 1 and verb = 2 or {{no (fits "used" "units" "case verb when 4 then x.max_used else x.cap end")}}) then
            exit when verb = 4 or verb = 3 and {{fits "used" "units" "x.cap + x.debt"}}; -- it is clipped, or has to wait
            units := {{excess "used" "case verb when 2 then x.unit else units end" "x.cap + case verb when 3 then x.debt else 0 end"}};
            return (false, {{tokensLeft "used" "x.unit" "x.cap"}}, dipwell_internal.plain_wait(units, ts, n, x.every, x.add, x.grid),
                dipwell_internal.plain_wait(used, ts, n, x.every, x.add, x.grid), 0::bigint, interval '0', false, null::uuid);
        elsif verb = 1 or verb = 5 and used = 0 then -- there is nothing to write
            moved := 0;
        elsif x.used is null then
            used := units;
            insert into dipwell.buckets (used, ts, limit_id, version, key) values (units, n, x.id, x.version, of) on conflict do nothing;
            continue when not found;
        else
            -- The row may have changed since it was read. If fewer tokens than requested
            -- are taken, exactly that many must still be free.
            units := case verb when 5 then -units else units end;
            update dipwell.buckets b
                set used = greatest(dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) + units, 0), ts = {{later "n" "b.ts"}}
                where b.limit_id = x.id and b.key = of and b.version = x.version and b.lows is null
                    and dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) + units
                        between case when moved < cost then x.cap - x.unit + 1 else -9007199254740991 end and case when verb >= 4 then x.max_used else x.cap end
                returning b.used, b.ts into used, ts;
            continue when not found;
            moved := case verb when 5 then 0 else moved end;
        end if;
        return (true, {{tokensLeft "used" "x.unit" "x.cap"}}, null::interval,
            case used when 0 then interval '0' else dipwell_internal.plain_wait(used, ts, n, x.every, x.add, x.grid) end, moved, interval '0', false, null::uuid);
    end loop;
    if x.shards > 1 and verb = 0 and plan is null and floor is null then
        d := dipwell_internal.take_sharded(limit_name, key, cost, '', vain or pg_current_xact_id_if_assigned() is not null);
        if d.allowed is not null then
            return d;
        end if;
    end if;
    return dipwell_internal.ask_decide(verb, limit_name, key, cost, plan, floor);
end $$;
comment on function dipwell_internal.ask is
    'Decides any verb for one key. The public functions call it. One statement reads the limit and the row. If something must be written, a second one writes it and checks that the row has not changed meanwhile. vain: see dipwell_internal.take_shards.';

create function dipwell_internal.group_retry(c dipwell_internal.call, verb int, n bigint, longest bigint, out never boolean, out retry bigint) language plpgsql stable as $$
declare
    again boolean := true;
    l dipwell.limits;
    d dipwell_internal.definition;
    o dipwell.key_overrides;
    b record;
    a dipwell_internal.answer;
begin
    never := false;
    retry := longest;
    while again and not never loop -- once more for each level at most: after its override has ended, it stays allowed
        again := false;
        for i in 1..cardinality(c.ids) loop
            o := dipwell_internal.override_of((c.ids)[i], (c.keys)[i]);
            continue when o.until is null or n + retry < o.until;
            select * into l from dipwell.limits x where x.id = (c.ids)[i];
            select x.used, x.ts, x.version into b from dipwell.buckets x where x.limit_id = l.id and x.key = o.key; -- an overridden key has a row
            continue when not found or l.algorithm = 'concurrency';
            d := dipwell_internal.asked_definition(l, (c.plans)[i], 'plan');
            a := dipwell_internal.answer_one(l, d, o, o.key, b.used, b.ts, b.version, n + retry, verb, (c.costs)[i], (c.floors)[i], null, true);
            if not a.allowed then
                never := never or a.never;
                retry := retry + a.retry;
                again := again or a.retry > 0;
            end if;
        end loop;
    end loop;
end $$;
comment on function dipwell_internal.group_retry is
    'The time from n until a refused call of a limit and its parents would be allowed, or never. longest is the longest retry of those that refused; the override of another one may end before that. Go twin: groupRetry.';

create function dipwell_internal.ask_decide(verb int, limit_name text, key text, cost bigint, plan text default null, floor bigint default null) returns dipwell.decision language plpgsql volatile as $$
declare
    c       dipwell_internal.call := dipwell_internal.call_of(verb, array[limit_name], array[key], array[cost], array[plan], array[floor], true);
    k       int := cardinality(c.ids);
    i       int := 0;
    a       record;
    top     record; -- of the level that decides
    granted bigint;
    ends    bigint; -- of the override that ends first
    due     bigint := 0;
    d       dipwell.decision;
begin
    d.reservation := gen_random_uuid();
    for a in select * from dipwell_internal.decide(c.ids, c.keys, array_fill(verb, array[k]), c.costs, array_fill(null::bigint, array[k]), d.reservation,
            plans => c.plans, floors => c.floors) loop
        i := i + 1;
        if verb = 4 and not a.allowed then
            raise exception using errcode = 'invalid_parameter_value', constraint = 'cost', message = format('cost: %s is more than limit %s lets a charge be, %s',
                cost, (select l.name from dipwell.limits l where l.id = (c.ids)[i]), a.row_max_charge);
        elsif i = 1 then
            top := a;
            granted := a.granted;
        elsif dipwell_internal.decides_over(a.allowed, a.never, a.remaining, a.retry, top.allowed, top.never, top.remaining, top.retry) then
            top := a;
        end if;
        if a.row_override is not null then
            ends := least(ends, (a.row_override ->> 'until')::bigint);
        end if;
        if a.granted > 0 then
            due := greatest(due, a.delay);
        end if;
    end loop;
    if i = 0 then -- just dropped
        perform dipwell_internal.limit_id(limit_name, 'limit_name');
        return dipwell_internal.ask_decide(verb, limit_name, key, cost, plan, floor);
    elsif k > 1 and not top.allowed and not top.never and top.n + top.retry >= ends then
        select x.never, x.retry into top.never, top.retry from dipwell_internal.group_retry(c, verb, top.n, top.retry) x;
    end if;
    d.allowed := top.allowed;
    d.remaining := top.remaining;
    if not top.never and (top.shadow or not top.allowed) then
        d.retry_after := dipwell_internal.length(top.retry);
    end if;
    d.reset_after := dipwell_internal.length(top.reset);
    d.granted := granted;
    d.delay := dipwell_internal.length(greatest(top.delay, due));
    d.never := top.never;
    if due = 0 then
        d.reservation := null;
    end if;
    return d;
end $$;
comment on function dipwell_internal.ask_decide is
    'Decides any verb for one key by dipwell_internal.decide, with the parents of the limit.';

create function dipwell_internal.ask_all(limit_names text[], keys text[], costs bigint[] default null, plans text[] default null, floors bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid)
language plpgsql volatile as $$
declare
    k    int := cardinality(limit_names);
    c    dipwell_internal.call;
    n    int;
    rid  uuid := gen_random_uuid();
    as_  dipwell_internal.answer[] := '{}';
    a    dipwell_internal.answer;
    row_ record;
    verdict boolean := true;
    due  boolean := false;
begin
    perform dipwell_internal.check_lists(limit_names, keys, costs, plans, floors);
    c := dipwell_internal.call_of(0, limit_names, keys, coalesce(costs, array_fill(1::bigint, array[k])), plans, floors);
    n := cardinality(c.ids);
    for row_ in select * from dipwell_internal.decide(c.ids, c.keys, array_fill(0, array[n]), c.costs, array_fill(null::bigint, array[n]), rid, plans => c.plans, floors => c.floors) loop
        a.allowed := row_.allowed;
        a.never := row_.never;
        a.shadow := row_.shadow;
        a.granted := row_.granted;
        a.remaining := row_.remaining;
        a.retry := row_.retry;
        a.reset := row_.reset;
        a.delay := row_.delay;
        as_ := as_ || a;
        verdict := verdict and a.allowed;
        due := due or a.delay > 0 and a.granted > 0;
    end loop;
    if cardinality(as_) = 0 then
        raise exception using errcode = 'undefined_object', constraint = 'limit_names', message = 'limit_names: a limit was dropped during the call';
    end if;
    for i in 1..k + n - c.named loop
        a := as_[coalesce((c.own)[i], c.named + i - k)];
        select l.name, nullif((c.keys)[coalesce((c.own)[i], c.named + i - k)], '') into limit_name, key from dipwell.limits l where l.id = (c.ids)[coalesce((c.own)[i], c.named + i - k)];
        allowed := a.allowed;
        remaining := a.remaining;
        retry_after := case when not a.never and (a.shadow or not a.allowed) then dipwell_internal.length(a.retry) end;
        reset_after := dipwell_internal.length(a.reset);
        granted := case when i > k then a.granted when a.granted > 0 then coalesce(costs[i], 1) else 0 end;
        delay := dipwell_internal.length(a.delay);
        never := a.never;
        reservation := case when verdict and due then rid end;
        return next;
    end loop;
end $$;
comment on function dipwell_internal.ask_all is
    'Decides take_all by dipwell_internal.decide. The costs of a limit and key that are named twice are added up.';

-- Two variants of the UPDATE of take: under a plan, and under the override of the key.
-- The result is null if nothing was charged.
create function dipwell_internal.take_plan(limit_name text, of_key text, cost bigint, plan text, n bigint) returns dipwell.decision language plpgsql volatile as $$
declare
    d dipwell.decision;
begin
    update dipwell.buckets b
    set used = {{added (leftAfter "b.used" (ticksSince "b.ts" "n" 0 1) "p.add" unbounded) "cost * p.unit"}}, ts = {{later "n" "b.ts"}}
    from dipwell.limits l, dipwell.plans p
    where l.name = limit_name and l.plain and l.every = 1 and p.limit_id = l.id and p.version = l.version and p.name = plan and p.callable
        and coalesce(p.mode, l.mode) = 'enforce' and p.add <= 256 and cost between 1 and p.cap / p.unit
        and b.limit_id = any (array[l.id]) and b.key = case when l.plain then coalesce(of_key, '') end and b.lows is null and b.version = p.number
        and {{fitsAfter "b.used" (ticksSince "b.ts" "n" 0 1) "p.add" unbounded "cost * p.unit" "p.cap"}}
    returning true, (p.cap - b.used) / p.unit, null::interval,
        (b.ts - n) * interval '1 microsecond' + ({{ticksFor "b.used" "p.add"}}) * interval '1 microsecond',
        cost, interval '0', false, null::uuid
    into d;
    return d;
end $$;
comment on function dipwell_internal.take_plan is
    'Takes under a plan, if enough tokens are free and the row of the key is under that plan. Otherwise null.';

create function dipwell_internal.take_overridden(limit_name text, of_key text, cost bigint, n bigint) returns dipwell.decision language plpgsql volatile as $$
declare
    d dipwell.decision;
begin
    update dipwell.buckets b
    set used = {{added (leftAfter "b.used" (ticksSince "b.ts" "n" 0 1) "o.add" unbounded) "cost * o.unit"}}, ts = {{later "n" "b.ts"}}
    from dipwell.limits l, dipwell.key_overrides o
    where l.name = limit_name and l.plain and l.every = 1 and o.limit_id = l.id and o.version = l.version and o.key = coalesce(of_key, '')
        and coalesce(o.mode, l.mode) = 'enforce' and o.add <= 256 and cost between 1 and o.cap / o.unit
        and b.limit_id = any (array[l.id]) and b.key = case when l.plain then coalesce(of_key, '') end and b.lows is null and b.version = dipwell_internal.override_number(o.id) and (o.until is null or greatest(n, b.ts) < o.until)
        and {{fitsAfter "b.used" (ticksSince "b.ts" "n" 0 1) "o.add" unbounded "cost * o.unit" "o.cap"}}
    returning true, (o.cap - b.used) / o.unit, null::interval,
        case when o.until < b.ts + {{ticksFor "b.used" "o.add"}} then dipwell_internal.length(dipwell_internal.full_in(l, o, (dipwell_internal.override_definition(l, o)).rule, o.key, b.used, b.ts, n))
            else (b.ts - n) * interval '1 microsecond' + ({{ticksFor "b.used" "o.add"}}) * interval '1 microsecond' end,
        cost, interval '0', false, null::uuid
    into d;
    return d;
end $$;
comment on function dipwell_internal.take_overridden is
    'Takes under the override of the key, if enough tokens are free. Otherwise null.';

create function dipwell_internal.take_sharded(limit_name text, of_key text, cost bigint, hint text, vain boolean) returns dipwell.decision language plpgsql volatile as $$
declare
    t record;
    next text;
begin
    if of_key = '' then
        return null;
    end if;
    t := dipwell_internal.take_shards(limit_name, coalesce(of_key, ''), cost, hint like 'scattered%', vain => vain);
    if t.outcome = 0 then
        return null;
    end if;
    next := case when t.spread then 'scattered' || repeat('.', coalesce(t.shards, 0)) else 'shards' end;
    if next <> hint then
        perform set_config('dipwell.read_first', next, false);
    end if;
    return (t.outcome = 1, greatest(t.cap - t.used, 0) / t.unit,
        case when t.outcome = 2 then dipwell_internal.plain_wait({{excess "t.used" "take_sharded.cost * t.unit" "t.cap"}}, t.ts, t.n, t.every, t.add, t.grid) end,
        case t.used when 0 then interval '0' else dipwell_internal.plain_wait(t.used, t.ts, t.n, t.every, t.add, t.grid) end,
        case when t.outcome = 1 then cost else 0 end, interval '0', false, null::uuid);
end $$;
comment on function dipwell_internal.take_sharded is
    'Takes from a key of a limit with shards. Null if dipwell_internal.decide must decide. vain: see dipwell_internal.take_shards.';

-- Takes cost tokens if there are enough. The common case is one UPDATE of a bucket
-- with ticks of 1 µs, with as few expressions as possible, because starting each of
-- them costs more than the row. Both conditions on the bucket's key depend on the
-- limit (hence the array and the case), and neither can be merged or hashed, so
-- that the planner has to begin with the limit, whatever the statistics.
--
-- If that charged nothing, one statement reads the limit and the row. It finds a
-- refusal, which writes nothing and uses no transaction id; a key without a row,
-- which is inserted with its charge; or a window or interval, which is charged. The
-- clock is read before the row: by then no more has come back.
--
-- Refusals and new keys often come in series, so a session notes the last result in
-- the setting dipwell.read_first. It is a hint, and any value gives correct
-- results:
--  empty          a bucket was charged: the UPDATE comes first. It is tested first, because
--                 each test costs a little
--  r, rr, …, n    that many refusals, or a new key: the row is read first
--  refused        more refusals: first a statement that can only refuse, which
--                 costs a tenth less than the one that reads everything, and
--                 four times as much if the key is not refused
--  override       a key with an override was charged: the UPDATE by its override comes
--                 first
--  shards         a key of a limit with shards was charged: that way comes first, and with
--  scattered      so does the table shards. As many dots follow as the key has shards if
--                 the session's home has most of its tokens: then a statement that takes from
--                 one row comes first
--  new            new keys: an INSERT comes first, which costs a third less
--
-- The function ask decides the rest: rows with reservations or of another version,
-- shadow mode, limits that are not plain, and invalid arguments.
create function dipwell.take(limit_name text, key text default null, cost bigint default 1, plan text default null, floor bigint default null) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n bigint := dipwell_internal.now_us();
    d dipwell.decision;
    x record; -- the limit, and the row if there is one
    hint text := coalesce(current_setting('dipwell.read_first', true), '');
    next text;
    refused boolean;
    i int; -- the shard whose advisory lock this call has, from 0
begin
    if plan is not null or floor is not null then
        if floor is null and key is distinct from '' and left(plan, 1) <> '#' then
            d := dipwell_internal.take_plan(limit_name, key, cost, plan, n);
            if d.allowed then
                return d;
            end if;
        end if;
        return dipwell_internal.ask_decide(0, limit_name, key, cost, plan, floor);
    end if;
    if hint = '' then
        update dipwell.buckets b
        set used = {{added (leftAfter "b.used" (ticksSince "b.ts" "n" 0 1) "l.add" unbounded) "take.cost * l.unit"}}, ts = {{later "n" "b.ts"}}
        from dipwell.limits l
        where l.name = limit_name and l.plain and l.every = 1 and l.add <= 256 and take.cost between 1 and l.cap / l.unit
            and b.limit_id = any (array[l.id]) and b.key = case when l.plain then coalesce(take.key, '') end and take.key is distinct from ''
            and b.version = l.version and b.lows is null
            and {{fitsAfter "b.used" (ticksSince "b.ts" "n" 0 1) "l.add" unbounded "take.cost * l.unit" "l.cap"}}
        returning true, (l.cap - b.used) / l.unit, null::interval,
            (b.ts - n) * interval '1 microsecond' + ({{ticksFor "b.used" "l.add"}}) * interval '1 microsecond',
            take.cost, interval '0', false, null::uuid
        into d;
        if found then
            return d;
        end if;
    elsif hint like 'scattered.%' then
        -- The lock comes first: then the row stays as it is read here. Half of the
        -- shard's tokens stay: with fewer, take_shards compares two shards.
        i := pg_backend_pid() % (length(hint) - 9);
        if not pg_try_advisory_xact_lock(hashtextextended(coalesce(key, ''), hashtext(limit_name)) + 1 + i) then
            i := dipwell_internal.lock_shard(limit_name, coalesce(key, ''), cost, i, length(hint) - 9);
            n := dipwell_internal.now_us();
        end if;
        update dipwell.shards b
            set used = {{added (leftAfter "b.used" (ticksSince "b.ts" "n" 0 1) "w.part" unbounded) "take.cost * l.unit"}}, ts = {{later "n" "b.ts"}}
            from dipwell.limits l
            cross join lateral (select (array_agg(o.ctid) filter (where o.shard = i))[1] as own, l.add / l.shards + case when i < l.add % l.shards then 1 else 0 end as part,
                    (sum({{leftAfter "o.used" (ticksSince "o.ts" "n" 0 1) "(l.add / l.shards + case when o.shard < l.add % l.shards then 1 else 0 end)" unbounded}}) filter (where o.shard <> i))::bigint as others
                from (select s.ctid, s.used, s.ts, s.shard from dipwell.shards s where s.limit_id = l.id and s.key = coalesce(take.key, '') and s.version = l.version order by s.shard offset 0) o) w
            where l.name = limit_name and l.shards = length(hint) - 9 and l.every = 1 and l.add <= 256 and l.mode = 'enforce' and take.key is distinct from '' and l.parent is null and l.parts is null
                and take.cost between 1 and l.cap / l.unit / l.shards / 2 and b.ctid = w.own and b.version = l.version
                and {{fitsAfter "b.used" (ticksSince "b.ts" "n" 0 1) "w.part" unbounded "take.cost * l.unit" "(l.cap / l.unit / l.shards / 2 * l.unit)"}}
            returning true, greatest(l.cap - w.others - b.used, 0) / l.unit, null::interval,
                (b.ts - n) * interval '1 microsecond' + ({{ticksFor "(w.others + b.used)" "l.add"}}) * interval '1 microsecond',
                take.cost, interval '0', false, null::uuid
            into d;
        if found then
            return d;
        end if;
        d := dipwell_internal.take_sharded(limit_name, key, cost, hint, i is not null);
        if d.allowed is not null then
            return d;
        end if;
    elsif hint = 'shards' or hint = 'scattered' then
        d := dipwell_internal.take_sharded(limit_name, key, cost, hint, false);
        if d.allowed is not null then
            return d;
        end if;
    elsif hint = 'refused' then
        select false, {{tokensLeft "b.used" "l.unit" "l.cap"}}, dipwell_internal.plain_wait({{excess "b.used" "b.units" "l.cap"}}, b.ts, n, l.every, l.add, l.grid),
                dipwell_internal.plain_wait(b.used, b.ts, n, l.every, l.add, l.grid), 0::bigint, interval '0', false, null::uuid
            into d
            from dipwell.limits l cross join lateral ( -- offset 0, so that used is computed once
                select dipwell_internal.plain_used(y.used, y.ts, n, l.every, l.add, l.grid, l.ticks) as used, {{later "n" "y.ts"}} as ts, take.cost * l.unit as units
                from dipwell.buckets y where y.limit_id = l.id and y.key = coalesce(take.key, '') and y.version = l.version and y.lows is null offset 0) b
            where l.name = limit_name and l.plain and take.cost between 1 and l.cap / l.unit and l.mode = 'enforce' and take.key is distinct from ''
                and {{no (fits "b.used" "b.units" "l.cap")}};
        if found then
            return d;
        end if;
    elsif hint = 'new' then
        select l.id, l.version, take.cost * l.unit as units, row(true, l.cap / l.unit - take.cost, null,
                dipwell_internal.plain_wait(take.cost * l.unit, n, n, l.every, l.add, l.grid), take.cost, interval '0', false, null)::dipwell.decision as allowed into x
            from dipwell.limits l
            where l.name = limit_name and l.plain and take.cost between 1 and l.cap / l.unit and l.mode = 'enforce' and l.overridden is not true
                and (take.key is null or octet_length(take.key) between 1 and 512);
        if found then
            insert into dipwell.buckets as b (used, ts, limit_id, version, key) values (x.units, n, x.id, x.version, coalesce(take.key, '')) on conflict do nothing;
            if found then
                return x.allowed;
            end if;
        end if;
    elsif hint = 'override' then
        d := dipwell_internal.take_overridden(limit_name, key, cost, n);
        if d.allowed then
            return d;
        end if;
    end if;
    select l.id, l.version, l.unit, l.every, l.add, l.cap, l.grid, l.ticks, take.cost * l.unit as units, b.used is null as fresh,
            dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, l.grid, l.ticks) as used, {{later "n" "b.ts"}} as ts into x
        from dipwell.limits l left join lateral (
            select y.used, y.ts, y.version, y.lows from dipwell.buckets y where y.limit_id = l.id and y.key = coalesce(take.key, '') limit 1) b on true
        where l.name = limit_name and l.plain and take.cost between 1 and l.cap / l.unit and l.mode = 'enforce'
            and (take.key is null or octet_length(take.key) between 1 and 512) and coalesce(b.version = l.version and b.lows is null, l.overridden is not true);
    if x.id is null and hint <> 'override' and key is distinct from '' then -- the row is of another definition
        d := dipwell_internal.take_overridden(limit_name, key, cost, n);
        if d.allowed then
            perform set_config('dipwell.read_first', 'override', false);
            return d;
        end if;
    end if;
    refused := {{no (fits "x.used" "x.units" "x.cap")}};
    next := case when x.id is null then hint when x.fresh then case hint when 'n' then 'new' else 'n' end
        when refused then case when hint = 'rrrrrrrr' then 'refused' when left(hint, 2) in ('r', 'rr') then hint || 'r' else 'r' end
        when not x.fresh and x.every = 1 and x.add <= 256 then '' else 'r' end;
    if next <> hint then
        perform set_config('dipwell.read_first', next, false);
    end if;
    if refused then
        return (false, {{tokensLeft "x.used" "x.unit" "x.cap"}}, dipwell_internal.plain_wait({{excess "x.used" "x.units" "x.cap"}}, x.ts, n, x.every, x.add, x.grid),
            dipwell_internal.plain_wait(x.used, x.ts, n, x.every, x.add, x.grid), 0::bigint, interval '0', false, null::uuid);
    elsif x.fresh then
        n := dipwell_internal.now_us(); -- the row may have been swept after it was first looked for
        insert into dipwell.buckets as b (used, ts, limit_id, version, key) values (x.units, n, x.id, x.version, coalesce(take.key, '')) on conflict do nothing
            returning true, (x.cap - b.used) / x.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, x.every, x.add, x.grid),
                take.cost, interval '0', false, null::uuid
            into d;
    elsif not x.fresh then
        update dipwell.buckets b
            set used = {{added "dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks)" "x.units"}}, ts = {{later "n" "b.ts"}}
            where b.limit_id = x.id and b.key = coalesce(take.key, '') and b.version = x.version and b.lows is null
                and dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) <= {{roomBefore "x.units" "x.cap"}}
            returning true, (x.cap - b.used) / x.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, x.every, x.add, x.grid),
                take.cost, interval '0', false, null::uuid
            into d;
    end if;
    if d.allowed then
        return d;
    end if;
    return dipwell_internal.ask(0, limit_name, key, cost, vain => hint = 'shards' or hint like 'scattered%');
end $$;
comment on function dipwell.take is
    'Takes cost tokens if they are all free, and otherwise none. Without a key it takes from the limit''s shared bucket.';

create type dipwell_internal.part as (
    at       int,
    limit_id int,
    key      text,
    version  int,
    cost     bigint,
    units    bigint,
    unit     bigint,
    every    bigint,
    add      bigint,
    cap      bigint,
    grid     bigint,
    ticks    bigint,
    used     bigint,
    ts       bigint,
    fresh    boolean
);
comment on type dipwell_internal.part is 'One bucket of take_all: its rule and its row.';
comment on column dipwell_internal.part.at is 'The position in the call, from 1.';
comment on column dipwell_internal.part.limit_id is 'limits.id.';
comment on column dipwell_internal.part.key is 'buckets.key.';
comment on column dipwell_internal.part.version is 'limits.version.';
comment on column dipwell_internal.part.cost is 'Tokens asked for.';
comment on column dipwell_internal.part.units is 'cost in units.';
comment on column dipwell_internal.part.unit is 'limits.unit.';
comment on column dipwell_internal.part.every is 'limits.every.';
comment on column dipwell_internal.part.add is 'limits.add.';
comment on column dipwell_internal.part.cap is 'limits.cap.';
comment on column dipwell_internal.part.grid is 'limits.grid.';
comment on column dipwell_internal.part.ticks is 'limits.ticks.';
comment on column dipwell_internal.part.used is 'Units used before the call, 0 where there was no row.';
comment on column dipwell_internal.part.ts is 'At this time, in µs; null where there was no row.';
comment on column dipwell_internal.part.fresh is 'Whether this call has made the row, with its charge.';

-- One statement reads the rows, so that they are from one snapshot. A limit and key that
-- are named twice are adjacent in locking order.
create function dipwell_internal.look_at_parts(limit_names text[], keys text[], costs bigint[]) returns dipwell_internal.part[]
language plpgsql volatile as $$
declare
    parts dipwell_internal.part[];
    p     dipwell_internal.part;
    last  dipwell_internal.part;
begin
    select array_agg(row(q.at, l.id, q.key, l.version, q.cost, q.cost * l.unit, l.unit, l.every, l.add, l.cap, l.grid, l.ticks, coalesce(b.used, 0), b.ts, false)
            ::dipwell_internal.part order by l.id, q.key collate "C") into parts
        from (select u.at, u.name, coalesce(u.key, '') as key, u.cost
            from unnest((select limit_names), (select keys), (select costs)) with ordinality u (name, key, cost, at)
            where u.key is null or octet_length(u.key) between 1 and 512) q
        cross join lateral (select * from dipwell.limits x where x.name = q.name limit 1) l
        left join lateral (select x.used, x.ts, x.version, x.lows from dipwell.buckets x where x.limit_id = l.id and x.key = q.key limit 1) b on true
        where l.plain and l.mode = 'enforce' and q.cost between 1 and l.cap / l.unit and coalesce(b.version = l.version and b.lows is null, l.overridden is not true);
    if cardinality(parts) is distinct from cardinality(limit_names) then
        return null;
    end if;
    foreach p in array parts loop
        if p.limit_id = last.limit_id and p.key = last.key then
            return null;
        end if;
        last := p;
    end loop;
    return parts;
end $$;
comment on function dipwell_internal.look_at_parts is
    'The parts of a take_all in locking order, with their present rows. Null if one of them is not plain, is named twice, or is out of order.';

-- A missing row is inserted at once, with its charge. An insert later might have to wait
-- for a concurrent one, out of locking order.
create function dipwell_internal.lock_parts(inout parts dipwell_internal.part[], out n bigint, out plain boolean)
language plpgsql volatile as $$
declare
    p dipwell_internal.part;
    b record;
begin
    plain := true;
    for i in 1..cardinality(parts) loop
        p := parts[i];
        loop
            select x.used, x.ts, x.version, x.lows into b from dipwell.buckets x
                where x.limit_id = p.limit_id and x.key = p.key for no key update;
            exit when found;
            n := coalesce(n, dipwell_internal.now_us());
            insert into dipwell.buckets (used, ts, limit_id, version, key) values (p.units, n, p.limit_id, p.version, p.key) on conflict do nothing;
            p.fresh := found;
            exit when found;
        end loop;
        p.used := coalesce(b.used, 0);
        p.ts := b.ts;
        parts[i] := p;
        plain := plain and coalesce(b.version = p.version and b.lows is null, true);
    end loop;
    n := coalesce(n, dipwell_internal.now_us());
end $$;
comment on function dipwell_internal.lock_parts is
    'Locks the rows of parts, and inserts missing ones with their charge. n is the time of the decision: when all locks were held, or when the first row was inserted. plain is false if a row has changed so that decide must decide.';

create function dipwell_internal.parts_fit(parts dipwell_internal.part[], n bigint) returns boolean
language plpgsql immutable as $$
declare
    p dipwell_internal.part;
begin
    foreach p in array parts loop
        if dipwell_internal.plain_used(p.used, p.ts, n, p.every, p.add, p.grid, p.ticks) > {{roomBefore "p.units" "p.cap"}} then
            return false;
        end if;
    end loop;
    return true;
end $$;
comment on function dipwell_internal.parts_fit is
    'Whether all parts fit at n.';

create function dipwell.take_all(limit_names text[], keys text[], costs bigint[] default null, plans text[] default null, floors bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    k       int := cardinality(limit_names);
    parts   dipwell_internal.part[];
    p       dipwell_internal.part;
    place   int[];
    n       bigint := dipwell_internal.now_us();
    verdict boolean;
    plain   boolean := false;
begin
    if plans is null and floors is null and k between 1 and 16 and array_dims(limit_names) = '[1:' || k || ']' and array_dims(keys) = array_dims(limit_names)
        and (costs is null or array_dims(costs) = array_dims(limit_names)) then
        parts := dipwell_internal.look_at_parts(limit_names, keys, coalesce(costs, array_fill(1::bigint, array[k])));
        plain := parts is not null;
    end if;
    n := dipwell_internal.now_us();
    verdict := plain and dipwell_internal.parts_fit(parts, n);
    if verdict then
        select l.parts, l.n, l.plain into parts, n, plain from dipwell_internal.lock_parts(parts) l;
        verdict := plain and dipwell_internal.parts_fit(parts, n);
        if not verdict then
            delete from dipwell.buckets x using unnest(parts) f where f.fresh and x.limit_id = f.limit_id and x.key = f.key;
        end if;
    end if;
    if not plain then
        return query select * from dipwell_internal.ask_all(limit_names, keys, costs, plans, floors);
        return;
    end if;
    for i in 1..k loop
        place[parts[i].at] := i;
    end loop;
    delay := interval '0';
    never := false;
    for i in 1..k loop
        p := parts[place[i]];
        p.used := dipwell_internal.plain_used(p.used, p.ts, n, p.every, p.add, p.grid, p.ticks);
        p.ts := {{later "n" "p.ts"}};
        allowed := {{fits "p.used" "p.units" "p.cap"}};
        retry_after := case when not allowed then dipwell_internal.plain_wait({{excess "p.used" "p.units" "p.cap"}}, p.ts, n, p.every, p.add, p.grid) end;
        if verdict then
            p.used := {{added "p.used" "p.units"}};
            if not p.fresh then
                update dipwell.buckets x set used = p.used, ts = p.ts where x.limit_id = p.limit_id and x.key = p.key;
            end if;
        end if;
        reset_after := case p.used when 0 then interval '0' else dipwell_internal.plain_wait(p.used, p.ts, n, p.every, p.add, p.grid) end;
        limit_name := limit_names[i];
        key := keys[i];
        remaining := {{tokensLeft "p.used" "p.unit" "p.cap"}};
        granted := case when verdict then p.cost else 0 end;
        return next;
    end loop;
end $$;
comment on function dipwell.take_all is
    'Takes all costs (1 each by default) at one instant, or none of them. Returns a row for each limit, in the order of the call, and then one for each parent. The costs of a limit and key that are named twice are added up.';

-- The index has the keys in order. A plan that sorts, or that starts at the prefix for
-- each page, would read all rows of a limit for one page.
create function dipwell_internal.keys(lim int, prefix text, after text, shared boolean, n bigint)
returns table (key text, used bigint, ts bigint, version int)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
    return query select b.key, coalesce((w.whole).used, b.used), coalesce((w.whole).ts, b.ts), b.version from dipwell.buckets b
        cross join lateral (select case when b.lows = '{0}' then dipwell_internal.whole(b.limit_id, b.key, b.version) end as whole offset 0) w
        where b.limit_id = lim and b.key >= greatest(prefix collate "C", after collate "C") and (after = '' and not shared or b.key > after) and left(b.key, char_length(prefix)) = prefix
        order by b.key limit n;
end $$;
comment on function dipwell_internal.keys is
    'At most n rows of a limit in the order of their keys: those that begin with prefix and come after the key after, or with shared, after the shared bucket.';
