
-- == Decisions about several keys at one instant

-- write: used and ts must be stored. before: used before the call. clipped: a charge added
-- less than its cost, because used stops growing. rule: what decided, for the key. free:
-- allowed by an unlimited plan, so that nothing was taken. bound: the call may be allowed
-- before retry.
create type dipwell_internal.answer as (
    allowed   boolean,
    never     boolean,
    shadow    boolean,
    granted   bigint,
    remaining bigint,
    retry     bigint,
    reset     bigint,
    delay     bigint,
    used      bigint,
    ts        bigint,
    write     boolean,
    before    bigint,
    clipped   boolean,
    rule      dipwell.versions,
    plan      text,
    free      boolean,
    bound     boolean,
    override  dipwell.key_overrides
);

-- Answers one call on its row as if it were alone. With dry nothing is charged. used, ts and
-- version are those of the row before any conversion.
create function dipwell_internal.answer_one(l dipwell.limits, asked dipwell_internal.definition, o dipwell.key_overrides, key text,
    used bigint, ts bigint, version int, n bigint, verb int, cost bigint, floor bigint, max_delay bigint, dry boolean)
returns dipwell_internal.answer language plpgsql stable as $$
declare
    a    dipwell_internal.answer := (false, false, false, 0, null, 0, 0, 0, null, null, false, null, false, null, null, false, false, null);
    d    dipwell_internal.definition := asked; -- decides
    own  dipwell_internal.definition; -- the row's
    later dipwell_internal.definition; -- after the override
    r    dipwell.versions; -- the rule for the key
    low  dipwell.versions; -- the same, less the floor
    s    record;
    used_ bigint := used; -- after the conversion to d
    ts_  bigint := ts;
    held bigint;
    late bigint;
    moves boolean;
    t    bigint;
    live dipwell.key_overrides := dipwell_internal.live_override(o, n);
    over boolean := live.id is not null;
begin
    if over or o.id is not null or version <> (d.rule).number or d.mode in ('unlimited', 'blocked') then
        own := dipwell_internal.own_definition(l, o, version, n);
        if over then
            d := dipwell_internal.override_definition(l, live);
            a.override := dipwell_internal.renewed(l, live);
        elsif verb in (4, 5) then
            -- A full row is the same as no row: a sweep may have deleted it.
            select c.used, c.ts into used_, ts_ from dipwell_internal.carry(l, o, key, version, (own.rule).number, n, used, ts) c;
            if dipwell_internal.used_at(dipwell_internal.spread(own.rule, l.name, key), used_, ts_, greatest(n, ts_)) > 0 then
                d := own;
            end if;
        end if;
        if d.mode = 'unlimited' and verb < 5 or d.mode = 'blocked' and verb < 4 then
            return dipwell_internal.answer_by_mode(a, d, l, asked, o, key, used, ts, version, n, verb, cost, floor, max_delay, dry);
        elsif d.mode = 'blocked' and not over then
            d := dipwell_internal.base_definition(l);
        end if;
        select c.used, c.ts into used_, ts_ from dipwell_internal.carry(l, o, key, version, (d.rule).number, n, used, ts) c;
    end if;
    r := dipwell_internal.spread(d.rule, l.name, key);
    low := r;
    if floor > 0 then
        low.cap := r.cap - case when floor > 9007199254740992 / r.unit then 9007199254740992 else floor * r.unit end;
    end if;
    select * into s from dipwell_internal.step(low, used_, ts_, n, verb, cost, max_delay, asked.fraction);
    a.never := s.never;
    a.retry := s.retry;
    if verb = 3 and max_delay is not null and not s.allowed and not s.never then
        for round in 1..16 loop -- until its delay is at most max_delay
            late := (dipwell_internal.answer_one(l, asked, o, key, used, ts, version, n + a.retry, 3, cost, floor, null, false)).delay - max_delay;
            exit when late <= 0;
            a.never := round > 1 and r.origin < 0; -- if windows begin with a call, waiting does not shorten the delay
            a.retry := case when a.never then 0 else a.retry + late end;
            exit when a.never;
        end loop;
    end if;
    if live.until is not null and not s.allowed and verb <> 4 then
        -- What is allowed after the end of the override is not computed.
        later := dipwell_internal.next_definition(l, live, asked);
        if a.never and (select not x.never or x.shadow and d.mode <> 'shadow' from dipwell_internal.answer_one(l, later, null, key, 0, n, (later.rule).number, n, verb, cost, floor, max_delay, true) x) then
            a.never := false;
            a.retry := live.until - n;
        end if;
        a.retry := least(a.retry, live.until - n);
    end if;
    a.allowed := s.allowed;
    a.delay := s.delay;
    held := s.before;
    if not s.allowed then
        if d.mode = 'shadow' and verb <> 4 then
            a.allowed := true;
            a.shadow := true;
        end if;
    elsif dry then
        a.delay := 0;
    else
        a.granted := s.granted;
        held := s.after;
    end if;
    a.remaining := case d.mode when 'unlimited' then 9007199254740991 else greatest(r.cap - dipwell_internal.counted(r, held, s.t, false), 0) / r.unit end;
    a.reset := case held when 0 then 0 else dipwell_internal.wait(r, held, s.t, n) end;
    a.used := held;
    a.ts := s.t;
    -- A refusal moves the row to a definition under which more tokens come back.
    moves := not s.allowed and not s.never and verb < 4 and s.before > 0 and not r.sliding and coalesce((own.rule).number <> (d.rule).number, false);
    a.bound := moves and (d.rule).add::numeric * (own.rule).unit <= (own.rule).add::numeric * (d.rule).unit;
    a.write := not dry and (not a.shadow and s.after <> s.before or moves and not a.bound and verb <> 1 and cost > 0);
    if moves and not a.bound and cost = 0 then -- the row stays, and refills under its own definition
        select c.used, c.ts into used_, ts_ from dipwell_internal.carry(l, o, key, version, (own.rule).number, n, used, ts) c;
        own.rule := dipwell_internal.spread(own.rule, l.name, key);
        t := greatest(n, ts_);
        used_ := dipwell_internal.used_at(own.rule, used_, ts_, t);
        a.retry := least(dipwell_internal.wait(own.rule, used_ - dipwell_internal.in_units(low.cap + case when r.leaky and verb <> 2 then r.debt else 0 end, r.unit, (own.rule).unit),
            dipwell_internal.written_at(own.rule, used_, ts_, t), n), live.until - n);
    end if;
    a.before := s.before;
    a.clipped := verb = 4 and s.allowed and s.after < s.before + cost::numeric * r.unit;
    a.rule := r;
    a.plan := d.plan;
    return a;
end $$;

-- Answers a call that an unlimited or blocked plan decides.
create function dipwell_internal.answer_by_mode(a dipwell_internal.answer, d dipwell_internal.definition, l dipwell.limits, asked dipwell_internal.definition,
    o dipwell.key_overrides, key text, used bigint, ts bigint, version int, n bigint, verb int, cost bigint, floor bigint, max_delay bigint, dry boolean)
returns dipwell_internal.answer language plpgsql stable as $$
declare
    r dipwell.versions := dipwell_internal.spread(case when (d.rule).number < 0 then d.rule else (dipwell_internal.base_definition(l)).rule end, l.name, key);
    c record;
    later dipwell_internal.answer; -- at the end of the override
begin
    select * into c from dipwell_internal.carry(l, o, key, version, r.number, n, used, ts);
    a.ts := greatest(n, c.ts);
    a.used := dipwell_internal.used_at(r, c.used, c.ts, a.ts);
    a.ts := dipwell_internal.written_at(r, a.used, c.ts, a.ts);
    a.before := a.used;
    a.rule := d.rule;
    a.plan := d.plan;
    a.free := d.mode = 'unlimited';
    if d.mode = 'unlimited' then
        a.allowed := true;
        a.remaining := 9007199254740991;
        a.granted := case when verb = 1 or dry then 0 else cost end;
        if l.algorithm = 'concurrency' and a.granted > 0 then -- it counts without a bound
            a.used := least(a.used + cost, r.max_used);
            a.write := true;
            a.free := false;
            a.rule := r;
        end if;
        return a;
    end if;
    a.remaining := greatest(r.cap - dipwell_internal.counted(r, a.used, a.ts, false), 0) / r.unit;
    a.reset := case a.used when 0 then 0 else dipwell_internal.wait(r, a.used, a.ts, n) end;
    a.never := true;
    if (a.override).until is not null then
        -- If the call is refused once more at the end, and only then moves the row, retry is that end.
        later := dipwell_internal.answer_one(l, asked, o, key, used, ts, version, (a.override).until, case verb when 1 then 0 else verb end, cost, floor, max_delay, false);
        a.never := later.never and not later.allowed;
        a.bound := later.bound or later.write and later.granted = 0;
        a.retry := case when a.never then 0 when later.allowed or later.write then (a.override).until - n else (a.override).until - n + later.retry end;
    end if;
    return a;
end $$;

-- When a refused call of a concurrency limit will be allowed, because holds or the override
-- end, in µs from n.
create function dipwell_internal.retry_of_holds(l dipwell.limits, o dipwell.key_overrides, asked dipwell_internal.definition, of_key text,
    a dipwell_internal.answer, need bigint, n bigint, out never boolean, out retry bigint) language plpgsql stable as $$
declare
    live dipwell.key_overrides := dipwell_internal.live_override(o, n);
    mode text := case when live.id is not null then live.mode else asked.mode end;
    later bigint;
begin
    if mode is distinct from 'blocked' then
        retry := dipwell_internal.hold_retry(l.id, of_key, a.used, need, (a.rule).cap, n);
    end if;
    if live.until is not null then
        asked := dipwell_internal.next_definition(l, live, asked);
        later := case when asked.mode = 'blocked' then null when asked.mode = 'unlimited' or asked.mode = 'shadow' and not a.shadow then 0
            else dipwell_internal.hold_retry(l.id, of_key, a.used, need, (asked.rule).cap, n) end;
        retry := case when later is null and (mode = 'blocked' or retry is null) then null
            when mode = 'blocked' then greatest(later, live.until - n) else least(retry, live.until - n) end;
    end if;
    never := retry is null;
    retry := coalesce(retry, 0);
end $$;

-- Whether an answer of a limit with a block begins a block. max_delay is that of a wait,
-- whose attempts begin none.
create function dipwell_internal.ran_out(verb int, cost bigint, max_delay bigint, a dipwell_internal.answer) returns boolean language sql immutable as $$
    select not a.allowed and not a.never and verb in (0, 2, 3) and cost > 0 and max_delay is null and (a.override).until is null
        and a.used > (a.rule).cap + case when (a.rule).leaky and verb <> 2 then (a.rule).debt else 0 end - cost::numeric * (a.rule).unit -- without the floor
$$;

-- Decides one group of calls at one instant, all or nothing: a row for each, or none if a
-- limit was dropped. The first pass only reads, and is the last one if nothing has to be
-- written. The second pass locks the rows in the order of their keys, so that two groups
-- cannot deadlock. Each statement of a volatile function sees what was committed before it
-- began. So both passes read the rows first, then the definitions, then the clock: whatever
-- is read before a wait for a lock may be older than the row.
create function dipwell_internal.decide(limit_ids int[], keys text[], verbs int[], costs bigint[], max_delays bigint[],
    reservation uuid default null, at bigint default null, plans text[] default null, floors bigint[] default null, fractions bigint[] default null)
returns table (allowed boolean, never boolean, shadow boolean, granted bigint, remaining bigint, retry bigint, reset bigint, delay bigint, n bigint,
    row_used bigint, row_ts bigint, row_version int, bound boolean,
    row_plan text, row_override jsonb, row_unit bigint, row_free boolean, row_max_charge bigint, row_debt bigint)
language plpgsql volatile set enable_seqscan = off as $$
declare
    k       int := cardinality(limit_ids);
    ls      dipwell.limits[] := array_fill(null::dipwell.limits, array[k]);
    ds      dipwell_internal.definition[] := array_fill(null::dipwell_internal.definition, array[k]); -- asked for
    os      dipwell.key_overrides[] := array_fill(null::dipwell.key_overrides, array[k]);
    now_os  dipwell.key_overrides[] := os; -- at the present version, if the row was converted to it
    l       dipwell.limits;
    d       dipwell_internal.definition;
    o       dipwell.key_overrides;
    bs      dipwell.buckets[] := array_fill(null::dipwell.buckets, array[k]); -- without lows; low is 0 if there are none
    b       dipwell.buckets;
    fresh   boolean[] := array_fill(false, array[k]); -- inserted by this call
    born    bigint; -- when the first of them was inserted
    list    bigint[]; -- lows of a row
    stale   boolean; -- a row was read before its override was set or ended
    answers dipwell_internal.answer[];
    a       dipwell_internal.answer;
    i       int;
    sorted  int[] := array[1];
    verdict boolean;
    changes boolean;
    moves   boolean; -- a refusal moves a row, or begins a block
    due     bigint;
    parts   int; -- of the reservation
    least_  bigint;  -- granted by a call of take_up_to of several limits
    ended   boolean; -- holds have expired
    torn    boolean; -- a row was read again, and had changed: the others are older
    late    boolean[]; -- records have ended or a version has, so that the row has to be brought up to now; true: a hold has expired
    locks   boolean := false;
    rounds  int := 0;
    x       record;
begin
    if k > 1 then
        sorted := array(select s from generate_series(1, k) s order by limit_ids[s], keys[s] collate "C");
    end if;
    loop
        -- One statement, so that all rows are from one snapshot.
        for x in select q.at, (coalesce(y.used, 0), coalesce(y.ts, -9007199254740991), q.limit_id, y.version, q.key, null, coalesce(y.low, 0), y.due)::dipwell.buckets as b
                from unnest((select limit_ids), (select keys)) with ordinality q (limit_id, key, at)
                left join lateral (select z.* from dipwell.buckets z where z.limit_id = q.limit_id and z.key = q.key limit 1) y on true where not locks loop
            bs[x.at] := x.b;
        end loop;
        foreach i in array case when locks then sorted else '{}' end loop
            while not fresh[i] loop
                select y.used, y.ts, y.limit_id, y.version, y.key, null, coalesce(y.low, 0), y.due into b from dipwell.buckets y
                    where y.limit_id = limit_ids[i] and y.key = keys[i] for update;
                bs[i] := b;
                exit when found;
                -- The charge that was decided without a lock is included, so that the
                -- row is written once.
                bs[i] := (0, -9007199254740991, null, null, null, null, 0, null)::dipwell.buckets;
                n := coalesce(born, at, dipwell_internal.now_us());
                insert into dipwell.buckets (used, ts, limit_id, version, key)
                    values (coalesce(answers[i].used, 0), n, limit_ids[i], dipwell_internal.row_number(coalesce(answers[i].rule, (ds[i]).rule)), keys[i])
                    on conflict do nothing;
                fresh[i] := found;
                born := case when found then n else born end;
            end loop;
        end loop;
        stale := false;
        for i in 1..k loop
            b := bs[i];
            o := case when b.version < 0 or b.version is null and (not locks or (ls[i]).overridden) then dipwell_internal.override_of(limit_ids[i], keys[i]) end;
            stale := stale or b.version < 0 and (dipwell_internal.named_override(o, b.version)).id is null;
            os[i] := o;
            continue when locks and coalesce(case when b.version < 0 then o.version else dipwell_internal.version_of(b.version) end, 0) <= (ls[i]).version; -- as read before the lock
            select * into l from dipwell.limits y where y.id = limit_ids[i];
            if not found then
                return;
            end if;
            perform dipwell_internal.check_version(l, case when b.version < 0 then o.version else dipwell_internal.version_of(b.version) end);
            ls[i] := l;
            d := dipwell_internal.asked_definition(l, plans[i], case when k > 1 then format('plans[%s]', i) else 'plan' end);
            d.fraction := fractions[i];
            ds[i] := d;
        end loop;
        rounds := rounds + 1;
        if stale and not locks and rounds < 16 then
            locks := verbs[1] <> 1;
            continue;
        end if;
        n := coalesce(born, at, dipwell_internal.now_us());
        verdict := true;
        changes := false;
        moves := false;
        due := 0;
        parts := 0;
        ended := false;
        torn := false;
        late := '{}';
        answers := null;
        for i in 1..k loop
            now_os[i] := os[i];
            b := bs[i];
            if b.due <= n or b.low > 0 and (case when b.version < 0 then (os[i]).version < (ls[i]).version or (os[i]).until <= n
                    else dipwell_internal.version_of(b.version) < (ls[i]).version end) then
                -- Whoever calls first after holds have expired gives them back. A check
                -- sees the same, and writes nothing.
                select dipwell_internal.brought(ls[i], os[i], y, n) as k, (y.used, y.ts) = (b.used, b.ts) as same into x from dipwell.buckets y
                    where y.limit_id = limit_ids[i] and y.key = keys[i] and y.version = b.version;
                ended := ended or coalesce((x.k).ended, true); -- null: it was changed meanwhile
                torn := torn or k > 1 and x.same is not true and not locks;
                if (x.k).version is not null then
                    late[i] := (x.k).ended;
                    if (x.k).version < 0 and (x.k).version <> b.version then
                        now_os[i] := dipwell_internal.renewed(ls[i], os[i]);
                    end if;
                    select (x.k).used, (x.k).ts, (x.k).version, coalesce((x.k).lows[cardinality((x.k).lows)], 0) into b.used, b.ts, b.version, b.low;
                    bs[i] := b;
                end if;
            end if;
            a := dipwell_internal.answer_one(ls[i], ds[i], now_os[i], keys[i], b.used, b.ts, coalesce(b.version, ((ds[i]).rule).number), n, verbs[i], costs[i], floors[i], max_delays[i], false);
            answers[i] := a;
            verdict := verdict and a.allowed;
            moves := moves or a.write and a.granted = 0 and verbs[i] < 4
                or (ls[i]).block_us is not null and dipwell_internal.ran_out(verbs[i], costs[i], max_delays[i], a);
            changes := changes or a.write or verbs[i] = 6 or a.clipped and b.low > 0;
            if a.granted > 0 and not a.free and verbs[i] <> 4 then
                due := greatest(due, a.delay);
                parts := parts + 1;
            end if;
        end loop;
        if torn and rounds < 16 then
            locks := verbs[1] <> 1;
            continue;
        end if;
        if verdict and k > 1 and verbs[1] = 2 then -- a limit and its parents take the same
            select min(y.granted) into least_ from unnest(answers) y where not y.shadow;
            changes := false;
            due := 0;
            for i in 1..k loop
                b := bs[i];
                if answers[i].granted > least_ then
                    answers[i] := dipwell_internal.answer_one(ls[i], ds[i], now_os[i], keys[i], b.used, b.ts, coalesce(b.version, ((ds[i]).rule).number), n, verbs[i], least_, floors[i], max_delays[i], false);
                end if;
                a := answers[i];
                changes := changes or a.write or verbs[i] = 6 or a.clipped and b.low > 0;
                due := greatest(due, case when a.granted > 0 then a.delay else 0 end);
            end loop;
        end if;
        exit when locks or not (verdict and changes or moves or ended and verbs[1] <> 1);
        locks := true;
    end loop;
    for i in 1..k loop
        a := answers[i];
        b := bs[i];
        if not verdict and (a.granted > 0 or verbs[i] >= 5) then
            a := dipwell_internal.answer_one(ls[i], ds[i], now_os[i], keys[i], b.used, b.ts, coalesce(b.version, ((ds[i]).rule).number), n, verbs[i], costs[i], floors[i], max_delays[i], true);
        end if;
        if not verdict then
            a.delay := 0; -- nothing is due, whichever verb set it
        end if;
        if verdict and verbs[i] = 6 then
            if dipwell_internal.automatic(os[i]) then
                perform dipwell_internal.set_block(limit_ids[i], keys[i], n, false);
                os[i] := dipwell_internal.override_of(limit_ids[i], keys[i]);
                a := dipwell_internal.answer_one(ls[i], ds[i], os[i], keys[i], 0, n, coalesce(dipwell_internal.override_number((os[i]).id), ((ds[i]).rule).number), n, 6, 0, null, null, false);
            end if;
            if (a.override).id is null then
                delete from dipwell.buckets y where y.limit_id = limit_ids[i] and y.key = keys[i];
            else -- an overridden key has a row
                update dipwell.buckets y set used = 0, ts = a.ts, version = (a.rule).number, lows = null, low = null, due = null
                    where y.limit_id = limit_ids[i] and y.key = keys[i];
            end if;
            perform dipwell_internal.store_override(os[i], a.override, n);
            -- Parts for other keys stay until they are due. Without this part nobody can
            -- cancel them.
            perform dipwell_internal.end_parts(limit_ids[i], keys[i], n, n);
        elsif a.write and (verdict or a.granted = 0 and verbs[i] < 4) or verdict and (a.clipped and b.low > 0 or a.granted > 0 and not a.free and verbs[i] <> 4 and due > 0) then
            list := null;
            if late[i] is not null then
                perform dipwell_internal.bring(limit_ids[i], keys[i], n);
            end if;
            if b.low > 0 then
                list := (select dipwell_internal.lows_of(y.lows, y.low) from dipwell.buckets y where y.limit_id = limit_ids[i] and y.key = keys[i]);
                if b.version <> (a.rule).number then
                    d := dipwell_internal.own_definition(ls[i], now_os[i], b.version, n);
                    list := dipwell_internal.lows_convert(list, d.rule, a.rule, a.before);
                    update dipwell.reservations y set slack = dipwell_internal.in_units(y.slack, (d.rule).unit, (a.rule).unit)
                        where y.limit_id = limit_ids[i] and y.key = keys[i] and y.slack is not null and y.mark = list[1];
                end if;
                list := case when a.before = 0 or a.used = 0 then null -- as in a store that deleted the full row
                    when a.clipped then list[1:5] || 0::bigint
                    else dipwell_internal.lows_limit(list, cardinality(list) - 1, a.before) end;
            end if;
            if a.granted > 0 and not a.free and verbs[i] <> 4 and due > 0 then
                list := dipwell_internal.lows_room(limit_ids[i], keys[i], list, ('x' || right(replace(reservation::text, '-', ''), 12))::bit(48)::bigint, n);
                if a.delay > 0 then
                    perform dipwell_internal.wrong(format('key: has 4096 reservations of limit %s that wait, the most of a key; cancel some', (ls[i]).name))
                        from (select from dipwell.reservations y where y.limit_id = limit_ids[i] and y.key = keys[i] and y.slack is not null limit 4096) z having count(*) = 4096;
                end if;
                insert into dipwell.reservations (id, limit_id, key, units, unit, due, part_due, number, mark, slack, rest, parts)
                    values (reservation, limit_ids[i], keys[i], a.granted * (a.rule).unit, (a.rule).unit, n + due, n + a.delay, list[2], list[1],
                        case when a.delay > 0 then greatest((a.rule).cap - (a.granted * (a.rule).unit), 0) end, false, parts);
                if (a.rule).sliding then
                    list := null; -- nothing can be given back to it
                else
                    list := dipwell_internal.lows_append(list, a.used);
                    list[4] := 1;
                end if;
            end if;
            update dipwell.buckets y set used = a.used, ts = a.ts, version = dipwell_internal.row_number(a.rule),
                    lows = list[:cardinality(list) - 1], low = list[cardinality(list)], due = dipwell_internal.next_due(limit_ids[i], keys[i])
                where y.limit_id = limit_ids[i] and y.key = keys[i]
                    and (not fresh[i] or (y.used, y.ts, y.version) is distinct from (a.used, a.ts, dipwell_internal.row_number(a.rule)) or list is not null);
            perform dipwell_internal.store_override(os[i], a.override, n);
        elsif locks and late[i] then
            perform dipwell_internal.bring(limit_ids[i], keys[i], n);
        elsif fresh[i] and (a.override).id is not null then
            update dipwell.buckets y set used = 0, version = dipwell_internal.override_number((a.override).id)
                where y.limit_id = limit_ids[i] and y.key = keys[i];
            perform dipwell_internal.store_override(os[i], a.override, n);
        elsif fresh[i] then
            delete from dipwell.buckets y where y.limit_id = limit_ids[i] and y.key = keys[i];
        end if;
        if (ls[i]).block_us is not null and dipwell_internal.ran_out(verbs[i], costs[i], max_delays[i], a) then
            perform dipwell_internal.set_block(limit_ids[i], keys[i], n, true);
            select y.used, y.ts, y.limit_id, y.version, y.key, null, coalesce(y.low, 0), y.due into b from dipwell.buckets y
                where y.limit_id = limit_ids[i] and y.key = keys[i];
            os[i] := dipwell_internal.override_of(limit_ids[i], keys[i]);
            a := dipwell_internal.answer_one(ls[i], ds[i], os[i], keys[i], b.used, b.ts, b.version, n, verbs[i], costs[i], floors[i], null, true);
        end if;
        select a.allowed, a.never, a.shadow, a.granted, a.remaining, a.retry, a.reset, a.delay, a.used, a.ts, (a.rule).number,
                a.plan, (a.rule).unit, a.free, case when a.never then dipwell_internal.most_charge(a.rule) end, (a.rule).debt, case when (a.override).id is not null then to_jsonb(a.override) - 'rule' end
            into allowed, never, shadow, granted, remaining, retry, reset, delay, row_used, row_ts, row_version, row_plan, row_unit, row_free, row_max_charge, row_debt, row_override;
        bound := (not a.allowed or a.shadow) and not never and (a.bound or b.low > 0 and dipwell_internal.has_live_hold(limit_ids[i], keys[i], n));
        if ls[i].algorithm = 'concurrency' then
            if not a.allowed or a.shadow then
                select y.never, y.retry into never, retry from dipwell_internal.retry_of_holds(ls[i], os[i], ds[i], keys[i], a, costs[i] + coalesce(floors[i], 0), n) y;
                bound := not never and dipwell_internal.has_live_hold(limit_ids[i], keys[i], n);
            end if;
            reset := case when a.used > 0 then coalesce(dipwell_internal.hold_reset(limit_ids[i], keys[i], n), reset) else 0 end;
        end if;
        if (a.override).mode = 'blocked' then
            bound := not never and a.bound or bound and n + retry > (a.override).until; -- the end of the override is exact
        elsif (a.override).until is not null and (not a.allowed or a.shadow) then
            bound := not never;
        end if;
        return next;
    end loop;
end $$;

-- Raises an error if a row is of a later version than its limit as this transaction sees it.
-- That happens if the snapshot of the transaction is older than the change of the limit.
create function dipwell_internal.check_version(l dipwell.limits, version int) returns void language plpgsql as $$
begin
    if version > l.version then
        raise exception using errcode = 'serialization_failure',
            message = format('limit %s was changed after this transaction began; try again', l.name);
    end if;
end $$;

-- Gives the tables buckets and hold_parts some pages, so that plans use their indexes. While a
-- table has no pages, the planner considers a sequential scan the cheapest way to a key, and
-- sessions keep that plan while the table fills. Vacuum keeps these pages (vacuum_truncate).
create function dipwell_internal.make_room() returns void language plpgsql volatile as $$
begin
    insert into dipwell.buckets (used, ts, limit_id, version, key)
        select 0, 0, 0, 0, lpad(i::text, 500, '0') from generate_series(1, 200) i on conflict do nothing;
    delete from dipwell.buckets where limit_id = 0;
    insert into dipwell.hold_parts (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key)
        select 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, false, false, false, false, false, lpad(i::text, 500, '0'), '' from generate_series(1, 200) i on conflict do nothing;
    delete from dipwell.hold_parts where limit_id = 0;
    if (select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = 'dipwell.buckets'::regclass) then
        analyze dipwell.buckets, dipwell.hold_parts; -- sessions plan again
    end if;
end $$;

do $$ begin
    perform dipwell_internal.make_room() where 0 in (pg_relation_size('dipwell.buckets'), pg_relation_size('dipwell.hold_parts'));
end $$;
