-- Decisions for several keys at one time, all or nothing. Go twins: Op.Step,
-- Group.Decide.

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
    clipped   boolean
);
comment on type dipwell_internal.answer is 'The result of a call of one key, in whole numbers. Go twin: Answer.';
comment on column dipwell_internal.answer.allowed is 'Whether the call is allowed.';
comment on column dipwell_internal.answer.never is 'The call can never be allowed.';
comment on column dipwell_internal.answer.shadow is 'Allowed only because the limit is in shadow mode.';
comment on column dipwell_internal.answer.granted is 'Tokens taken.';
comment on column dipwell_internal.answer.remaining is 'Whole tokens left.';
comment on column dipwell_internal.answer.retry is 'µs until the same call would be allowed.';
comment on column dipwell_internal.answer.reset is 'µs until the bucket is full.';
comment on column dipwell_internal.answer.delay is 'µs until a reservation is due.';
comment on column dipwell_internal.answer.used is 'Units used at ts.';
comment on column dipwell_internal.answer.ts is 'The time of the decision, in µs.';
comment on column dipwell_internal.answer.write is 'Whether used and ts must be stored.';
comment on column dipwell_internal.answer.before is 'Units used at ts, before the call.';
comment on column dipwell_internal.answer.clipped is 'A charge added less than its cost, because used stops growing.';

create function dipwell_internal.answer_one(l dipwell.limits, r dipwell.versions, key text, used bigint, ts bigint, version int,
    n bigint, verb int, cost bigint, max_delay bigint, dry boolean) returns dipwell_internal.answer language plpgsql stable as $$
declare
    a dipwell_internal.answer;
    o record;
    held bigint;
begin
    if version <> r.number then
        select c.used, c.ts into used, ts from dipwell_internal.carry(l.id, l.name, key, r.number, used, ts, version) c;
    end if;
    select * into o from dipwell_internal.step(r, used, ts, n, verb, cost, max_delay);
    a.allowed := o.allowed;
    a.never := o.never;
    a.shadow := false;
    a.granted := 0;
    a.retry := o.retry;
    a.delay := o.delay;
    held := o.before;
    if not o.allowed then
        if l.mode = 'shadow' then
            a.allowed := true;
            a.shadow := true;
        end if;
    elsif dry then
        a.delay := 0;
    else
        a.granted := o.granted;
        held := o.after;
    end if;
    a.remaining := {{tokensLeft "held" "r.unit" "r.cap"}};
    a.reset := case held when 0 then 0 else dipwell_internal.wait(r, held, o.t, n) end;
    a.used := held;
    a.ts := o.t;
    a.write := not dry and not a.shadow and o.after <> o.before;
    a.before := o.before;
    a.clipped := verb = 4 and o.allowed and {{clipped "o.before" "cost * r.unit" "o.after"}};
    return a;
end $$;
comment on function dipwell_internal.answer_one is
    'Answers one call on its row as if it stood alone. With dry nothing is charged.';

-- The first pass reads, and is the last if nothing has to be written. The second
-- locks the rows in the order of their keys, so that two groups cannot deadlock.
-- Each statement of a volatile function sees what was committed before it. So both
-- passes read the rows first, then the definitions, then the clock: what was read
-- before a wait for a lock may be older than the row.
create function dipwell_internal.decide(limit_ids int[], keys text[], verbs int[], costs bigint[], max_delays bigint[],
    reservation uuid default null, at bigint default null)
returns table (allowed boolean, never boolean, shadow boolean, granted bigint, remaining bigint, retry bigint, reset bigint, delay bigint, n bigint,
    row_used bigint, row_ts bigint, row_version int, bound boolean)
language plpgsql volatile set enable_seqscan = off as $$
declare
    k       int := cardinality(limit_ids);
    ls      dipwell.limits[] := array_fill(null::dipwell.limits, array[k]);
    rs      dipwell.versions[] := array_fill(null::dipwell.versions, array[k]);
    l       dipwell.limits;
    r       dipwell.versions;
    used    bigint[] := array_fill(0::bigint, array[k]);
    ts      bigint[] := used;
    version int[] := array_fill(0, array[k]);
    fresh   boolean[] := array_fill(false, array[k]);
    listed  boolean[] := fresh; -- whether the row has lows
    list    bigint[]; -- its lows
    answers dipwell_internal.answer[];
    a       dipwell_internal.answer;
    i       int;
    sorted  int[] := array[1];
    singly  int[];
    verdict boolean;
    changes boolean;
    due     bigint;
    parts   int; -- of the reservation
    least_  bigint;  -- granted by a call of take_up_to of several limits
    short   boolean; -- a call is refused, gets less than it asks for, or has to wait
    locks   boolean := false;
    row_    record;
begin
    if k > 1 then
        sorted := array(select s from generate_series(1, k) s order by limit_ids[s], keys[s] collate "C");
    end if;
    loop
        if k > 1 and not locks then
            -- One statement, so that the rows are of one time.
            for row_ in select o.at, b.used, b.ts, b.version, b.lows is not null as listed
                from unnest((select limit_ids), (select keys)) with ordinality o (limit_id, key, at) left join lateral (
                    select x.used, x.ts, x.version, x.lows from dipwell.buckets x where x.limit_id = o.limit_id and x.key = o.key limit 1) b on true loop
                used[row_.at] := coalesce(row_.used, 0);
                ts[row_.at] := coalesce(row_.ts, -9007199254740991);
                version[row_.at] := row_.version;
                listed[row_.at] := row_.listed;
            end loop;
            singly := '{}';
        else
            singly := sorted;
        end if;
        foreach i in array singly loop
            fresh[i] := false;
            loop
                if locks then
                    select b.used, b.ts, b.version, b.lows is not null as listed into row_ from dipwell.buckets b
                        where b.limit_id = limit_ids[i] and b.key = keys[i] for update;
                else
                    select b.used, b.ts, b.version, b.lows is not null as listed into row_ from dipwell.buckets b
                        where b.limit_id = limit_ids[i] and b.key = keys[i];
                end if;
                if found then
                    used[i] := row_.used;
                    ts[i] := row_.ts;
                    version[i] := row_.version;
                    listed[i] := row_.listed;
                    exit;
                end if;
                used[i] := 0;
                ts[i] := -9007199254740991;
                version[i] := null;
                listed[i] := false;
                exit when not locks;
                insert into dipwell.buckets (used, ts, limit_id, version, key)
                    values (0, coalesce(at, dipwell_internal.now_us()), limit_ids[i], rs[i].number, keys[i])
                    on conflict do nothing;
                fresh[i] := found;
                exit when found;
            end loop;
        end loop;
        for i in 1..k loop
            continue when locks and version[i] is null or version[i] <= rs[i].number; -- as read before the lock
            select * into l from dipwell.limits x where x.id = limit_ids[i];
            if not found then
                return;
            end if;
            select * into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
            perform dipwell_internal.check_version(l, version[i]);
            ls[i] := l;
            rs[i] := dipwell_internal.spread(r, l.name, keys[i]);
        end loop;
        n := coalesce(at, dipwell_internal.now_us());
        verdict := true;
        changes := false;
        due := 0;
        parts := 0;
        short := false;
        answers := null;
        for i in 1..k loop
            a := dipwell_internal.answer_one(ls[i], rs[i], keys[i], used[i], ts[i], coalesce(version[i], rs[i].number), n, verbs[i], costs[i], max_delays[i], false);
            answers[i] := a;
            -- What expired holds took comes back first.
            if (listed[i] or ls[i].algorithm = 'concurrency') and (not a.allowed or a.shadow or verbs[i] = 2 and a.granted < costs[i] or a.delay > 0)
                and (case when locks then dipwell_internal.expire_holds(limit_ids[i], keys[i], n) > 0 else dipwell_internal.has_expired_hold(limit_ids[i], keys[i], n) end) then
                short := true;
            end if;
            verdict := verdict and a.allowed;
            changes := changes or a.write or verbs[i] = 6 or a.clipped and listed[i];
            if a.granted > 0 then
                due := {{later "due" "a.delay"}};
                parts := parts + 1;
            end if;
        end loop;
        if verdict and k > 1 and verbs[1] = 2 then -- a limit and its parents take the same
            select min(x.granted) into least_ from unnest(answers) x where not x.shadow;
            changes := false;
            due := 0;
            for i in 1..k loop
                if answers[i].granted > least_ then
                    answers[i] := dipwell_internal.answer_one(ls[i], rs[i], keys[i], used[i], ts[i], coalesce(version[i], rs[i].number), n, verbs[i], least_, max_delays[i], false);
                end if;
                a := answers[i];
                changes := changes or a.write or verbs[i] = 6 or a.clipped and listed[i];
                due := greatest(due, case when a.granted > 0 then a.delay else 0 end);
            end loop;
        end if;
        exit when not short and (locks or not verdict or not changes);
        locks := true;
    end loop;
    for i in 1..k loop
        a := answers[i];
        if not verdict and (a.granted > 0 or verbs[i] >= 5) then
            a := dipwell_internal.answer_one(ls[i], rs[i], keys[i], used[i], ts[i], coalesce(version[i], rs[i].number), n, verbs[i], costs[i], max_delays[i], true);
        end if;
        if not verdict then
            a.delay := 0; -- nothing is due, whichever verb set it
        end if;
        if verdict and verbs[i] = 6 then
            delete from dipwell.buckets b where b.limit_id = limit_ids[i] and b.key = keys[i];
            -- Parts for other keys stay until they are due; without this one nobody
            -- can cancel them.
            delete from dipwell.reservations x where x.limit_id = limit_ids[i] and x.key = keys[i];
            update dipwell.hold_parts x set live = false, reset = true, due = case x.parts when 1 then n else x.expires end + greatest(x.ttl, 60000000)
                where x.limit_id = limit_ids[i] and x.key = keys[i] and x.live;
        elsif verdict and (a.write or a.clipped and listed[i] or a.granted > 0 and due > 0) then
            list := null;
            if listed[i] then
                select c.lows, c.used into row_ from dipwell.buckets b
                    cross join lateral dipwell_internal.carry(b.limit_id, ls[i].name, b.key, rs[i].number, b.used, b.ts, b.version, b.lows) c
                    where b.limit_id = limit_ids[i] and b.key = keys[i];
                list := dipwell_internal.resolve_records(limit_ids[i], keys[i], rs[i].number, case when row_.used > 0 then row_.lows end, n);
                if list is not null then
                    list := dipwell_internal.touch(list, a);
                end if;
            end if;
            if a.granted > 0 and due > 0 then
                list := coalesce(list, array[('x' || right(replace(reservation::text, '-', ''), 12))::bit(48)::bigint, 1]);
                insert into dipwell.reservations (id, limit_id, key, units, version, due, part_due, number, mark, slack, rest, parts)
                    values (reservation, limit_ids[i], keys[i], a.granted * rs[i].unit, rs[i].number, n + due, n + a.delay, list[2], list[1],
                        case when a.delay > 0 then {{slackOf "a.granted * rs[i].unit" "rs[i].cap"}} end, false, parts);
                list := dipwell_internal.lows_append(list, a.used);
            end if;
            update dipwell.buckets b set used = a.used, ts = a.ts, version = rs[i].number, lows = list
                where b.limit_id = limit_ids[i] and b.key = keys[i];
        elsif fresh[i] then
            delete from dipwell.buckets b where b.limit_id = limit_ids[i] and b.key = keys[i] and b.used = 0;
        end if;
        allowed := a.allowed;
        never := a.never;
        shadow := a.shadow;
        granted := a.granted;
        remaining := a.remaining;
        retry := a.retry;
        reset := a.reset;
        delay := a.delay;
        row_used := a.used;
        row_ts := a.ts;
        row_version := rs[i].number;
        bound := (not a.allowed or a.shadow) and not a.never and (listed[i] or ls[i].algorithm = 'concurrency')
            and dipwell_internal.has_live_hold(limit_ids[i], keys[i]);
        if ls[i].algorithm = 'concurrency' then
            retry := case when bound then coalesce(dipwell_internal.hold_retry(limit_ids[i], keys[i], a.used + costs[i] - rs[i].cap, n),
                dipwell_internal.hold_reset(limit_ids[i], keys[i], n), retry) else retry end;
            reset := case when a.used > 0 then coalesce(dipwell_internal.hold_reset(limit_ids[i], keys[i], n), reset) else 0 end;
        end if;
        return next;
    end loop;
end $$;
comment on function dipwell_internal.decide is
    'Decides one group of calls at one instant, all or nothing; returns a row for each call, in the order asked, and none when a limit is gone. at replaces the clock, for tests.';

create function dipwell_internal.check_version(l dipwell.limits, version int) returns void language plpgsql as $$
begin
    if version > l.version then
        raise exception using errcode = 'serialization_failure',
            message = format('limit %s was changed after this transaction began; try again', l.name);
    end if;
end $$;
comment on function dipwell_internal.check_version is
    'Raises an error when a row is of a later version than the limit that was read after it, as in a transaction whose snapshot is older than the change.';

create function dipwell_internal.make_room() returns void language plpgsql volatile as $$
begin
    insert into dipwell.buckets (used, ts, limit_id, version, key)
        select 0, 0, 0, 0, lpad(i::text, 500, '0') from generate_series(1, 200) i on conflict do nothing;
    delete from dipwell.buckets where limit_id = 0;
    if (select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = 'dipwell.buckets'::regclass) then
        analyze dipwell.buckets; -- sessions plan again
    end if;
end $$;
comment on function dipwell_internal.make_room is
    'Gives the table buckets some pages, which vacuum keeps (vacuum_truncate). While a table has none, the planner takes a sequential scan for the cheapest way to a key, and sessions keep that plan while the table fills.';
select dipwell_internal.make_room() where pg_relation_size('dipwell.buckets') = 0;

-- A transaction that read the limits before a change may still insert a row of the
-- old version; if that version were deleted, the row would count as full. SQL reads
-- the limits in each call, and a program at most a minute before it (catalog.go:
-- maxUnheard). So a version is kept until all transactions have ended that began
-- within a minute after it was superseded. Transactions of roles that this one may
-- not see count as begun at most nine minutes ago.
create function dipwell_internal.retire(at bigint default null) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    minute constant bigint := 60000000;
    oldest bigint;
    gone   bigint;
begin
    if at is null then
        select least(dipwell_internal.now_us() - 9 * minute, (date_part('epoch', min(a.xact_start)) * 1000000)::bigint) into oldest
            from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid();
    else
        oldest := at - 9 * minute;
    end if;
    delete from dipwell.versions v using dipwell.limits l
    where l.id = v.limit_id and v.number < l.version
        and v.number < least(coalesce((select min(b.version) from dipwell.buckets b where b.limit_id = l.id), l.version),
                             coalesce((select min(x.version) from dipwell.reservations x where x.limit_id = l.id), l.version),
                             coalesce((select min(x.version) from dipwell.hold_parts x where x.limit_id = l.id and x.live), l.version))
        and (select s.since from dipwell.versions s where s.limit_id = v.limit_id and s.number = v.number + 1) < oldest - minute;
    get diagnostics gone = row_count;
    if gone > 0 then
        update dipwell.revision set n = n + 1;
    end if;
    return gone;
end $$;
comment on function dipwell_internal.retire is
    'Deletes versions that no row, no reservation and no hold names any more, some time after they were superseded. at replaces the clock, for tests.';
