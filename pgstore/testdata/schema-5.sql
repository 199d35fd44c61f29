create schema if not exists dipwell;
create table if not exists dipwell.migrations (
    version    int primary key,
    name       text not null,
    applied_at timestamptz not null default now()
);

-- 0001 tables
-- Limits, their versions, and the buckets. A missing bucket is a full one.
create schema if not exists dipwell;

create table dipwell.limits (
    id             int generated always as identity primary key,
    name           text collate "C" not null unique,
    -- as defined; null is the default
    algorithm      text not null,
    rate           bigint not null,
    per            text not null,          -- 250ms, 1m, 1mo
    burst          bigint,
    max_debt       bigint,                 -- -1: unlimited
    max_charge     bigint,
    start          text,
    on_change      text not null,
    mode           text not null,
    auth           boolean not null,
    retry_jitter   int not null,           -- percent
    on_store_error text not null,
    timeout_us     bigint not null,        -- 0: as long as the caller's
    list_keys      boolean not null,
    owner          text not null,          -- code, file, api or sql
    -- the present version, and what take needs of its rule
    version        int not null,
    unit           bigint not null,
    every          bigint not null,
    add            bigint not null,
    cap            bigint not null,
    grid           bigint not null,        -- a boundary before any instant that can be counted
    ticks          bigint not null,        -- after which everything has come back
    plain          boolean not null        -- nothing but these numbers decides a take
);

-- Each rule that a bucket may still be counted in, the present one included.
-- Go twin: dipwell.Rule.
create table dipwell.versions (
    limit_id   int not null references dipwell.limits on delete cascade,
    number     int not null,               -- from 1
    since      bigint not null,            -- µs since the Unix epoch
    policy     text not null,              -- how used is converted on the way into this version
    unit       bigint not null,            -- units in a token
    every      bigint not null,            -- µs between ticks; 0: a calendar's
    add        bigint not null,            -- units given back at a tick
    cap        bigint not null,            -- units that take may use
    origin     bigint not null,            -- µs; for a calendar, after each of its boundaries
    burst      bigint not null,            -- tokens: cap / unit
    debt       bigint not null,            -- units that reserve may use beyond cap
    most       bigint not null,            -- tokens: the largest reserve that could ever be granted
    max_charge bigint not null,            -- tokens
    max_used   bigint not null,            -- units
    leaky      boolean not null,           -- take means reserve
    spread     boolean not null,           -- origin depends on the key
    months     bigint not null,            -- in a calendar's unit, else 0
    days       bigint not null,            -- 1 or 7 when the unit is days, else 0
    clock      bigint not null,            -- seconds after local midnight
    zone       text not null,              -- '' without a calendar
    per        text not null,
    start      text,
    primary key (limit_id, number)
);

-- Nothing that changes is indexed, and pages keep room: so updates stay within
-- their page and leave the index alone.
create table dipwell.buckets (
    used     bigint not null,              -- units taken and not yet given back
    ts       bigint not null,              -- µs since the Unix epoch, on this server's clock
    limit_id int not null,
    version  int not null,                 -- of the limit, under which used and ts are counted
    key      text collate "C" not null,    -- '' is the limit's one shared bucket
    primary key (limit_id, key)
) with (fillfactor = 70, vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What was taken ahead of time. One call has one id, over all of its keys.
create table dipwell.reservations (
    id       uuid not null,
    limit_id int not null,
    key      text collate "C" not null,
    units    bigint not null,
    version  int not null,                 -- in which units are counted
    due      bigint not null,              -- µs; afterwards it cannot be cancelled
    primary key (id, limit_id, key)
);
create index on dipwell.reservations (limit_id, key);
create index on dipwell.reservations (due);

-- Moves with each change of a limit, for programs that cannot listen.
create table dipwell.revision (n bigint not null);
insert into dipwell.revision values (0);
insert into dipwell.migrations (version, name) values (1, 'tables');

-- 0002 rule
-- The algebra. Go twins: rule.go, calendar.go, definition.go.

-- The server's time, in µs. In the language SQL, so that it is inlined.
create function dipwell.now_us() returns bigint language sql volatile as
$$ select (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

create function dipwell.floor_div(a bigint, b bigint) returns bigint language sql immutable as
$$ select case when a >= 0 then a / b else -((b - 1 - a) / b) end $$;

-- a × b / c, rounded up or down; at most 2^53-1.
create function dipwell.mul_div(a bigint, b bigint, c bigint, up boolean) returns bigint language sql immutable as
$$ select least(case when up then div(a::numeric * b + c - 1, c) else div(a::numeric * b, c) end, 9007199254740991)::bigint $$;

-- A length of x µs, exactly: an interval is multiplied in float8, which holds
-- every integer up to 2^53 and every multiple of 2^20 that a bigint can be.
create function dipwell.length(x bigint) returns interval language sql immutable as
$$ select x / 1048576 * interval '1048576 microseconds' + x % 1048576 * interval '1 microsecond' $$;

-- Seconds by which the wall clock of a zone is ahead of UTC at an instant. Four
-- names of zones are abbreviations as well, which AT TIME ZONE prefers and
-- which know no summer; elsewhere the same clocks have a name of their own.
create function dipwell.zone_offset(zone text, x bigint) returns bigint language sql stable as
$$ select date_part('epoch', (timestamptz 'epoch' + x * interval '1 second') at time zone
    case zone when 'CET' then 'Europe/Brussels' when 'MET' then 'Europe/Brussels'
        when 'EET' then 'Europe/Athens' when 'WET' then 'Europe/Lisbon' else zone end)::bigint - x $$;

-- The first Unix second at which the wall clock of a zone shows wall (seconds,
-- as if the wall clock were UTC) or later. AT TIME ZONE would answer the later
-- of two such instants, and one after a gap. Go twin: firstAtOrAfter.
create function dipwell.first_at(zone text, wall bigint) returns bigint language plpgsql stable as $$
declare
    before bigint;
    after  bigint;
    low    bigint;
    high   bigint;
    middle bigint;
begin
    if zone = 'UTC' then
        return wall;
    end if;
    before := dipwell.zone_offset(zone, wall - 93600);
    high := wall - before;
    if dipwell.zone_offset(zone, high) = before then
        return high;
    end if;
    -- The clocks changed before it could show wall.
    after := dipwell.zone_offset(zone, high);
    low := wall - after;
    if dipwell.zone_offset(zone, low) = after then
        return low;
    end if;
    while high - low > 1 loop -- a gap swallowed wall: find where it ends
        middle := low + (high - low) / 2;
        if dipwell.zone_offset(zone, middle) = after then
            high := middle;
        else
            low := middle;
        end if;
    end loop;
    return high;
end $$;

-- The instant, in µs, at which unit k of a calendar begins.
create function dipwell.calendar_boundary(r dipwell.versions, k bigint) returns bigint language plpgsql stable as $$
begin
    if r.months > 0 then
        return dipwell.first_at(r.zone, r.clock
            + date_part('epoch', timestamp 'epoch' + k * r.months * interval '1 month')::bigint) * 1000000;
    end if;
    return dipwell.first_at(r.zone, r.clock
        + (k * r.days + case r.days when 7 then 4 else 0 end) * 86400) * 1000000; -- weeks begin on Monday
end $$;

-- The number of the last tick at or before x.
create function dipwell.tick(r dipwell.versions, x bigint) returns bigint language plpgsql stable as $$
declare
    y  bigint := x - r.origin;
    at timestamp;
    k  bigint;
begin
    if r.every > 0 then
        return dipwell.floor_div(y, r.every);
    end if;
    at := timestamp 'epoch' + (y + dipwell.zone_offset(r.zone, dipwell.floor_div(y, 1000000)) * 1000000) * interval '1 microsecond';
    if r.months > 0 then
        k := dipwell.floor_div(((date_part('year', at) - 1970) * 12 + date_part('month', at) - 1)::bigint, r.months);
    else
        k := dipwell.floor_div((at::date - date '1970-01-01') - case r.days when 7 then 4 else 0 end, r.days);
    end if;
    while dipwell.calendar_boundary(r, k) > y loop
        k := k - 1;
    end loop;
    while dipwell.calendar_boundary(r, k + 1) <= y loop
        k := k + 1;
    end loop;
    return k;
end $$;

-- The time in µs from n to the tick at which units will have come back.
create function dipwell.wait(r dipwell.versions, units bigint, t bigint, n bigint) returns bigint language plpgsql stable as $$
declare
    ticks bigint := (units + r.add - 1) / r.add;
begin
    if r.every = 1 then
        return t + ticks - n;
    elsif r.every > 0 then
        return r.origin + (dipwell.tick(r, t) + ticks) * r.every - n;
    end if;
    return dipwell.calendar_boundary(r, dipwell.tick(r, t) + ticks) + r.origin - n;
end $$;

-- A row stepped from ts to t, which is not before ts.
create function dipwell.used_at(r dipwell.versions, used bigint, ts bigint, t bigint) returns bigint language plpgsql stable as $$
declare
    ticks bigint;
begin
    if used = 0 or t = ts then
        return used;
    end if;
    ticks := dipwell.tick(r, t) - dipwell.tick(r, ts);
    if ticks >= (used + r.add - 1) / r.add then
        return 0;
    end if;
    return used - ticks * r.add;
end $$;

-- Where a key's windows begin: the first 48 bits of SHA-256(uint32be(length) ‖ name ‖ key).
create function dipwell.spread(r dipwell.versions, name text, key text) returns dipwell.versions language plpgsql stable as $$
begin
    if r.spread then
        r.origin := ('x' || substr(encode(sha256(int4send(octet_length(convert_to(name, 'UTF8')))
                || convert_to(name, 'UTF8') || convert_to(key, 'UTF8')), 'hex'), 1, 12))::bit(48)::bigint
            % case when r.every > 0 then r.every
                   when r.months % 12 = 0 then r.months / 12 * 365 * 86400000000
                   else r.months * 28 * 86400000000 end;
    end if;
    return r;
end $$;

-- Units used under one rule in units of the next.
create function dipwell.convert_used(used bigint, was dipwell.versions, r dipwell.versions, up boolean) returns bigint language plpgsql stable as $$
begin
    if used = 0 or r.policy = 'reset' then
        return 0;
    elsif r.policy = 'proportional' and was.cap > 0 then
        return least(dipwell.mul_div(used, r.cap, was.cap, up), r.max_used);
    end if;
    return least(dipwell.mul_div(used, r.unit, was.unit, up), r.max_used);
end $$;

-- A row brought to the present version: stepped under each rule up to that
-- version's end, and converted. A row of a version that is gone is full.
create function dipwell.carry(lim int, name text, key text, present int, inout used bigint, inout ts bigint, version int) language plpgsql stable as $$
declare
    was dipwell.versions;
    r   dipwell.versions;
    t   bigint;
begin
    if version = present then
        return;
    end if;
    select * into was from dipwell.versions v where v.limit_id = lim and v.number = version;
    if not found then
        used := 0;
        return;
    end if;
    for r in select * from dipwell.versions v where v.limit_id = lim and v.number > version order by v.number loop
        t := greatest(ts, r.since);
        used := dipwell.convert_used(dipwell.used_at(dipwell.spread(was, name, key), used, ts, t), was, r, true);
        ts := t;
        was := r;
    end loop;
end $$;

-- Units charged under an older version, rounded against the client.
create function dipwell.carry_units(lim int, present int, units bigint, version int) returns bigint language plpgsql stable as $$
declare
    was dipwell.versions;
    r   dipwell.versions;
begin
    if version = present then
        return units;
    end if;
    select * into was from dipwell.versions v where v.limit_id = lim and v.number = version;
    if not found then
        return 0;
    end if;
    for r in select * from dipwell.versions v where v.limit_id = lim and v.number > version order by v.number loop
        units := dipwell.convert_used(units, was, r, false);
        was := r;
    end loop;
    return units;
end $$;

-- Whether a row is full at n.
create function dipwell.is_full(lim int, key text, used bigint, ts bigint, version int, n bigint) returns boolean language plpgsql stable as $$
declare
    r dipwell.versions;
    l dipwell.limits;
    c record;
begin
    select * into l from dipwell.limits where id = lim;
    if not found then
        return true; -- the limit was dropped
    end if;
    select * into r from dipwell.versions v where v.limit_id = lim and v.number = l.version;
    select * into c from dipwell.carry(lim, l.name, key, l.version, used, ts, version);
    return dipwell.used_at(dipwell.spread(r, l.name, key), c.used, c.ts, greatest(n, c.ts)) = 0;
end $$;

-- One call decided: the whole algebra. Go twins: Rule.Apply, bound.
-- Verbs: 0 take, 1 check, 2 take_up_to, 3 reserve, 4 charge, 5 refund, 6 reset.
create function dipwell.step(r dipwell.versions, used bigint, ts bigint, n bigint, verb int, cost bigint, max_delay bigint,
    out allowed boolean, out never boolean, out granted bigint, out before bigint, out after bigint, out t bigint,
    out retry bigint, out delay bigint) language plpgsql stable as $$
declare
    over bigint;
    late bigint;
    as_reserve boolean := r.leaky and verb <= 1 or verb = 3 and (cost > 0 or r.leaky);
begin
    allowed := false;
    never := false;
    granted := 0;
    retry := 0;
    delay := 0;
    t := greatest(n, ts);
    before := dipwell.used_at(r, used, ts, t);
    after := before;
    if as_reserve then
        if cost > r.most then
            never := true;
            return;
        end if;
        over := before + cost * r.unit - r.cap;
        if over > r.debt then
            retry := dipwell.wait(r, over - r.debt, t, n);
        else
            allowed := true;
            if over > 0 then
                delay := dipwell.wait(r, over, t, n);
            end if;
            if verb <> 1 then
                granted := cost;
                after := before + cost * r.unit;
            end if;
        end if;
        if verb = 3 and max_delay is not null then
            late := case when allowed then delay else dipwell.wait(r, over, t, n) end - max_delay;
            if late > 0 then
                allowed := false;
                granted := 0;
                after := before;
                delay := 0;
                retry := greatest(retry, late);
            end if;
        end if;
    elsif verb <= 1 or verb <= 3 and cost = 0 then
        if cost > r.burst then
            never := true;
        elsif before + cost * r.unit > r.cap then
            retry := dipwell.wait(r, before + cost * r.unit - r.cap, t, n);
        else
            allowed := true;
            if verb = 0 then
                granted := cost;
                after := before + cost * r.unit;
            end if;
        end if;
    elsif verb = 2 then
        if r.burst = 0 then
            never := true;
        elsif r.cap - before >= r.unit then
            allowed := true;
            granted := least(cost, (r.cap - before) / r.unit);
            after := before + granted * r.unit;
        else
            retry := dipwell.wait(r, before + r.unit - r.cap, t, n);
        end if;
    elsif verb = 4 then
        allowed := cost <= r.max_charge;
        never := not allowed;
        if allowed then
            granted := cost;
            after := least(before + cost * r.unit, greatest(r.max_used, before));
        end if;
    elsif verb = 5 then
        allowed := true;
        after := greatest(0, before - case when cost > 9007199254740991 / r.unit then 9007199254740991 else cost * r.unit end);
    else
        allowed := true;
        after := 0;
    end if;
end $$;
insert into dipwell.migrations (version, name) values (2, 'rule');

-- 0003 decide
-- Decisions about several keys, at one instant, all or nothing. Go twins:
-- Op.Step, Group.Decide.

create type dipwell.answer as (
    allowed   boolean,
    never     boolean,
    shadow    boolean,
    granted   bigint,  -- tokens
    remaining bigint,  -- tokens
    retry     bigint,  -- µs
    reset     bigint,  -- µs
    delay     bigint,  -- µs
    -- the row that is described, and to be stored where it differs
    used      bigint,
    ts        bigint,
    write     boolean
);

-- Answers one call on its row, as if it stood alone. dry answers without charging.
create function dipwell.answer_one(l dipwell.limits, r dipwell.versions, key text, used bigint, ts bigint, version int,
    n bigint, verb int, cost bigint, max_delay bigint, dry boolean) returns dipwell.answer language plpgsql stable as $$
declare
    a dipwell.answer;
    o record;
    held bigint;
begin
    if version <> r.number then
        select c.used, c.ts into used, ts from dipwell.carry(l.id, l.name, key, r.number, used, ts, version) c;
    end if;
    select * into o from dipwell.step(r, used, ts, n, verb, cost, max_delay);
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
    a.remaining := greatest(0, (r.cap - held) / r.unit);
    a.reset := case held when 0 then 0 else dipwell.wait(r, held, o.t, n) end;
    a.used := held;
    a.ts := o.t;
    a.write := not dry and not a.shadow and o.after <> o.before;
    return a;
end $$;

-- Decides one group: a row an op, in the order asked. The first pass reads, and
-- ends the matter where nothing is to be written; the second locks the rows in
-- the order of their keys, so that two groups cannot deadlock, and reads the
-- clock only then. limit_ids of limits that are gone give no row at all.
-- at is for tests: it takes the place of the clock.
create function dipwell.decide(limit_ids int[], keys text[], verbs int[], costs bigint[], max_delays bigint[],
    reservation uuid default null, at bigint default null)
returns table (allowed boolean, never boolean, shadow boolean, granted bigint, remaining bigint, retry bigint, reset bigint, delay bigint, n bigint,
    row_used bigint, row_ts bigint)
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
    answers dipwell.answer[];
    a       dipwell.answer;
    i       int;
    sorted  int[] := array[1];
    singly  int[];
    verdict boolean;
    changes boolean;
    due     bigint;
    locks   boolean := false;
    row_    record;
begin
    for i in 1..k loop
        select * into l from dipwell.limits x where x.id = limit_ids[i];
        if not found then
            return;
        end if;
        select * into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
        ls[i] := l;
        rs[i] := dipwell.spread(r, l.name, keys[i]);
    end loop;
    if k > 1 then
        sorted := array(select s from generate_series(1, k) s order by limit_ids[s], keys[s] collate "C");
    end if;
    loop
        if k > 1 and not locks then
            -- One statement, so that the rows are of one instant: each statement
            -- of a volatile function sees what was committed before it.
            for row_ in select o.at, b.used, b.ts, b.version from unnest(limit_ids, keys) with ordinality o (limit_id, key, at)
                left join dipwell.buckets b on b.limit_id = o.limit_id and b.key = o.key loop
                used[row_.at] := coalesce(row_.used, 0);
                ts[row_.at] := coalesce(row_.ts, -9007199254740991);
                version[row_.at] := coalesce(row_.version, rs[row_.at].number);
            end loop;
            singly := '{}';
        else
            singly := sorted;
        end if;
        foreach i in array singly loop
            fresh[i] := false;
            loop
                if locks then
                    select b.used, b.ts, b.version into row_ from dipwell.buckets b
                        where b.limit_id = limit_ids[i] and b.key = keys[i] for update;
                else
                    select b.used, b.ts, b.version into row_ from dipwell.buckets b
                        where b.limit_id = limit_ids[i] and b.key = keys[i];
                end if;
                if found then
                    used[i] := row_.used;
                    ts[i] := row_.ts;
                    version[i] := row_.version;
                    exit;
                end if;
                used[i] := 0;
                ts[i] := -9007199254740991;
                version[i] := rs[i].number;
                exit when not locks;
                insert into dipwell.buckets (used, ts, limit_id, version, key)
                    values (0, coalesce(at, dipwell.now_us()), limit_ids[i], version[i], keys[i])
                    on conflict do nothing;
                fresh[i] := found;
                exit when found;
            end loop;
        end loop;
        n := coalesce(at, dipwell.now_us());
        verdict := true;
        changes := false;
        due := 0;
        answers := null;
        for i in 1..k loop
            a := dipwell.answer_one(ls[i], rs[i], keys[i], used[i], ts[i], version[i], n, verbs[i], costs[i], max_delays[i], false);
            answers[i] := a;
            verdict := verdict and a.allowed;
            changes := changes or a.write or verbs[i] = 6;
            if a.granted > 0 then
                due := greatest(due, a.delay);
            end if;
        end loop;
        exit when locks or not verdict or not changes;
        locks := true;
    end loop;
    for i in 1..k loop
        a := answers[i];
        if not verdict and (a.granted > 0 or verbs[i] >= 5) then
            a := dipwell.answer_one(ls[i], rs[i], keys[i], used[i], ts[i], version[i], n, verbs[i], costs[i], max_delays[i], true);
        end if;
        if not verdict then
            a.delay := 0; -- nothing is due, whichever verb said so
        end if;
        if verdict and verbs[i] = 6 then
            delete from dipwell.buckets b where b.limit_id = limit_ids[i] and b.key = keys[i];
            delete from dipwell.reservations x using dipwell.reservations y
                where y.limit_id = limit_ids[i] and y.key = keys[i] and x.id = y.id;
        elsif verdict and a.write then
            update dipwell.buckets b set used = a.used, ts = a.ts, version = rs[i].number
                where b.limit_id = limit_ids[i] and b.key = keys[i];
            if due > 0 and a.granted > 0 then
                insert into dipwell.reservations values
                    (reservation, limit_ids[i], keys[i], a.granted * rs[i].unit, rs[i].number, n + due);
            end if;
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
        return next;
    end loop;
end $$;

-- Gives a reservation back, once, before it is due: false when there is nothing
-- to give back. Buckets are locked before reservations, as everywhere.
create function dipwell.give_back(reservation uuid, at bigint default null) returns boolean
language plpgsql volatile set enable_seqscan = off as $$
declare
    n bigint := coalesce(at, dipwell.now_us());
    p record;
    b dipwell.buckets;
    l dipwell.limits;
    r dipwell.versions;
    c record;
    done boolean := false;
begin
    for p in select x.limit_id, x.key from dipwell.reservations x where x.id = reservation and x.due > n
        order by x.limit_id, x.key loop
        perform from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update;
        done := true;
    end loop;
    if not done then
        return false;
    end if;
    done := false;
    n := coalesce(at, dipwell.now_us());
    for p in delete from dipwell.reservations x where x.id = reservation and x.due > n
        returning x.limit_id, x.key, x.units, x.version loop
        done := true;
        select * into l from dipwell.limits x where x.id = p.limit_id;
        continue when not found;
        select * into b from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key;
        continue when not found;
        select * into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
        select * into c from dipwell.carry(l.id, l.name, p.key, l.version, b.used, b.ts, b.version);
        update dipwell.buckets x
            set used = greatest(0, dipwell.used_at(dipwell.spread(r, l.name, p.key), c.used, c.ts, greatest(n, c.ts))
                    - dipwell.carry_units(l.id, l.version, p.units, p.version)),
                ts = greatest(n, c.ts), version = l.version
            where x.limit_id = p.limit_id and x.key = p.key;
    end loop;
    return done;
end $$;

-- Gives the table some pages, which vacuum leaves (vacuum_truncate). While it has
-- none, the planner takes reading it from end to end for the cheapest way to a
-- key, and sessions keep such a plan while the table fills.
create function dipwell.make_room() returns void language plpgsql volatile as $$
begin
    insert into dipwell.buckets (used, ts, limit_id, version, key)
        select 0, 0, 0, 0, lpad(i::text, 500, '0') from generate_series(1, 200) i on conflict do nothing;
    delete from dipwell.buckets where limit_id = 0;
    if (select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = 'dipwell.buckets'::regclass) then
        analyze dipwell.buckets; -- plans are made anew
    end if;
end $$;
select dipwell.make_room();

-- The latest instant that no statement under way can still decide before. One
-- that read the clock before a row became full, and inserts after a sweep has
-- deleted it, would begin the bucket again at its own, earlier time, and the
-- refill since then would count twice. A statement is known by its lock on the
-- table; the second is for one that has begun and has not asked for it yet.
create function dipwell.settled() returns bigint language sql volatile as $$
    select least(n - 1000000, (
        -- whose statements we may not see is taken to have begun a minute ago
        select min(coalesce((date_part('epoch', s.query_start) * 1000000)::bigint, n - 60000000))
        from pg_locks k join pg_stat_activity s on s.pid = k.pid
        where k.locktype = 'relation' and k.relation = 'dipwell.buckets'::regclass and k.mode = 'RowExclusiveLock'
            and k.database = (select oid from pg_database where datname = current_database())
            and s.pid <> pg_backend_pid() and coalesce(s.state, 'active') = 'active'))
    from (select dipwell.now_us() as n) c
$$;

-- Deletes at most max_rows full rows, and reservations that are due. Rows that
-- are locked are in use and skipped; what is deleted is full as it is deleted.
create function dipwell.sweep_at(max_rows int, n bigint) returns bigint language plpgsql volatile as $$
declare
    swept bigint := 0;
begin
    if pg_relation_size('dipwell.buckets') < 16 * current_setting('block_size')::int
        and (select relkind = 'r' from pg_class where oid = 'dipwell.buckets'::regclass) then
        perform dipwell.make_room(); -- rewritten by vacuum full, or lost in a crash
    end if;
    -- Found again by their place, which cannot change while they are locked: a
    -- join by key is planned by statistics that may be of an empty table.
    delete from dipwell.buckets b where b.ctid = any (array(
        select b.ctid from dipwell.buckets b left join dipwell.limits l on l.id = b.limit_id
        where case when l.plain and l.version = b.version
            then b.used <= least(greatest((n - l.grid) / l.every - (b.ts - l.grid) / l.every, 0), l.ticks) * l.add
            else dipwell.is_full(b.limit_id, b.key, b.used, b.ts, b.version, n) end
        limit max_rows for update of b skip locked))
        and dipwell.is_full(b.limit_id, b.key, b.used, b.ts, b.version, n);
    get diagnostics swept = row_count;
    delete from dipwell.reservations where (id, limit_id, key) in
        (select id, limit_id, key from dipwell.reservations where due <= n limit max_rows for update skip locked);
    return swept;
end $$;

-- Forgets versions that no row and no reservation names any more.
create function dipwell.retire() returns bigint language plpgsql volatile as $$
declare
    gone bigint;
begin
    delete from dipwell.versions v using dipwell.limits l
    where l.id = v.limit_id and v.number < l.version
        and v.number < least(coalesce((select min(b.version) from dipwell.buckets b where b.limit_id = l.id), l.version),
                             coalesce((select min(x.version) from dipwell.reservations x where x.limit_id = l.id), l.version));
    get diagnostics gone = row_count;
    if gone > 0 then
        update dipwell.revision set n = n + 1;
    end if;
    return gone;
end $$;
insert into dipwell.migrations (version, name) values (3, 'decide');

-- 0004 define
-- Definitions. Go twins: compile.go, Registry.Define.

-- Stores a definition that is compiled already. One that counts as before keeps
-- its version; otherwise a new version begins now. A limit has one owner.
create function dipwell.put_limit(d dipwell.limits, r dipwell.versions, at bigint default null) returns int language plpgsql volatile as $$
declare
    old  dipwell.limits;
    was  dipwell.versions;
    n    bigint;
    same boolean := false;
begin
    lock table dipwell.limits in share row exclusive mode;
    n := coalesce(at, dipwell.now_us());
    select * into old from dipwell.limits x where x.name = d.name;
    if found then
        d.id := old.id;
        if old.owner <> d.owner and d.owner <> 'file' then
            raise exception using errcode = 'insufficient_privilege', constraint = 'owner', detail = old.owner,
                message = format('limit %s belongs to %s and can only be changed there', d.name, case old.owner
                    when 'code' then 'a program''s code' when 'file' then 'the configuration file'
                    when 'api' then 'the API' else 'SQL' end);
        end if;
        select * into was from dipwell.versions v where v.limit_id = old.id and v.number = old.version;
        r.limit_id := old.id;
        r.number := old.version;
        r.since := was.since;
        same := row(was.unit, was.every, was.add, was.cap, was.origin, was.burst, was.debt, was.most, was.max_charge, was.max_used,
                was.leaky, was.spread, was.per, coalesce(was.start, ''))
            = row(r.unit, r.every, r.add, r.cap, r.origin, r.burst, r.debt, r.most, r.max_charge, r.max_used,
                r.leaky, r.spread, r.per, coalesce(r.start, ''));
        if not same then
            if (select count(*) from dipwell.versions v where v.limit_id = old.id) > 1024 then
                raise exception using errcode = 'program_limit_exceeded', constraint = 'version', message = format(
                    'limit %s: version: was changed more than 1024 times while its keys were in use; wait until they fill up', d.name);
            end if;
            r.number := old.version + 1;
            r.since := greatest(n, was.since);
        end if;
    else
        r.number := 1;
        r.since := n;
    end if;
    d.version := r.number;
    d.unit := r.unit;
    d.every := r.every;
    d.add := r.add;
    d.cap := r.cap;
    d.plain := r.every > 0 and not r.leaky and not r.spread;
    d.grid := case when r.every > 0 then r.origin - r.every * (9007199254740992 / r.every + 1) else 0 end;
    d.ticks := (r.max_used + r.add - 1) / r.add;
    if d.id is null then
        insert into dipwell.limits overriding user value select d.* returning id into d.id;
        r.limit_id := d.id;
    else
        if old = d then
            return d.id;
        end if;
        update dipwell.limits x set (algorithm, rate, per, burst, max_debt, max_charge, start, on_change, mode, auth, retry_jitter,
                on_store_error, timeout_us, list_keys, owner, version, unit, every, add, cap, grid, ticks, plain)
            = (d.algorithm, d.rate, d.per, d.burst, d.max_debt, d.max_charge, d.start, d.on_change, d.mode, d.auth, d.retry_jitter,
                d.on_store_error, d.timeout_us, d.list_keys, d.owner, d.version, d.unit, d.every, d.add, d.cap, d.grid, d.ticks, d.plain)
            where x.id = d.id;
    end if;
    if not same then
        insert into dipwell.versions select r.*;
    end if;
    update dipwell.revision x set n = x.n + 1;
    notify dipwell;
    return d.id;
end $$;

-- Ends a limit. Its keys start full if the name is defined again; sweep deletes
-- their rows. Reservations that have a part in one go now, whole, as with reset.
create function dipwell.drop_limit(limit_name text, by_owner text) returns void language plpgsql volatile as $$
declare
    old dipwell.limits;
begin
    lock table dipwell.limits in share row exclusive mode;
    select * into old from dipwell.limits x where x.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', message = format('name: unknown limit "%s"', limit_name);
    end if;
    if old.owner <> by_owner then
        raise exception using errcode = 'insufficient_privilege', constraint = 'owner', detail = old.owner,
            message = format('limit %s belongs to %s and can only be changed there', limit_name, case old.owner
                when 'code' then 'a program''s code' when 'file' then 'the configuration file'
                when 'api' then 'the API' else 'SQL' end);
    end if;
    delete from dipwell.reservations x using dipwell.reservations y where y.limit_id = old.id and x.id = y.id;
    delete from dipwell.limits x where x.id = old.id;
    update dipwell.revision x set n = x.n + 1;
    notify dipwell;
end $$;

create function dipwell.bad_limit(limit_name text, field text, reason text) returns void language plpgsql as $$
begin
    raise exception using errcode = 'invalid_parameter_value', constraint = field,
        message = case when limit_name is null then '' else 'limit ' || limit_name || ': ' end || field || ': ' || reason;
end $$;

-- The largest number of units that can be counted exactly and comes back within 2^53-1 µs.
create function dipwell.most_units(every bigint, add bigint) returns bigint language sql immutable as
$$ select case when 9007199254740991 / every - 1 < 1 then 0
    else dipwell.mul_div(9007199254740991 / every - 1, add, 1, false) end $$;

-- A period in µs, or -months, as Limit.Period has it.
create function dipwell.format_per(period bigint) returns text language sql immutable as
$$ select case
    when period < 0 and period % 12 = 0 then (-period / 12) || 'y'
    when period < 0 then -period || 'mo'
    when period % 604800000000 = 0 then (period / 604800000000) || 'w'
    when period % 86400000000 = 0 then (period / 86400000000) || 'd'
    when period % 3600000000 = 0 then (period / 3600000000) || 'h'
    when period % 60000000 = 0 then (period / 60000000) || 'm'
    when period % 1000000 = 0 then (period / 1000000) || 's'
    when period % 1000 = 0 then (period / 1000) || 'ms'
    else period || 'us' end $$;

-- A sum of whole numbers with units, such as 1d12h or 0s, in µs; null when it is none.
create function dipwell.parse_offset(s text) returns bigint language plpgsql immutable as $$
declare
    part text[];
    sum  numeric := 0;
begin
    if s !~ '^([0-9]+(w|d|h|ms|us|µs|m|s))+$' then
        return null;
    end if;
    for part in select regexp_matches(s, '([0-9]+)(w|d|h|ms|us|µs|m|s)', 'g') loop
        sum := sum + part[1]::numeric * case part[2] when 'w' then 604800000000 when 'd' then 86400000000
            when 'h' then 3600000000 when 'm' then 60000000 when 's' then 1000000 when 'ms' then 1000 else 1 end;
    end loop;
    if sum > 9223372036854775 then -- 292 years, as in Go
        return null;
    end if;
    return sum::bigint;
end $$;

-- An interval in µs, or -months. A month and a day in one are refused.
create function dipwell.period_of(per interval) returns bigint language plpgsql immutable as $$
declare
    months bigint := date_part('year', per)::bigint * 12 + date_part('month', per)::bigint;
    rest   interval := per - months * interval '1 month';
    us     numeric := date_part('day', rest)::numeric * 86400000000 + date_part('hour', rest)::numeric * 3600000000
        + date_part('minute', rest)::numeric * 60000000 + date_part('microseconds', rest)::numeric;
begin
    if months <> 0 and us <> 0 or abs(us) > 9223372036854775 or months > 1200 or months < 0 or us < 0 or per is null then
        return 0;
    end if;
    return case when months > 0 then -months else us::bigint end;
end $$;

-- Checks a definition and turns it into whole numbers. Go twin: Limit.Compile.
create function dipwell.compile(d dipwell.limits, period bigint) returns dipwell.versions language plpgsql stable as $$
declare
    m        constant bigint := 9007199254740991;
    windowed boolean := d.algorithm in ('fixed_window', 'interval');
    r        dipwell.versions;
    burst    bigint;
    debt     bigint;
    charge   bigint;
    want_debt   bigint;
    want_charge bigint;
    per      text := dipwell.format_per(period);
    need     bigint;
    tick     bigint;
    most     bigint;
    room     bigint := 0;
    longest  bigint;
    offset_  bigint;
    wall     text[];
begin
    if d.name is null or d.name = '' then
        perform dipwell.bad_limit(null, 'name', 'is missing');
    elsif octet_length(d.name) > 128 then
        perform dipwell.bad_limit(null, 'name', format('has %s bytes; at most 128', octet_length(d.name)));
    elsif d.name ~ '[^ -~]' or d.name ~ '^ | $' then
        perform dipwell.bad_limit(null, 'name', format('"%s" is not printable ASCII without spaces at its ends', d.name));
    elsif d.algorithm is null or d.algorithm not in ('token_bucket', 'fixed_window', 'interval', 'leaky_bucket') then
        perform dipwell.bad_limit(d.name, 'algorithm', 'unknown; it is one of token_bucket, fixed_window, interval, leaky_bucket');
    elsif d.rate is null or d.rate < 1 or d.rate > m then
        perform dipwell.bad_limit(d.name, 'rate', format('%s is not between 1 and 2^53-1', coalesce(d.rate::text, 'null')));
    elsif period < 0 and not windowed then
        perform dipwell.bad_limit(d.name, 'per', 'months and years are for windows and intervals; a bucket needs a fixed length such as 30d');
    elsif period = 0 or period < -1200 then
        perform dipwell.bad_limit(d.name, 'per', 'is not a length of time');
    elsif d.burst < 0 or d.burst > m then
        perform dipwell.bad_limit(d.name, 'burst', format('%s is not between 0 and 2^53-1', d.burst));
    elsif d.max_debt < -1 or d.max_debt > m then
        perform dipwell.bad_limit(d.name, 'max_debt', format('%s is not between 0 and 2^53-1, or unlimited (-1)', d.max_debt));
    elsif d.max_charge < 1 or d.max_charge > m then
        perform dipwell.bad_limit(d.name, 'max_charge', format('%s is not between 1 and 2^53-1', d.max_charge));
    elsif d.start <> '' and not windowed then
        perform dipwell.bad_limit(d.name, 'start', 'is for windows and intervals; a bucket refills all the time');
    elsif d.algorithm = 'leaky_bucket' and d.burst <> 1 then
        perform dipwell.bad_limit(d.name, 'burst', 'a leaky bucket lets out one at a time; its queue is max_debt');
    elsif d.on_change is null or d.on_change not in ('keep', 'proportional', 'reset') then
        perform dipwell.bad_limit(d.name, 'on_change', 'unknown; it is one of keep, proportional, reset');
    elsif d.mode is null or d.mode not in ('enforce', 'shadow') then
        perform dipwell.bad_limit(d.name, 'mode', 'unknown; it is one of enforce, shadow');
    end if;

    burst := case when d.algorithm = 'leaky_bucket' then 1 else coalesce(d.burst, d.rate) end;
    debt := case when d.max_debt is null then burst when d.max_debt = -1 then 0 else d.max_debt end;
    if burst = 0 and debt = 0 and d.max_debt is distinct from -1 then
        perform dipwell.bad_limit(d.name, 'burst', '0 grants nothing unless max_debt lets work be scheduled ahead');
    end if;
    charge := coalesce(d.max_charge, dipwell.mul_div(10, greatest(burst, 1), 1, false));
    want_debt := case when d.max_debt is null then 0 else debt end;
    want_charge := coalesce(d.max_charge, 0);

    r.policy := d.on_change;
    r.leaky := d.algorithm = 'leaky_bucket';
    r.spread := false;
    r.origin := 0;
    r.months := 0;
    r.days := 0;
    r.clock := 0;
    r.zone := '';
    r.per := per;
    r.start := d.start;
    if not windowed then
        -- The finest tick at which everything fits; defaults that fit at none are lowered.
        <<found>>
        foreach need in array array[burst + debt + charge, burst + debt + want_charge, burst + want_debt + want_charge] loop
            foreach tick in array array[1, 1000, 1000000, 60000000]::bigint[] loop
                continue when period % tick <> 0;
                r.every := tick;
                r.unit := period / tick / gcd(d.rate, period / tick);
                r.add := d.rate / gcd(d.rate, period / tick);
                most := dipwell.most_units(tick, r.add);
                exit found when most / r.unit >= need;
                most := null;
            end loop;
        end loop;
        if most is null then
            foreach tick in array array[1, 1000, 1000000, 60000000]::bigint[] loop
                continue when period % tick <> 0;
                room := greatest(room, dipwell.most_units(tick, d.rate / gcd(d.rate, period / tick))
                    / (period / tick / gcd(d.rate, period / tick)) - want_debt - want_charge);
            end loop;
            if room < 1 then
                perform dipwell.bad_limit(d.name, 'rate', format('%s per %s is too slow, or max_debt and max_charge too large, to count exactly with any burst', d.rate, per));
            end if;
            perform dipwell.bad_limit(d.name, 'burst', format('%s at %s per %s is too large to count exactly; at most %s', burst, d.rate, per, room));
        end if;
    else
        r.unit := 1;
        r.add := d.rate;
        r.every := greatest(period, 0);
        if period < 0 then
            r.months := -period;
            r.zone := 'UTC';
        end if;
        if coalesce(d.start, '') = '' then
            r.spread := true;
        else
            offset_ := dipwell.parse_offset(d.start);
            if offset_ is not null then
                if offset_ >= (case when period > 0 then period
                        when r.months % 12 = 0 then r.months / 12 * 365 * 86400000000
                        else r.months * 28 * 86400000000 end) then
                    perform dipwell.bad_limit(d.name, 'start', format('%s is not shorter than the period', d.start));
                end if;
                r.origin := offset_;
            else
                if position(' ' in d.start) = 0 then
                    perform dipwell.bad_limit(d.name, 'start', format('"%s" is neither an offset such as 0s nor a wall clock with a zone such as ''06:00 Europe/Rome''', d.start));
                end if;
                wall := regexp_match(d.start, '^([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? +([^ ].*?) *$');
                if wall is null or wall[1]::int > 23 or wall[2]::int > 59 or coalesce(wall[3], '0')::int > 59 then
                    perform dipwell.bad_limit(d.name, 'start', format('"%s" is not a time of day such as 06:00', split_part(d.start, ' ', 1)));
                end if;
                if wall[4] <> 'UTC' and not exists (select from pg_timezone_names z where z.name = wall[4]) then
                    perform dipwell.bad_limit(d.name, 'start', format('"%s" is not an IANA time zone such as Europe/Rome', wall[4]));
                end if;
                if period > 0 then
                    if period = 86400000000 then
                        r.days := 1;
                    elsif period = 604800000000 then
                        r.days := 7;
                    else
                        perform dipwell.bad_limit(d.name, 'start', format('a wall clock needs per to be 1d, 1w, 1mo or 1y, not %s', per));
                    end if;
                end if;
                r.every := 0;
                r.zone := wall[4];
                r.clock := wall[1]::bigint * 3600 + wall[2]::bigint * 60 + coalesce(wall[3], '0')::bigint;
            end if;
        end if;
        longest := case when r.every > 0 then r.every when r.months > 0 then (r.months * 31 + 1) * 86400000000
            else r.days * 86400000000 + 86400000000 end;
        most := dipwell.most_units(longest, r.add);
        if most < burst + want_debt + want_charge then
            perform dipwell.bad_limit(d.name, 'burst', format('%s at %s per %s is too large to count exactly; at most %s', burst, d.rate, per, greatest(0, most - want_debt - want_charge)));
        end if;
    end if;

    room := most / r.unit - burst;
    if d.max_debt is null then
        debt := least(debt, room - want_charge);
    end if;
    if d.max_charge is null then
        charge := greatest(1, least(charge, room - debt));
    end if;
    r.burst := burst;
    r.max_charge := charge;
    r.max_used := most;
    r.cap := burst * r.unit;
    r.debt := case when d.max_debt = -1 then most - r.cap else debt * r.unit end;
    r.most := (r.cap + r.debt) / r.unit;
    return r;
end $$;
insert into dipwell.migrations (version, name) values (4, 'define');

-- 0005 api
-- What people call. Everything here runs as its owner with a fixed search_path,
-- and in the caller's transaction: a rollback gives the tokens back.
-- enable_seqscan: a plan made while the table is empty would read it from end to
-- end, and be kept while a long transaction fills it.

create function dipwell.check_key(key text, field text) returns text language plpgsql immutable as $$
begin
    if key = '' then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = field || ': is empty; leave it out (null) for the limit''s one shared bucket';
    elsif octet_length(key) > 512 then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: has %s bytes; at most 512', field, octet_length(key));
    end if;
    return coalesce(key, '');
end $$;

create function dipwell.check_cost(cost bigint, field text) returns bigint language plpgsql immutable as $$
begin
    if cost is null or cost < 0 or cost > 9007199254740991 then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: %s is not between 0 and 2^53-1', field, coalesce(cost::text, 'null'));
    end if;
    return cost;
end $$;

create function dipwell.limit_id(limit_name text, field text) returns int language plpgsql stable as $$
declare
    id int;
begin
    select l.id into id from dipwell.limits l where l.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', constraint = field,
            message = format('%s: unknown limit "%s"', field, limit_name);
    end if;
    return id;
end $$;

-- What a call of one key answers. A type of its own, because PostgreSQL makes the
-- description of a row of OUT parameters anew in each call.
create type dipwell.decision as (
    allowed     boolean,
    remaining   bigint,
    retry_after interval,
    reset_after interval,
    granted     bigint,
    delay       interval,
    never       boolean,
    reservation uuid
);

-- Any verb of one key; the functions below are its spellings.
create function dipwell.ask(verb int, limit_name text, key text, cost bigint) returns dipwell.decision language plpgsql volatile as $$
declare
    a   record;
    d   dipwell.decision;
    lim int;
    top bigint;
begin
    perform dipwell.check_cost(cost, 'cost');
    key := dipwell.check_key(key, 'key');
    lim := dipwell.limit_id(limit_name, 'limit_name');
    if verb = 4 then
        select v.max_charge into top from dipwell.limits l join dipwell.versions v on v.limit_id = l.id and v.number = l.version where l.id = lim;
        if cost > top then
            raise exception using errcode = 'invalid_parameter_value', constraint = 'cost',
                message = format('cost: %s is more than limit %s lets a charge be, %s', cost, limit_name, top);
        end if;
    end if;
    d.reservation := gen_random_uuid();
    select * into a from dipwell.decide(array[lim], array[key], array[verb], array[cost], array[null::bigint], d.reservation);
    d.allowed := a.allowed;
    d.remaining := a.remaining;
    if not a.never and (a.shadow or not a.allowed) then
        d.retry_after := dipwell.length(a.retry);
    end if;
    d.reset_after := dipwell.length(a.reset);
    d.granted := a.granted;
    d.delay := dipwell.length(a.delay);
    d.never := a.never;
    if a.granted = 0 or a.delay = 0 then
        d.reservation := null;
    end if;
    return d;
end $$;

-- Takes cost tokens if all of them are there. The common case is one UPDATE of
-- one row, with as few expressions as will do, for starting each of them costs
-- more than the row, and with its answer whole: a bucket counted in µs first,
-- where nothing can overflow (two instants are less than 2^54 µs apart), then
-- other even ticks. The two parts of reset_after are each below 2^53, as an exact
-- product with an interval needs; their sum may not be. A refusal, a first call,
-- a change of the limit, a calendar and bad input fall through to ask.
create function dipwell.take(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n bigint := dipwell.now_us();
    d dipwell.decision;
begin
    update dipwell.buckets b
    set used = greatest(b.used - greatest(n - b.ts, 0) * l.add, 0) + take.cost * l.unit, ts = greatest(n, b.ts)
    from dipwell.limits l
    where l.name = limit_name and l.plain and l.every = 1 and l.add <= 256 and take.cost between 1 and l.cap / l.unit
        and b.limit_id = l.id and b.key = coalesce(take.key, '') and take.key is distinct from '' and b.version = l.version
        and b.used - greatest(n - b.ts, 0) * l.add <= l.cap - take.cost * l.unit
    returning true, (l.cap - b.used) / l.unit, null::interval,
        (b.ts - n) * interval '1 microsecond' + ((b.used + l.add - 1) / l.add) * interval '1 microsecond',
        take.cost, interval '0', false, null::uuid
    into d;
    if found then
        return d;
    end if;
    update dipwell.buckets b
    set used = greatest(b.used - least((greatest(n, b.ts) - l.grid) / l.every - (b.ts - l.grid) / l.every, l.ticks) * l.add, 0)
            + take.cost * l.unit,
        ts = greatest(n, b.ts)
    from dipwell.limits l
    where l.name = limit_name and l.plain and (l.every > 1 or l.add > 256) and take.cost between 1 and l.cap / l.unit
        and b.limit_id = l.id and b.key = coalesce(take.key, '') and take.key is distinct from '' and b.version = l.version
        and b.used - least((greatest(n, b.ts) - l.grid) / l.every - (b.ts - l.grid) / l.every, l.ticks) * l.add
            <= l.cap - take.cost * l.unit
    returning true, (l.cap - b.used) / l.unit, null::interval,
        ((b.ts - l.grid) / l.every * l.every + l.grid - n) * interval '1 microsecond'
            + ((b.used + l.add - 1) / l.add * l.every) * interval '1 microsecond',
        take.cost, interval '0', false, null::uuid
    into d;
    if found then
        return d;
    end if;
    return dipwell.ask(0, limit_name, key, cost);
end $$;

-- Answers as take would, and changes nothing.
create function dipwell.check(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell.ask(1, limit_name, key, cost);
end $$;

-- Takes as many whole tokens as there are, up to cost, and at least one.
create function dipwell.take_up_to(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell.ask(2, limit_name, key, cost);
end $$;

-- Takes tokens ahead of time, into debt as far as max_debt: act after delay.
create function dipwell.reserve(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell.ask(3, limit_name, key, cost);
end $$;

-- Takes tokens whatever is left: settles a cost known only afterwards.
create function dipwell.charge(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell.ask(4, limit_name, key, cost);
end $$;

-- Gives tokens back, up to a full bucket.
create function dipwell.refund(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell.ask(5, limit_name, key, cost);
end $$;

-- Makes a bucket full and forgets its reservations; cost is of no account.
create function dipwell.reset(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell.ask(6, limit_name, key, 0);
end $$;

-- Takes all costs at one instant, or none of them: a row a limit, in the order
-- asked. A limit and key that are named twice add up. costs: 1 each by default.
create function dipwell.take_all(limit_names text[], keys text[], costs bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    k    int := cardinality(limit_names);
    ids  int[] := '{}';
    ks   text[] := '{}';
    cs   bigint[] := '{}';
    op   int[] := '{}';
    id   int;
    j    int;
    rid  uuid := gen_random_uuid();
    as_  dipwell.answer[] := '{}';
    a    dipwell.answer;
    row_ record;
    verdict boolean := true;
    due  boolean := false;
begin
    if k is null or k < 1 or k > 16 or array_ndims(limit_names) <> 1 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'limit_names',
            message = format('limit_names: has %s entries; from 1 to 16', coalesce(k, 0));
    elsif cardinality(keys) is distinct from k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'keys',
            message = format('keys: has %s entries; %s, as limit_names has', coalesce(cardinality(keys), 0), k);
    elsif cardinality(costs) <> k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'costs',
            message = format('costs: has %s entries; %s, as limit_names has', cardinality(costs), k);
    end if;
    costs := coalesce(costs, array_fill(1::bigint, array[k]));
    for i in 1..k loop
        perform dipwell.check_cost(costs[i], format('costs[%s]', i));
        id := dipwell.limit_id(limit_names[i], format('limit_names[%s]', i));
        op[i] := null;
        for j in 1..cardinality(ids) loop
            if ids[j] = id and ks[j] = coalesce(keys[i], '') then
                op[i] := j;
                cs[j] := dipwell.check_cost(cs[j] + costs[i], 'costs');
            end if;
        end loop;
        if op[i] is null then
            ids := ids || id;
            ks := ks || dipwell.check_key(keys[i], format('keys[%s]', i));
            cs := cs || costs[i];
            op[i] := cardinality(ids);
        end if;
    end loop;
    for row_ in select * from dipwell.decide(ids, ks, array_fill(0, array[cardinality(ids)]), cs,
            array_fill(null::bigint, array[cardinality(ids)]), rid) loop
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
    for i in 1..k loop
        a := as_[op[i]];
        limit_name := limit_names[i];
        key := keys[i];
        allowed := a.allowed;
        remaining := a.remaining;
        retry_after := case when not a.never and (a.shadow or not a.allowed) then dipwell.length(a.retry) end;
        reset_after := dipwell.length(a.reset);
        granted := case when a.granted > 0 then costs[i] else 0 end;
        delay := dipwell.length(a.delay);
        never := a.never;
        reservation := case when verdict and due then rid end;
        return next;
    end loop;
end $$;

-- Gives a reservation's tokens back, once, before it is due.
create function dipwell.cancel(reservation uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    if dipwell.give_back(reservation) is not true then
        raise exception using errcode = 'no_data_found', constraint = 'reservation',
            message = 'reservation: is unknown, spent, due or reset';
    end if;
end $$;

-- Adds a limit or changes it while it is in use. null is the default, 0 is 0; a
-- max_debt of -1 is unlimited. per may be months or years for windows and intervals.
create function dipwell.define(name text, rate bigint, per interval, burst bigint default null, algorithm text default null,
    max_debt bigint default null, start text default null, on_change text default null, mode text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    d dipwell.limits;
    period bigint := dipwell.period_of(per);
    r dipwell.versions;
begin
    d.name := name;
    d.algorithm := coalesce(algorithm, 'token_bucket');
    d.rate := rate;
    d.burst := burst;
    d.max_debt := max_debt;
    d.start := nullif(start, '');
    d.on_change := coalesce(on_change, 'keep');
    d.mode := coalesce(mode, 'enforce');
    d.auth := false;
    d.retry_jitter := 0;
    d.on_store_error := 'closed';
    d.timeout_us := 0;
    d.list_keys := false;
    d.owner := 'sql';
    d.per := dipwell.format_per(nullif(period, 0));
    r := dipwell.compile(d, period);
    perform dipwell.put_limit(d, r);
end $$;

-- Ends a limit that SQL defined.
create function dipwell.drop(name text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform dipwell.drop_limit(name, 'sql');
end $$;

-- Deletes at most max_rows full rows and says how many. Call it again while it
-- returns max_rows, each time in a transaction of its own.
create function dipwell.sweep(max_rows int default 10000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if max_rows is null or max_rows < 1 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'max_rows',
            message = format('max_rows: %s is not at least 1', coalesce(max_rows::text, 'null'));
    end if;
    return dipwell.sweep_at(max_rows, dipwell.settled());
end $$;

-- A bucket in tokens, now.
create function dipwell.level(limit_id int, key text, used bigint, ts bigint, version int, n bigint,
    out remaining bigint, out full_at timestamptz) language plpgsql stable as $$
declare
    l dipwell.limits;
    r dipwell.versions;
    c record;
    held bigint;
begin
    select * into l from dipwell.limits x where x.id = level.limit_id;
    select * into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
    r := dipwell.spread(r, l.name, key);
    select * into c from dipwell.carry(l.id, l.name, key, l.version, used, ts, version);
    held := dipwell.used_at(r, c.used, c.ts, greatest(n, c.ts));
    remaining := greatest(0, (r.cap - held) / r.unit);
    full_at := timestamptz 'epoch' + n * interval '1 microsecond'
        + dipwell.length(case held when 0 then 0 else dipwell.wait(r, held, greatest(n, c.ts), n) end);
end $$;

create view dipwell.status as
    select l.name as limit_name, nullif(b.key, '') as key, l.cap / l.unit as capacity, s.remaining, s.full_at
    from dipwell.buckets b
    join dipwell.limits l on l.id = b.limit_id
    cross join lateral dipwell.level(b.limit_id, b.key, b.used, b.ts, b.version, dipwell.now_us()) s;

-- Roles: dipwell_app asks, dipwell_admin does the rest. Where they are missing
-- and may not be created, grant by hand.
do $$
declare
    f record;
    app constant text[] := array['take', 'check', 'take_up_to', 'reserve', 'take_all', 'cancel'];
    who text;
begin
    foreach who in array array['dipwell_app', 'dipwell_admin'] loop
        begin
            if not exists (select from pg_roles where rolname = who) then
                execute format('create role %I', who);
            end if;
        exception
            when insufficient_privilege then
                raise notice 'the role % is missing and may not be created here; grant by hand', who;
            when duplicate_object or unique_violation then
                null; -- another database of this server was faster
        end;
    end loop;
    execute 'revoke all on all functions in schema dipwell from public';
    for f in select p.oid::regprocedure as signature, p.proname from pg_proc p where p.pronamespace = 'dipwell'::regnamespace loop
        if f.proname = any (app) and exists (select from pg_roles where rolname = 'dipwell_app') then
            execute format('grant execute on function %s to dipwell_app', f.signature);
        end if;
        if exists (select from pg_roles where rolname = 'dipwell_admin') then
            execute format('grant execute on function %s to dipwell_admin', f.signature);
        end if;
    end loop;
    if exists (select from pg_roles where rolname = 'dipwell_app') then
        grant usage on schema dipwell to dipwell_app;
    end if;
    if exists (select from pg_roles where rolname = 'dipwell_admin') then
        grant usage on schema dipwell to dipwell_admin;
        grant select, insert, update, delete on all tables in schema dipwell to dipwell_admin;
        revoke insert, update, delete on dipwell.migrations, dipwell.status from dipwell_admin;
    end if;
end $$;

-- Sweeps each minute where pg_cron is installed.
do $$
begin
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute $cron$ select cron.schedule('dipwell-sweep', '* * * * *', 'select dipwell.sweep(10000)') $cron$;
    end if;
exception when others then
    raise notice 'pg_cron is installed but the sweep could not be scheduled: %', sqlerrm;
end $$;
insert into dipwell.migrations (version, name) values (5, 'api');
