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

-- 0006 giving_back
-- What a cancellation may give back. Reservations of before are of no list, so
-- that nothing is given back of them.
alter table dipwell.buckets add column lows bigint[];
alter table dipwell.reservations
    add column number   bigint not null default 0,
    add column mark     bigint not null default 0,
    add column slack    bigint,
    add column rest     boolean not null default false,
    add column part_due bigint not null default 0,
    add column parts    int not null default 1;
update dipwell.reservations x set part_due = due, parts = (select count(*) from dipwell.reservations y where y.id = x.id);
alter table dipwell.reservations
    alter column number drop default,
    alter column mark drop default,
    alter column rest drop default,
    alter column part_due drop default,
    alter column parts drop default;
insert into dipwell.migrations (version, name) values (6, 'giving_back');

-- 0007 sweep_state
-- Where the sweep of buckets goes on, and what sweeps did. It has one row, which
-- a sweep locks, so that one at a time goes over the table.
create table dipwell.sweep_state (
    page        bigint not null,           -- of buckets: where the next sweep goes on
    began       bigint not null,           -- µs since the Unix epoch: the pass under way; 0: none
    found       bigint not null,           -- rows deleted by the pass under way
    passed      bigint not null,           -- µs: when the last whole pass ended; 0: none did
    took        bigint not null,           -- µs: how long the last whole pass took, rests included
    pass_swept  bigint not null,           -- rows that it deleted
    passes      bigint not null,           -- whole passes
    swept       bigint not null,           -- rows deleted by all sweeps
    spent       bigint not null            -- µs that all sweeps worked
);
insert into dipwell.sweep_state values (0, 0, 0, 0, 0, 0, 0, 0, 0);
insert into dipwell.migrations (version, name) values (7, 'sweep_state');

-- The files of this directory are run by every migration, after its changes of the
-- tables: this one drops all functions, views and types of any version, and the
-- others create those of the current version. Schema dipwell has what users need,
-- dipwell_internal the rest.
create schema if not exists dipwell_internal;

-- Current grants on our functions, for 5_roles.sql to restore.
create temporary table dipwell_grants as
    select distinct p.proname as name, a.grantee
    from pg_proc p, aclexplode(p.proacl) a
    where p.pronamespace in ('dipwell'::regnamespace, 'dipwell_internal'::regnamespace) and a.grantee not in (0, p.proowner);

do $$
declare
    ours constant regnamespace[] := array['dipwell', 'dipwell_internal']::regnamespace[];
    x record;
begin
    for x in select c.oid::regclass as name from pg_class c where c.relnamespace = any (ours) and c.relkind = 'v' loop
        execute format('drop view %s', x.name);
    end loop;
    for x in select p.oid::regprocedure as name from pg_proc p where p.pronamespace = any (ours) loop
        execute format('drop function %s', x.name);
    end loop;
    for x in select c.oid::regclass as name from pg_class c where c.relnamespace = any (ours) and c.relkind = 'c' loop
        execute format('drop type %s', x.name);
    end loop;
end $$;
-- Code generated by internal/gen from templates/schema/repeatable/1_rule.sql; DO NOT EDIT.
-- The algebra: step.go. The Go twin for calendars is calendar.go.

create function dipwell_internal.now_us() returns bigint language sql volatile as
$$ select (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;
comment on function dipwell_internal.now_us is
    'The server''s clock, in µs since the Unix epoch. A function in the language SQL, so that the planner inlines it.';

create function dipwell_internal.floor_div(a bigint, b bigint) returns bigint language sql immutable as
$$ select case when a >= 0 then a / b else -((b - 1 - a) / b) end $$;
comment on function dipwell_internal.floor_div is
    'a / b, rounded down also where a is negative.';

create function dipwell_internal.mul_div(a bigint, b bigint, c bigint, up boolean) returns bigint language sql immutable as
$$ select least(case when up then div(a::numeric * b + c - 1, c) else div(a::numeric * b, c) end, 9007199254740991)::bigint $$;
comment on function dipwell_internal.mul_div is
    'a × b / c, rounded up or down; at most 2^53-1.';

create function dipwell_internal.length(x bigint) returns interval language sql immutable as
$$ select x / 1048576 * interval '1048576 microseconds' + x % 1048576 * interval '1 microsecond' $$;
comment on function dipwell_internal.length is
    'An interval of exactly x µs. interval × number is computed in float8, which holds every integer up to 2^53 and every multiple of 2^20 that a bigint can be.';

-- These two are expressions for a limit with ticks of equal length. They are
-- functions in the language SQL so that the planner inlines them, which it does if
-- every argument used twice is a plain variable.
create function dipwell_internal.plain_used(used bigint, ts bigint, n bigint, every bigint, add bigint, grid bigint, ticks bigint)
returns bigint language sql immutable as
$$ select greatest(used - least((greatest(n, ts) - grid) / every - (ts - grid) / every, ticks) * add, 0) $$;
comment on function dipwell_internal.plain_used is
    'The units used at n of a row (used, ts). grid and ticks as in dipwell.limits. Go twin: Rule.usedAt.';

create function dipwell_internal.plain_wait(units bigint, t bigint, n bigint, every bigint, add bigint, grid bigint)
returns interval language sql immutable as
$$ select ((t - grid) / every * every + grid - n) * interval '1 microsecond' + ((units + add - 1) / add * every) * interval '1 microsecond' $$;
comment on function dipwell_internal.plain_wait is
    'The time from n to the tick at which units will have come back, for a row that was stepped to t. Both parts are below 2^53 µs, as an exact product with an interval needs; their sum may not be. Go twin: Rule.wait.';

create function dipwell_internal.zone_offset(zone text, x bigint) returns bigint language sql stable as
$$ select date_part('epoch', (timestamptz 'epoch' + x * interval '1 second') at time zone
    case zone when 'CET' then 'Europe/Brussels' when 'MET' then 'Europe/Brussels'
        when 'EET' then 'Europe/Athens' when 'WET' then 'Europe/Lisbon' else zone end)::bigint - x $$;
comment on function dipwell_internal.zone_offset is
    'Seconds by which the wall clock of a zone is ahead of UTC at x, in Unix seconds. CET, MET, EET and WET are also abbreviations, which AT TIME ZONE prefers and which have no summer time, so they are replaced by a city with the same clock.';

create function dipwell_internal.first_at(zone text, wall bigint) returns bigint language plpgsql stable as $$
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
    before := dipwell_internal.zone_offset(zone, wall - 93600);
    high := wall - before;
    if dipwell_internal.zone_offset(zone, high) = before then
        return high;
    end if;
    -- The clock changed before it could show wall.
    after := dipwell_internal.zone_offset(zone, high);
    low := wall - after;
    if dipwell_internal.zone_offset(zone, low) = after then
        return low;
    end if;
    while high - low > 1 loop -- wall is in a gap: find its end
        middle := low + (high - low) / 2;
        if dipwell_internal.zone_offset(zone, middle) = after then
            high := middle;
        else
            low := middle;
        end if;
    end loop;
    return high;
end $$;
comment on function dipwell_internal.first_at is
    'The first Unix second at which the wall clock of a zone shows wall (seconds, as if the wall clock were UTC) or later. AT TIME ZONE would return the later of two such instants, and one after a gap. Go twin: firstAtOrAfter.';

create function dipwell_internal.calendar_boundary(r dipwell.versions, k bigint) returns bigint language plpgsql stable as $$
begin
    if r.months > 0 then
        return dipwell_internal.first_at(r.zone, r.clock
            + date_part('epoch', timestamp 'epoch' + k * r.months * interval '1 month')::bigint) * 1000000;
    end if;
    return dipwell_internal.first_at(r.zone, r.clock
        + (k * r.days + case r.days when 7 then 4 else 0 end) * 86400) * 1000000; -- weeks start on Monday
end $$;
comment on function dipwell_internal.calendar_boundary is
    'The instant, in µs, at which unit k of a calendar begins.';

create function dipwell_internal.tick(r dipwell.versions, x bigint) returns bigint language plpgsql stable as $$
declare
    y  bigint := x - r.origin;
    at timestamp;
    k  bigint;
begin
    if r.every > 0 then
        return case when r.every = 1 then x else dipwell_internal.floor_div(x - r.origin, r.every) end;
    end if;
    at := timestamp 'epoch' + (y + dipwell_internal.zone_offset(r.zone, dipwell_internal.floor_div(y, 1000000)) * 1000000) * interval '1 microsecond';
    if r.months > 0 then
        k := dipwell_internal.floor_div(((date_part('year', at) - 1970) * 12 + date_part('month', at) - 1)::bigint, r.months);
    else
        k := dipwell_internal.floor_div((at::date - date '1970-01-01') - case r.days when 7 then 4 else 0 end, r.days);
    end if;
    while dipwell_internal.calendar_boundary(r, k) > y loop
        k := k - 1;
    end loop;
    while dipwell_internal.calendar_boundary(r, k + 1) <= y loop
        k := k + 1;
    end loop;
    return k;
end $$;
comment on function dipwell_internal.tick is
    'The number of the last tick at or before x.';

create function dipwell_internal.wait(r dipwell.versions, units bigint, t bigint, n bigint) returns bigint language plpgsql stable as $$
begin
    if r.every > 0 then
        return case when r.every = 1 then t - n + (units + r.add - 1) / r.add else dipwell_internal.floor_div(t - r.origin, r.every) * r.every + r.origin - n + (units + r.add - 1) / r.add * r.every end;
    end if;
    return dipwell_internal.calendar_boundary(r, dipwell_internal.tick(r, t) + (units + r.add - 1) / r.add) + r.origin - n;
end $$;
comment on function dipwell_internal.wait is
    'The time in µs from n to the tick at which units will have come back, for a row that was stepped to t.';

create function dipwell_internal.used_at(r dipwell.versions, used bigint, ts bigint, t bigint) returns bigint language plpgsql stable as $$
begin
    if used = 0 or t = ts then
        return used;
    elsif r.every > 0 then
        return greatest(used - least(case when r.every = 1 then greatest(t - ts, 0) else dipwell_internal.floor_div(greatest(t, ts) - r.origin, r.every) - dipwell_internal.floor_div(ts - r.origin, r.every) end, (r.max_used + r.add - 1) / r.add) * r.add, 0);
    end if;
    return greatest(used - least(dipwell_internal.tick(r, t) - dipwell_internal.tick(r, ts), (r.max_used + r.add - 1) / r.add) * r.add, 0);
end $$;
comment on function dipwell_internal.used_at is
    'The units used at t, which is not before ts.';

create function dipwell_internal.shortest(r dipwell.versions) returns bigint language sql immutable as
$$ select case when r.every > 0 then r.every
    when r.months = 0 then r.days * 86400000000 - 7200000000
    when r.months % 12 = 0 then r.months / 12 * 365 * 86400000000
    else r.months * 28 * 86400000000 end $$;
comment on function dipwell_internal.shortest is
    'The length of the shortest window in µs. No zone moves its clocks by more than two hours. Go twin: Rule.shortest.';

create function dipwell_internal.spread(r dipwell.versions, name text, key text) returns dipwell.versions language plpgsql stable as $$
begin
    if r.spread then
        r.origin := ('x' || substr(encode(sha256(int4send(octet_length(convert_to(name, 'UTF8')))
                || convert_to(name, 'UTF8') || convert_to(key, 'UTF8')), 'hex'), 1, 12))::bit(48)::bigint % dipwell_internal.shortest(r);
    end if;
    return r;
end $$;
comment on function dipwell_internal.spread is
    'The rule with the origin of a key: the first 48 bits of SHA-256(uint32be(length of name) ‖ name ‖ key), modulo the period. Rules without spread are returned as they are.';

create function dipwell_internal.convert_used(used bigint, was dipwell.versions, r dipwell.versions, up boolean) returns bigint language plpgsql stable as $$
begin
    return case when used = 0 or (r.policy = 'reset') then 0 when (r.policy = 'proportional') and was.cap > 0 then least(dipwell_internal.mul_div(used, r.cap, was.cap, up), r.max_used) else least(dipwell_internal.mul_div(used, r.unit, was.unit, up), r.max_used) end;
end $$;
comment on function dipwell_internal.convert_used is
    'Converts units used under one version into units of the next, by the policy of the next.';

create function dipwell_internal.convert_back(units bigint, was dipwell.versions, r dipwell.versions) returns bigint language plpgsql stable as $$
begin
    return least(case when units = 0 then 0 else least(dipwell_internal.mul_div(units, r.unit, was.unit, false), r.max_used) end, case when units = 0 or (r.policy = 'reset') then 0 when (r.policy = 'proportional') and was.cap > 0 then least(dipwell_internal.mul_div(units, r.cap, was.cap, false), r.max_used) else least(dipwell_internal.mul_div(units, r.unit, was.unit, false), r.max_used) end);
end $$;
comment on function dipwell_internal.convert_back is
    'Converts units that can be given back under one version into units of the next, rounded down: the same number of tokens, or what the policy makes of them where that is less.';

create function dipwell_internal.carry(lim int, name text, key text, present int, inout used bigint, inout ts bigint, version int,
    inout lows bigint[] default null) language plpgsql stable as $$
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
        lows := null;
        return;
    end if;
    for r in select * from dipwell.versions v where v.limit_id = lim and v.number > version and v.number <= present order by v.number loop
        t := greatest(ts, r.since);
        used := dipwell_internal.convert_used(dipwell_internal.used_at(dipwell_internal.spread(was, name, key), used, ts, t), was, r, true);
        ts := t;
        if lows is not null then
            for i in 4..cardinality(lows) by 2 loop
                lows[i] := case when used < r.max_used then dipwell_internal.convert_back(lows[i], was, r) else 0 end; -- otherwise it may have been clipped
            end loop;
            lows := dipwell_internal.lows_rise(lows);
        end if;
        was := r;
    end loop;
end $$;
comment on function dipwell_internal.carry is
    'Brings a row to the version present: steps it under each version up to the end of that version, and converts what is used, and lows if it has any. A row of a version that is gone is full. The row must not be of a later version than present.';

create function dipwell_internal.carry_units(lim int, present int, units bigint, version int) returns bigint language plpgsql stable as $$
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
    for r in select * from dipwell.versions v where v.limit_id = lim and v.number > version and v.number <= present order by v.number loop
        units := dipwell_internal.convert_back(units, was, r);
        was := r;
    end loop;
    return units;
end $$;
comment on function dipwell_internal.carry_units is
    'Converts units that a record took under an older version into units of the version present. Units of a version that is gone are gone too.';

create function dipwell_internal.is_full(lim int, key text, used bigint, ts bigint, version int, n bigint) returns boolean language plpgsql stable as $$
declare
    r dipwell.versions;
    l dipwell.limits;
    c record;
begin
    select * into l from dipwell.limits where id = lim;
    if not found then
        return true; -- the limit was dropped
    end if;
    if version > l.version then
        return false; -- the row was read after the limit
    end if;
    select * into r from dipwell.versions v where v.limit_id = lim and v.number = l.version;
    select * into c from dipwell_internal.carry(lim, l.name, key, l.version, used, ts, version);
    return dipwell_internal.used_at(dipwell_internal.spread(r, l.name, key), c.used, c.ts, greatest(n, c.ts)) = 0;
end $$;
comment on function dipwell_internal.is_full is
    'Whether a row is full at n. A row of a later version than the limit as it is read here is not.';

create function dipwell_internal.step(r dipwell.versions, used bigint, ts bigint, n bigint, verb int, cost bigint, max_delay bigint,
    out allowed boolean, out never boolean, out granted bigint, out before bigint, out after bigint, out t bigint,
    out retry bigint, out delay bigint) language plpgsql stable as $$
declare
    short bigint; -- units that must come back before the call is allowed
    ahead bigint; -- units that must come back before the caller may act
    due   bigint;
begin
    t := greatest(n, ts);
    before := dipwell_internal.used_at(r, used, ts, t);
    allowed := false;
    never := false;
    granted := 0;
    after := 0;
    short := 0;
    ahead := 0;
    declare
        units bigint;
        units2 bigint;
        most bigint;
    begin
        if verb >= 4 then
            units := case when cost > 9007199254740992 / r.unit then 9007199254740992 else cost * r.unit end;
            if verb = 6 then
                allowed := true;
            elsif verb = 5 then
                allowed := true;
                after := greatest(before - units, 0);
            elsif cost > r.max_charge then
                never := true;
                after := before;
            else
                allowed := true;
                granted := cost;
                after := least(before + units, greatest(r.max_used, before));
            end if;
        elsif verb = 2 and cost > 0 then
            if r.unit > r.cap then
                never := true;
                after := before;
            elsif before > r.cap - r.unit then
                after := before;
                short := before - (r.cap - r.unit);
            else
                granted := least(cost, (r.cap - before) / r.unit);
                allowed := true;
                after := before + granted * r.unit;
            end if;
        else
            units2 := case when cost > 9007199254740992 / r.unit then 9007199254740992 else cost * r.unit end;
            most := r.cap;
            if r.leaky and verb <> 2 or verb = 3 and cost > 0 then
                most := r.cap + r.debt;
            end if;
            if units2 > most then
                never := true;
                after := before;
            elsif before > most - units2 then
                after := before;
                short := before - (most - units2);
            else
                ahead := greatest(before - (r.cap - units2), 0);
                if verb = 1 then
                    allowed := true;
                    after := before;
                else
                    allowed := true;
                    granted := cost;
                    after := before + units2;
                end if;
            end if;
        end if;
    end;
    retry := case when short > 0 then dipwell_internal.wait(r, short, t, n) else 0 end;
    delay := case when ahead > 0 then dipwell_internal.wait(r, ahead, t, n) else 0 end;
    if verb = 3 and max_delay is not null and not never then
        due := case when allowed then delay else dipwell_internal.wait(r, before - (r.cap - (cost * r.unit)), t, n) end;
        if due > max_delay then
            never := case when (cost * r.unit) <= r.cap then 0 else ((cost * r.unit) - r.cap + r.add - 1) / r.add * dipwell_internal.shortest(r) - dipwell_internal.shortest(r) + 1 end > max_delay;
            retry := case when never then 0 else greatest(retry, due - max_delay) end;
            allowed := false;
            granted := 0;
            after := before;
            delay := 0;
        end if;
    end if;
end $$;
comment on function dipwell_internal.step is
    'Decides one call: the whole algebra. Verbs: 0 take, 1 check, 2 take_up_to, 3 reserve, 4 charge, 5 refund, 6 reset. Go twins: Rule.Apply, bound.';
-- Code generated by internal/gen from templates/schema/repeatable/2_decide.sql; DO NOT EDIT.
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
    a.remaining := greatest(r.cap - held, 0) / r.unit;
    a.reset := case held when 0 then 0 else dipwell_internal.wait(r, held, o.t, n) end;
    a.used := held;
    a.ts := o.t;
    a.write := not dry and not a.shadow and o.after <> o.before;
    a.before := o.before;
    a.clipped := verb = 4 and o.allowed and o.after < o.before + (cost * r.unit);
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
    row_used bigint, row_ts bigint, row_version int)
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
        answers := null;
        for i in 1..k loop
            a := dipwell_internal.answer_one(ls[i], rs[i], keys[i], used[i], ts[i], coalesce(version[i], rs[i].number), n, verbs[i], costs[i], max_delays[i], false);
            answers[i] := a;
            verdict := verdict and a.allowed;
            changes := changes or a.write or verbs[i] = 6 or a.clipped and listed[i];
            if a.granted > 0 then
                due := greatest(due, a.delay);
                parts := parts + 1;
            end if;
        end loop;
        exit when locks or not verdict or not changes;
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
                        case when a.delay > 0 then greatest(rs[i].cap - (a.granted * rs[i].unit), 0) end, false, parts);
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
                             coalesce((select min(x.version) from dipwell.reservations x where x.limit_id = l.id), l.version))
        and (select s.since from dipwell.versions s where s.limit_id = v.limit_id and s.number = v.number + 1) < oldest - minute;
    get diagnostics gone = row_count;
    if gone > 0 then
        update dipwell.revision set n = n + 1;
    end if;
    return gone;
end $$;
comment on function dipwell_internal.retire is
    'Deletes versions that no row and no reservation names any more, some time after they were superseded. at replaces the clock, for tests.';
-- Code generated by internal/gen from templates/schema/repeatable/2_giveback.sql; DO NOT EDIT.
-- What a cancellation gives back. Go twin: giveback.go. The lows of a row are an
-- array: mark, next, and for each entry number and used.

create function dipwell_internal.lows_rise(lows bigint[]) returns bigint[] language plpgsql immutable as $$
declare
    risen bigint[] := lows[1:2];
    k     int := 2;
    first bigint;
begin
    for i in 3..cardinality(lows) by 2 loop
        first := lows[i];
        while k > 2 and risen[k] >= lows[i + 1] loop
            first := risen[k - 1];
            k := k - 2;
        end loop;
        risen[k + 1] := first;
        risen[k + 2] := lows[i + 1];
        k := k + 2;
    end loop;
    return risen[1:k];
end $$;
comment on function dipwell_internal.lows_rise is
    'Joins neighbours of which one is not below the next: the earlier number with the later low.';

create function dipwell_internal.lows_cover(lows bigint[], number bigint) returns int language plpgsql immutable as $$
begin
    for i in reverse cardinality(lows) - 1..3 by 2 loop
        if lows[i] <= number then
            return i;
        end if;
    end loop;
    return null;
end $$;
comment on function dipwell_internal.lows_cover is
    'Where in the array the entry begins that covers a record; null when none does.';

create function dipwell_internal.lows_limit(lows bigint[], at int, used bigint) returns bigint[] language plpgsql immutable as $$
begin
    if used < lows[at + 1] then
        lows[at + 1] := used;
        return dipwell_internal.lows_rise(lows);
    end if;
    return lows;
end $$;
comment on function dipwell_internal.lows_limit is
    'Lowers the entry that begins at an index of the array to used, if that is less.';

create function dipwell_internal.lows_lower(inout lows bigint[], number bigint, inout units bigint) language plpgsql immutable as $$
declare
    first int := dipwell_internal.lows_cover(lows, number);
begin
    if first is null then
        units := 0;
        return;
    end if;
    for i in first + 1..cardinality(lows) by 2 loop
        units := least(units, lows[i]);
        lows[i] := lows[i] - units;
    end loop;
    lows := dipwell_internal.lows_rise(lows);
end $$;
comment on function dipwell_internal.lows_lower is
    'Takes units, or as many as there are, off every low from the one that covers a record to the last. Returns what came out at the end.';

create function dipwell_internal.lows_append(lows bigint[], used bigint) returns bigint[] language plpgsql immutable as $$
declare
    at int;
begin
    lows := lows || array[lows[2], used];
    lows[2] := lows[2] + 1;
    if (cardinality(lows) / 2 - 1) > 32 then
        at := 5;
        for i in 7..cardinality(lows) - 3 by 2 loop
            if lows[i + 1] - lows[i - 1] < lows[at + 1] - lows[at - 1] then
                at := i;
            end if;
        end loop;
        lows := lows[:at - 1] || lows[at + 2:];
    end if;
    return lows;
end $$;
comment on function dipwell_internal.lows_append is
    'Adds an entry for the next record. Past 32 the two neighbours whose lows lie closest become one, the oldest of equals and never the last, with the lesser low.';

create function dipwell_internal.touch(lows bigint[], a dipwell_internal.answer) returns bigint[] language plpgsql immutable as $$
begin
    if a.before = 0 or a.used = 0 then
        return null; -- as in a store that deleted the full row
    elsif a.clipped then
        return array[lows[1], lows[2], lows[3], 0];
    end if;
    return dipwell_internal.lows_limit(lows, cardinality(lows) - 1, a.before);
end $$;
comment on function dipwell_internal.touch is
    'The lows of a row that a call writes: the last one lowered to what was used before the call. Go twin: Op.touch.';

create function dipwell_internal.resolve_records(lim int, of_key text, present int, lows bigint[], n bigint) returns bigint[]
language plpgsql volatile as $$
declare
    p  record;
    at int;
begin
    update dipwell.reservations x set version = present,
            units = dipwell_internal.carry_units(lim, present, x.units, x.version),
            slack = case when x.slack is not null then dipwell_internal.carry_units(lim, present, x.slack, x.version) end
        where x.limit_id = lim and x.key = of_key and x.version <> present;
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
comment on function dipwell_internal.resolve_records is
    'Prepares the records of a row for a write at n: records that waited and have fallen due lower the lows before them, and records that have ended are deleted. Takes the lows in units of the version present and returns them, or null. Go twin: Definition.Advance.';

create function dipwell_internal.retire_records(lim int, of_key text, lows bigint[], n bigint) returns bigint[]
language plpgsql volatile as $$
declare
    live  bigint;
    waits bigint;
begin
    select count(*), coalesce(max(x.number) filter (where x.slack is not null), 0) into live, waits from dipwell.reservations x
        where x.limit_id = lim and x.key = of_key and x.mark = lows[1] and not x.rest and (x.due > n or x.slack is not null);
    if live = 0 then
        lows := null;
    end if;
    delete from dipwell.reservations x where x.limit_id = lim and x.key = of_key
        and case when x.rest then x.mark is distinct from lows[1] or x.units = 0 or x.number >= waits else x.due <= n and x.slack is null end;
    return lows;
end $$;
comment on function dipwell_internal.retire_records is
    'Deletes records that have ended, and rests that nothing can free any more. Returns the lows, or null after the last live record. Go twin: Lows.retire.';

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
comment on function dipwell_internal.give_rests is
    'Gives back what a cancelled record of a row still has, or all others do, newest first, as far as no reservation that waits would miss it. Go twins: Lows.giveBack, Lows.giveRests.';

create function dipwell_internal.give_back_part(lim int, of_key text, reservation uuid, n bigint) returns void
language plpgsql volatile as $$
declare
    l    dipwell.limits;
    r    dipwell.versions;
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
    perform dipwell_internal.check_version(l, b.version);
    select * into r from dipwell.versions v where v.limit_id = lim and v.number = l.version;
    select * into c from dipwell_internal.carry(lim, l.name, of_key, l.version, b.used, b.ts, b.version, b.lows);
    list := dipwell_internal.resolve_records(lim, of_key, l.version, case when c.used <> 0 then c.lows end, n);
    held := dipwell_internal.used_at(dipwell_internal.spread(r, l.name, of_key), c.used, c.ts, greatest(n, c.ts));
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
    update dipwell.buckets x set used = held, ts = greatest(n, c.ts), version = l.version,
            lows = case when held <> 0 then list end
        where x.limit_id = lim and x.key = of_key;
end $$;
comment on function dipwell_internal.give_back_part is
    'Gives back the part of a reservation that is about one key, whose bucket is locked. Go twin: Definition.GiveBack.';

create function dipwell_internal.give_back(reservation uuid, at bigint default null) returns boolean
language plpgsql volatile set enable_seqscan = off as $$
declare
    n bigint := coalesce(at, dipwell_internal.now_us());
    p record;
begin
    -- Buckets are locked before reservations, as everywhere.
    for p in select x.limit_id, x.key from dipwell.reservations x where x.id = reservation and x.due > n and not x.rest
        order by x.limit_id, x.key loop
        perform from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update;
    end loop;
    n := coalesce(at, dipwell_internal.now_us());
    -- Some parts are gone if one of them was reset.
    select count(*) as found, max(y.parts) as parts into p from
        (select x.parts from dipwell.reservations x where x.id = reservation and x.due > n and not x.rest for update) y;
    if p.found = 0 or p.found <> p.parts then
        return false;
    end if;
    for p in select x.limit_id, x.key from dipwell.reservations x where x.id = reservation and not x.rest order by x.limit_id, x.key loop
        perform dipwell_internal.give_back_part(p.limit_id, p.key, reservation, n);
    end loop;
    return true;
end $$;
comment on function dipwell_internal.give_back is
    'Cancels a reservation before it is due and gives back what it took, as far as it is still there. Returns false when there is none. at replaces the clock, for tests.';
-- Code generated by internal/gen from templates/schema/repeatable/2_sweep.sql; DO NOT EDIT.
-- Deletes full rows, which mean the same as missing ones. It only frees space.

-- The latest time before which no running statement can still decide. A statement
-- that read the clock before a row became full, and inserts after a sweep has
-- deleted it, would start the bucket at that earlier time, and the refill since
-- then would count twice. A running statement is known by its lock on the table;
-- the second part is for one that has begun but not locked it yet.
create function dipwell_internal.settled() returns bigint language sql volatile as $$
    select least(n - 1000000, (
        -- statements that we may not see count as begun a minute ago
        select min(coalesce((date_part('epoch', s.query_start) * 1000000)::bigint, n - 60000000))
        from pg_locks k join pg_stat_activity s on s.pid = k.pid
        where k.locktype = 'relation' and k.relation = 'dipwell.buckets'::regclass and k.mode = 'RowExclusiveLock'
            and k.database = (select oid from pg_database where datname = current_database())
            and s.pid <> pg_backend_pid() and coalesce(s.state, 'active') = 'active'))
    from (select dipwell_internal.now_us() as n) c
$$;
comment on function dipwell_internal.settled is
    'The latest instant that no statement now running can still decide before; rows that were full then may be deleted.';

create function dipwell_internal.parts() returns table (relid regclass, first bigint, pages bigint) language sql stable as $$
    select x.relid, (sum(x.pages) over (order by x.relid::oid) - x.pages)::bigint, x.pages
    from (select t.relid, pg_relation_size(t.relid) / current_setting('block_size')::bigint as pages from (
        select c.oid::regclass from pg_class c where c.oid = 'dipwell.buckets'::regclass and c.relkind <> 'p'
        union all select p.relid from pg_partition_tree('dipwell.buckets') p where p.isleaf and p.level > 0) t (relid)) x
$$;
comment on function dipwell_internal.parts is
    'The table buckets, or its partitions, and which of all their pages are whose: pages of them from the one numbered first on.';

-- Rows are locked, and judged again as they are then, before they are deleted by
-- ctid, which cannot change while they are locked. A full row stays full under any
-- later version. The settings leave the planner only a scan of these pages and a
-- hash join, whatever the statistics, which may be those of an empty table.
create function dipwell_internal.sweep_pages(part regclass, low bigint, high bigint, max_rows bigint, n bigint) returns bigint
language plpgsql volatile set jit = off set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off as $$
declare
    place text := format('b.ctid >= ''(%s,0)'' and b.ctid < ''(%s,0)''', low, high);
    rows_ tid[];
begin
    if current_setting('server_version_num')::int < 140000 then -- cannot scan a range of ctid
        place := format('b.ctid = any (array(select format(''(%%s,%%s)'', p, i)::tid from generate_series(%s, %s) p, generate_series(1, %s) i))',
            low, high - 1, current_setting('block_size')::int / 28);
    end if;
    execute format($sweep$
        select array(
            select b.ctid from %s b
            left join (dipwell.limits l join dipwell.versions v on v.limit_id = l.id and v.number = l.version) on l.id = b.limit_id
            where %s and case
                when l.version = b.version and l.every > 0 and not v.spread
                then b.used <= least((greatest($1, b.ts) - l.grid) / l.every - (b.ts - l.grid) / l.every, l.ticks) * l.add
                else dipwell_internal.is_full(b.limit_id, b.key, b.used, b.ts, b.version, $1) end
            limit $2 for update of b skip locked)
        $sweep$, part, place) into rows_ using n, max_rows;
    if rows_ <> '{}' then
        execute format('delete from %s where ctid = any ($1)', part) using rows_;
    end if;
    return cardinality(rows_);
end $$;
comment on function dipwell_internal.sweep_pages is
    'Deletes at most max_rows of the rows on some pages of a table that are full at n: pages low to high - 1. Skips rows that are locked.';

-- Continues where the last call stopped, in any session. If max_rows ends a call
-- within a range of pages, the next call reads that range again.
create function dipwell_internal.sweep_at(max_rows bigint, n bigint, max_pages bigint,
    out swept bigint, out looked bigint, out size bigint, out ended boolean, out page bigint, out covered bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    range constant int := 16; -- pages
    start bigint := dipwell_internal.now_us();
    s     dipwell.sweep_state;
    part  record;
    high  bigint;
    did   bigint;
begin
    swept := 0;
    looked := 0;
    ended := false;
    select x.page, x.passed - x.took into page, covered from dipwell.sweep_state x;
    if max_rows < 1 then
        return;
    end if;
    select * into s from dipwell.sweep_state for update skip locked;
    if not found then
        return; -- another sweep is running
    end if;
    if pg_relation_size('dipwell.buckets') < 16 * current_setting('block_size')::int
        and (select relkind = 'r' from pg_class where oid = 'dipwell.buckets'::regclass) then
        perform dipwell_internal.make_room(); -- rewritten by VACUUM FULL, or emptied by a crash
    end if;
    select coalesce(sum(p.pages), 0) into size from dipwell_internal.parts() p;
    if s.page >= size then
        s.page := 0; -- the table was rewritten and is smaller
    end if;
    while swept < max_rows and looked < least(max_pages, size) loop
        if s.page = 0 then
            s.began := dipwell_internal.now_us();
            s.found := 0;
        end if;
        select * into part from dipwell_internal.parts() p where p.first + p.pages > s.page order by p.first limit 1;
        high := least(s.page + range, part.first + part.pages);
        did := dipwell_internal.sweep_pages(part.relid, s.page - part.first, high - part.first, max_rows - swept, n);
        swept := swept + did;
        s.found := s.found + did;
        exit when swept >= max_rows;
        looked := looked + high - s.page;
        s.page := high;
        if s.page >= size then
            s.page := 0;
            s.passed := dipwell_internal.now_us();
            s.took := s.passed - s.began;
            covered := s.began;
            ended := true;
            s.pass_swept := s.found;
            s.passes := s.passes + 1;
        end if;
    end loop;
    page := s.page;
    perform dipwell_internal.sweep_records(max_rows, n);
    update dipwell.sweep_state x set page = sweep_at.page, began = s.began, found = s.found, passed = s.passed, took = s.took, pass_swept = s.pass_swept,
        passes = s.passes, swept = x.swept + sweep_at.swept, spent = x.spent + dipwell_internal.now_us() - start;
end $$;
comment on function dipwell_internal.sweep_at(bigint, bigint, bigint) is
    'Deletes at most max_rows rows that are full at n, going over at most max_pages pages, or once over all of them; and ends reservations that are due. Returns the rows deleted, the pages done with, those that the table has (null while another sweep is running), whether a pass over it ended, where the next call goes on, and when the last whole pass began, in µs: rows that were full then are gone, locked ones apart. max_rows 0 only looks.';

-- Called by programs of schema version 6, which continue to run while a database is
-- upgraded.
create function dipwell_internal.sweep_at(max_rows int, n bigint) returns bigint language sql volatile as $$
    select s.swept from dipwell_internal.sweep_at(max_rows::bigint, n, null) s
$$;
comment on function dipwell_internal.sweep_at(int, bigint) is
    'Deletes at most max_rows rows that are full at n, going once over all pages, and returns how many. For programs of schema version 6.';

create function dipwell_internal.sweep_records(max_rows bigint, n bigint) returns void language plpgsql volatile as $$
declare
    p    record;
    b    dipwell.buckets;
    l    dipwell.limits;
    c    record;
begin
    for p in select distinct x.limit_id, x.key from
        (select y.limit_id, y.key from dipwell.reservations y where y.due <= n order by y.due limit max_rows) x loop
        select * into b from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update skip locked;
        if not found then
            continue when exists (select from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key);
            b := null;
        end if;
        select * into l from dipwell.limits x where x.id = p.limit_id;
        if b.lows is null or l.id is null then
            delete from dipwell.reservations x where x.limit_id = p.limit_id and x.key = p.key and x.due <= n;
        elsif b.version <= l.version then
            select * into c from dipwell_internal.carry(b.limit_id, l.name, b.key, l.version, b.used, b.ts, b.version, b.lows);
            c.lows := dipwell_internal.resolve_records(b.limit_id, b.key, l.version, case when c.used > 0 then c.lows end, n);
            update dipwell.buckets x set used = c.used, ts = c.ts, version = l.version, lows = c.lows where x.limit_id = b.limit_id and x.key = b.key;
        end if;
    end loop;
end $$;
comment on function dipwell_internal.sweep_records is
    'Ends the records of at most max_rows reservations that are due at n. Skips rows that are locked.';
-- Definitions. Go twins: compile.go, Registry.Define.

create function dipwell_internal.put_limit(d dipwell.limits, r dipwell.versions, at bigint default null) returns int language plpgsql volatile as $$
declare
    old  dipwell.limits;
    was  dipwell.versions;
    n    bigint;
    same boolean := false;
begin
    lock table dipwell.limits in share row exclusive mode;
    n := coalesce(at, dipwell_internal.now_us());
    select * into old from dipwell.limits x where x.name = d.name;
    if found then
        d.id := old.id;
        if d.owner = 'call site' then
            return old.id;
        end if;
        perform dipwell_internal.check_owner(d.name, old.owner, d.owner);
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
        if d.owner = 'call site' then
            d.owner := 'code';
        end if;
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
comment on function dipwell_internal.put_limit is
    'Stores a compiled definition. One with the same rule keeps its version; otherwise a new version begins now. Refuses a limit of another owner. The owner "call site" defines a limit that is not there, as "code", and never changes one that is.';

-- Go twin: checkOwner.
create function dipwell_internal.check_owner(limit_name text, was text, by_owner text) returns void language plpgsql immutable as $$
declare
    old_revision bigint := coalesce(nullif(split_part(was, ' ', 2), ''), '0');
    new_revision bigint := coalesce(nullif(split_part(by_owner, ' ', 2), ''), '0');
begin
    if split_part(was, ' ', 1) = split_part(by_owner, ' ', 1) then
        if new_revision < old_revision then
            raise exception using errcode = 'object_not_in_prerequisite_state', constraint = 'revision',
                detail = format('%s is lower than %s, which the store has seen of owner %s', new_revision, old_revision,
                    coalesce(nullif(split_part(split_part(was, ' ', 1), ':', 2), ''), 'main')),
                message = format('limit %s: revision: %s is lower than %s', limit_name, new_revision, old_revision);
        end if;
    elsif not ((by_owner = 'rls' or by_owner ~ '^file[: ]' or by_owner = 'file') and (was = 'file' or was !~ '^file[: ]')) then
        perform dipwell_internal.other_owner(limit_name, was);
    end if;
end $$;
comment on function dipwell_internal.check_owner is
    'Raises an error unless an owner may define a limit that another has defined before. Files and descriptors take over what no file names, and what an older program wrote.';

create function dipwell_internal.other_owner(limit_name text, owner text) returns void language plpgsql immutable as $$
begin
    raise exception using errcode = 'insufficient_privilege', constraint = 'owner', detail = owner,
        message = format('limit %s belongs to %s and can only be changed there', limit_name, case split_part(split_part(owner, ' ', 1), ':', 1)
            when 'code' then 'a program''s code or flags'
            when 'file' then 'the configuration file' || coalesce(' of owner ' || nullif(split_part(split_part(owner, ' ', 1), ':', 2), ''), '')
            when 'rls' then 'the descriptors of the RateLimitService' when 'api' then 'the API' when 'sql' then 'SQL' else owner end);
end $$;
comment on function dipwell_internal.other_owner is
    'Raises the error for a change by another owner.';

create function dipwell_internal.drop_limit(limit_name text, by_owner text) returns void language plpgsql volatile as $$
declare
    old dipwell.limits;
begin
    if limit_name is null then
        perform dipwell_internal.bad_limit(null, 'name', 'is missing');
    end if;
    lock table dipwell.limits in share row exclusive mode;
    select * into old from dipwell.limits x where x.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', message = format('name: unknown limit "%s"', limit_name);
    end if;
    if split_part(old.owner, ' ', 1) <> split_part(by_owner, ' ', 1) then
        perform dipwell_internal.other_owner(limit_name, old.owner);
    end if;
    -- Parts for other limits stay until they are due; without this one nobody can
    -- cancel them.
    delete from dipwell.reservations x where x.limit_id = old.id;
    delete from dipwell.limits x where x.id = old.id;
    update dipwell.revision x set n = x.n + 1;
    notify dipwell;
end $$;
comment on function dipwell_internal.drop_limit is
    'Deletes a limit and ends the reservations that have a part in it. Sweeps delete its buckets.';

create function dipwell_internal.bad_limit(limit_name text, field text, reason text) returns void language plpgsql as $$
begin
    raise exception using errcode = 'invalid_parameter_value', constraint = field,
        message = case when limit_name is null then '' else 'limit ' || limit_name || ': ' end || field || ': ' || reason;
end $$;
comment on function dipwell_internal.bad_limit is
    'Raises the error for an invalid definition.';

create function dipwell_internal.most_units(every bigint, add bigint) returns bigint language sql immutable as
$$ select case when 9007199254740991 / every - 1 < 1 then 0
    else dipwell_internal.mul_div(9007199254740991 / every - 1, add, 1, false) end $$;
comment on function dipwell_internal.most_units is
    'The largest number of units that can be counted exactly and that comes back within 2^53-1 µs.';

create function dipwell_internal.format_per(period bigint) returns text language sql immutable as
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
comment on function dipwell_internal.format_per is
    'Formats a period in µs, or -months, as 250ms, 1d, 3mo.';

create function dipwell_internal.parse_offset(s text) returns bigint language plpgsql immutable as $$
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
comment on function dipwell_internal.parse_offset is
    'The µs of a sum of whole numbers with units, such as 1d12h or 0s; null when the text is none.';

create function dipwell_internal.period_of(per interval) returns bigint language plpgsql immutable as $$
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
comment on function dipwell_internal.period_of is
    'The µs of an interval, or -months; 0 where a month and a day are mixed, or the length cannot be counted.';

create function dipwell_internal.compile(d dipwell.limits, period bigint) returns dipwell.versions language plpgsql stable as $$
declare
    m        constant bigint := 9007199254740991;
    windowed boolean := d.algorithm in ('fixed_window', 'interval');
    r        dipwell.versions;
    burst    bigint;
    debt     bigint;
    charge   bigint;
    want_debt   bigint;
    want_charge bigint;
    per      text := dipwell_internal.format_per(period);
    need     bigint;
    tick     bigint;
    most     bigint;
    room     bigint := 0;
    longest  bigint;
    offset_  bigint;
    wall     text[];
begin
    if d.name is null or d.name = '' then
        perform dipwell_internal.bad_limit(null, 'name', 'is missing');
    elsif octet_length(d.name) > 128 then
        perform dipwell_internal.bad_limit(null, 'name', format('has %s bytes; at most 128', octet_length(d.name)));
    elsif d.name ~ '[^ -~]' or d.name ~ '^ | $' then
        perform dipwell_internal.bad_limit(null, 'name', format('"%s" is not printable ASCII without spaces at its ends', d.name));
    elsif d.algorithm is null or d.algorithm not in ('token_bucket', 'fixed_window', 'interval', 'leaky_bucket') then
        perform dipwell_internal.bad_limit(d.name, 'algorithm', 'unknown; it is one of token_bucket, fixed_window, interval, leaky_bucket');
    elsif d.rate is null or d.rate < 1 or d.rate > m then
        perform dipwell_internal.bad_limit(d.name, 'rate', format('%s is not between 1 and 2^53-1', coalesce(d.rate::text, 'null')));
    elsif period < 0 and not windowed then
        perform dipwell_internal.bad_limit(d.name, 'per', 'months and years are for windows and intervals; a bucket needs a fixed length such as 30d');
    elsif period is null then
        perform dipwell_internal.bad_limit(d.name, 'per', 'is missing; it is a length of time such as interval ''1 minute''');
    elsif period = 0 or period < -1200 then
        perform dipwell_internal.bad_limit(d.name, 'per', 'is not a length of time');
    elsif d.burst < 0 or d.burst > m then
        perform dipwell_internal.bad_limit(d.name, 'burst', format('%s is not between 0 and 2^53-1', d.burst));
    elsif d.max_debt < -1 or d.max_debt > m then
        perform dipwell_internal.bad_limit(d.name, 'max_debt', format('%s is not between 0 and 2^53-1, or unlimited (-1)', d.max_debt));
    elsif d.max_charge < 1 or d.max_charge > m then
        perform dipwell_internal.bad_limit(d.name, 'max_charge', format('%s is not between 1 and 2^53-1', d.max_charge));
    elsif d.start <> '' and not windowed then
        perform dipwell_internal.bad_limit(d.name, 'start', 'is for windows and intervals; a bucket refills all the time');
    elsif d.algorithm = 'leaky_bucket' and d.burst <> 1 then
        perform dipwell_internal.bad_limit(d.name, 'burst', 'a leaky bucket lets out one at a time; its queue is max_debt');
    elsif d.on_change is null or d.on_change not in ('keep', 'proportional', 'reset') then
        perform dipwell_internal.bad_limit(d.name, 'on_change', 'unknown; it is one of keep, proportional, reset');
    elsif d.mode is null or d.mode not in ('enforce', 'shadow') then
        perform dipwell_internal.bad_limit(d.name, 'mode', 'unknown; it is one of enforce, shadow');
    end if;

    burst := case when d.algorithm = 'leaky_bucket' then 1 else coalesce(d.burst, d.rate) end;
    debt := case when d.max_debt is null then burst when d.max_debt = -1 then 0 else d.max_debt end;
    if burst = 0 and debt = 0 and d.max_debt is distinct from -1 then
        perform dipwell_internal.bad_limit(d.name, 'burst', '0 grants nothing unless max_debt lets work be scheduled ahead');
    end if;
    charge := coalesce(d.max_charge, dipwell_internal.mul_div(10, greatest(burst, 1), 1, false));
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
        -- The finest tick at which everything fits; defaults that fit at none are
        -- lowered.
        <<found>>
        foreach need in array array[burst + debt + charge, burst + debt + want_charge, burst + want_debt + want_charge] loop
            foreach tick in array array[1, 1000, 1000000, 60000000]::bigint[] loop
                continue when period % tick <> 0;
                r.every := tick;
                r.unit := period / tick / gcd(d.rate, period / tick);
                r.add := d.rate / gcd(d.rate, period / tick);
                most := dipwell_internal.most_units(tick, r.add);
                exit found when most / r.unit >= need;
                most := null;
            end loop;
        end loop;
        if most is null then
            foreach tick in array array[1, 1000, 1000000, 60000000]::bigint[] loop
                continue when period % tick <> 0;
                room := greatest(room, dipwell_internal.most_units(tick, d.rate / gcd(d.rate, period / tick))
                    / (period / tick / gcd(d.rate, period / tick)) - want_debt - want_charge);
            end loop;
            if room < 1 then
                perform dipwell_internal.bad_limit(d.name, 'rate', format('%s per %s is too slow, or max_debt and max_charge too large, to count exactly with any burst', d.rate, per));
            end if;
            perform dipwell_internal.bad_limit(d.name, 'burst', format('%s at %s per %s is too large to count exactly; at most %s', burst, d.rate, per, room));
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
            offset_ := dipwell_internal.parse_offset(d.start);
            if offset_ is not null then
                if offset_ >= (case when period > 0 then period
                        when r.months % 12 = 0 then r.months / 12 * 365 * 86400000000
                        else r.months * 28 * 86400000000 end) then
                    perform dipwell_internal.bad_limit(d.name, 'start', format('%s is not shorter than the period', d.start));
                end if;
                r.origin := offset_;
            else
                if position(' ' in d.start) = 0 then
                    perform dipwell_internal.bad_limit(d.name, 'start', format('"%s" is neither an offset such as 0s nor a wall clock with a zone such as ''06:00 Europe/Rome''', d.start));
                end if;
                wall := regexp_match(d.start, '^([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? +([^ ].*?) *$');
                if wall is null or wall[1]::int > 23 or wall[2]::int > 59 or coalesce(wall[3], '0')::int > 59 then
                    perform dipwell_internal.bad_limit(d.name, 'start', format('"%s" is not a time of day such as 06:00', split_part(d.start, ' ', 1)));
                end if;
                if wall[4] <> 'UTC' and not exists (select from pg_timezone_names z where z.name = wall[4]) then
                    perform dipwell_internal.bad_limit(d.name, 'start', format('"%s" is not an IANA time zone such as Europe/Rome', wall[4]));
                end if;
                if period > 0 then
                    if period = 86400000000 then
                        r.days := 1;
                    elsif period = 604800000000 then
                        r.days := 7;
                    else
                        perform dipwell_internal.bad_limit(d.name, 'start', format('a wall clock needs per to be 1d, 1w, 1mo or 1y, not %s', per));
                    end if;
                end if;
                r.every := 0;
                r.zone := wall[4];
                r.clock := wall[1]::bigint * 3600 + wall[2]::bigint * 60 + coalesce(wall[3], '0')::bigint;
            end if;
        end if;
        longest := case when r.every > 0 then r.every when r.months > 0 then (r.months * 31 + 1) * 86400000000
            else r.days * 86400000000 + 86400000000 end;
        most := dipwell_internal.most_units(longest, r.add);
        if most < burst + want_debt + want_charge then
            perform dipwell_internal.bad_limit(d.name, 'burst', format('%s at %s per %s is too large to count exactly; at most %s', burst, d.rate, per, greatest(0, most - want_debt - want_charge)));
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
comment on function dipwell_internal.compile is
    'Checks a definition and turns it into whole numbers. Go twin: Limit.Compile.';
-- Code generated by internal/gen from templates/schema/repeatable/4_api.sql; DO NOT EDIT.
-- The public functions. They run as their owner with a fixed search_path, and in
-- the caller's transaction: a rollback gives the tokens back. enable_seqscan is off
-- because a plan made while the table is empty would scan it, and would be kept
-- while a long transaction fills it.

create function dipwell_internal.check_key(key text, field text) returns text language plpgsql immutable as $$
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
comment on function dipwell_internal.check_key is
    'Raises an error that names the field when key is empty or too long; returns the key of the bucket, '''' for the shared one.';

create function dipwell_internal.check_cost(cost bigint, field text) returns bigint language plpgsql immutable as $$
begin
    if cost is null or cost < 0 or cost > 9007199254740991 then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: %s is not between 0 and 2^53-1', field, coalesce(cost::text, 'null'));
    end if;
    return cost;
end $$;
comment on function dipwell_internal.check_cost is
    'Raises an error that names the field unless cost is between 0 and 2^53-1.';

create function dipwell_internal.limit_id(limit_name text, field text) returns int language plpgsql stable as $$
declare
    id int;
begin
    if limit_name is null then
        raise exception using errcode = 'invalid_parameter_value', constraint = field, message = field || ': is null';
    end if;
    select l.id into id from dipwell.limits l where l.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', constraint = field,
            message = format('%s: unknown limit "%s"', field, limit_name);
    end if;
    return id;
end $$;
comment on function dipwell_internal.limit_id is
    'The id of a limit; raises an error that names the field when there is none.';

-- The result of a call of one key. It is a type because PostgreSQL builds the
-- descriptor of a row of OUT parameters in every call.
create function dipwell_internal.entries(n int) returns text language sql immutable as
$$ select case n when 1 then '1 entry' else coalesce(n, 0) || ' entries' end $$;
comment on function dipwell_internal.entries is
    'A number of entries as text, for messages.';

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

create function dipwell.check(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(1, limit_name, key, cost);
end $$;
comment on function dipwell.check is
    'Returns the result that take would have, and changes nothing.';

create function dipwell.take_up_to(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(2, limit_name, key, cost);
end $$;
comment on function dipwell.take_up_to is
    'Takes as many whole tokens as there are, at most cost; refused if there are none. The result has their number in granted.';

create function dipwell.reserve(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(3, limit_name, key, cost);
end $$;
comment on function dipwell.reserve is
    'Takes tokens in advance, into debt up to max_debt: act after delay, or cancel(reservation) before that.';

create function dipwell.charge(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(4, limit_name, key, cost);
end $$;
comment on function dipwell.charge is
    'Takes tokens even if there are too few, for a cost that is known only afterwards.';

create function dipwell.refund(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(5, limit_name, key, cost);
end $$;
comment on function dipwell.refund is
    'Gives tokens back, up to a full bucket.';

create function dipwell.reset(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(6, limit_name, key, 0);
end $$;
comment on function dipwell.reset is
    'Makes a bucket full and ends its reservations; cost is ignored.';

create function dipwell.cancel(reservation uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    if reservation is null then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'reservation', message = 'reservation: is null';
    end if;
    if dipwell_internal.give_back(reservation) is not true then
        raise exception using errcode = 'no_data_found', constraint = 'reservation',
            message = 'reservation: is unknown, spent, due or reset';
    end if;
end $$;
comment on function dipwell.cancel is
    'Gives back what is left of a reservation, once, and only before it is due.';

create function dipwell.define(name text, rate bigint, per interval, burst bigint default null, algorithm text default null,
    max_debt bigint default null, start text default null, on_change text default null, mode text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    d dipwell.limits;
    period bigint := case when per is not null then dipwell_internal.period_of(per) end;
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
    d.per := dipwell_internal.format_per(nullif(period, 0));
    r := dipwell_internal.compile(d, period);
    perform dipwell_internal.put_limit(d, r);
end $$;
comment on function dipwell.define is
    'Adds a limit, or changes it while it is in use. null is the default, 0 is 0, a max_debt of -1 is unlimited. per may be months or years for windows and intervals.';

create function dipwell.drop(name text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform dipwell_internal.drop_limit(name, 'sql');
end $$;
comment on function dipwell.drop is
    'Deletes a limit that was defined in SQL.';

create function dipwell.sweep(max_rows int default 10000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if max_rows is null or max_rows < 1 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'max_rows',
            message = format('max_rows: %s is not at least 1', coalesce(max_rows::text, 'null'));
    end if;
    return (dipwell_internal.sweep_at(max_rows, dipwell_internal.settled(), null)).swept;
end $$;
comment on function dipwell.sweep is
    'Deletes at most max_rows full rows and returns how many: fewer at the end of the table, or while another sweep is running. Call it again while it returns max_rows, each time in its own transaction.';

create function dipwell_internal.level(limit_id int, key text, used bigint, ts bigint, version int, n bigint,
    out remaining bigint, out full_at timestamptz) language plpgsql stable as $$
declare
    l dipwell.limits;
    r dipwell.versions;
    c record;
    held bigint;
begin
    select * into l from dipwell.limits x where x.id = level.limit_id;
    select * into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
    r := dipwell_internal.spread(r, l.name, key);
    select * into c from dipwell_internal.carry(l.id, l.name, key, l.version, used, ts, version);
    held := dipwell_internal.used_at(r, c.used, c.ts, greatest(n, c.ts));
    remaining := greatest(r.cap - held, 0) / r.unit;
    full_at := timestamptz 'epoch' + n * interval '1 microsecond'
        + dipwell_internal.length(case held when 0 then 0 else dipwell_internal.wait(r, held, greatest(n, c.ts), n) end);
end $$;
comment on function dipwell_internal.level is
    'The whole tokens left of a bucket at n, and when it is full.';

create view dipwell.status as
    select l.name as limit_name, nullif(b.key, '') as key, l.cap / l.unit as capacity, s.remaining, s.full_at
    from dipwell.buckets b
    join dipwell.limits l on l.id = b.limit_id
    cross join lateral dipwell_internal.level(b.limit_id, b.key, b.used, b.ts, b.version, dipwell_internal.now_us()) s;
-- Code generated by internal/gen from templates/schema/repeatable/4_plain.sql; DO NOT EDIT.
-- Calls of plain limits, whose ticks have equal length and are the same for all
-- keys, on rows of the current version without reservations. All others, and
-- invalid arguments, are left to decide.

create function dipwell_internal.ask(verb int, limit_name text, key text, cost bigint) returns dipwell.decision language plpgsql volatile as $$
declare
    x     record; -- the limit, its rule, and the row if there is one
    of    text := coalesce(key, '');
    used  bigint; -- at the time of the decision
    ts    bigint; -- the time of the decision
    n     bigint;
    moved bigint; -- tokens that the call adds or removes
    units bigint; -- the same in units
begin
    for round in 1..16 loop
        -- The clock is read in the statement that reads the row: the row may be as
        -- recent as the snapshot.
        select l.id, l.version, l.unit, l.every, l.add, l.cap, l.grid, l.ticks, v.debt, v.max_used, b.used, b.ts,
                l.plain and l.mode = 'enforce' and coalesce(b.version = l.version and b.lows is null, true)
                    and ask.cost between case verb when 1 then 0 else 1 end
                        and case verb when 2 then case when v.burst > 0 then v.max_used / l.unit end when 3 then v.most when 4 then least(v.max_charge, v.max_used / l.unit) when 5 then v.max_used / l.unit else v.burst end
                    and verb <= 5 and ask.key is distinct from '' and octet_length(of) <= 512 as plain
            into x
            from dipwell.limits l
            cross join lateral (select w.debt, w.most, w.burst, w.max_used, w.max_charge from dipwell.versions w where w.limit_id = l.id and w.number = l.version limit 1) v
            left join lateral (select y.used, y.ts, y.version, y.lows from dipwell.buckets y where y.limit_id = l.id and y.key = of limit 1) b on true
            where l.name = limit_name;
        exit when x.plain is not true;
        n := dipwell_internal.now_us();
        ts := greatest(n, x.ts);
        used := coalesce(dipwell_internal.plain_used(x.used, x.ts, n, x.every, x.add, x.grid, x.ticks), 0);
        moved := case verb when 2 then least(cost, greatest(x.cap - used, 0) / x.unit) else cost end;
        units := moved * x.unit;
        if verb <> 5 and (moved < 1 and verb = 2 or used > case verb when 4 then x.max_used else x.cap end - units) then
            exit when verb = 4 or verb = 3 and used <= (x.cap + x.debt) - units; -- it is clipped, or has to wait
            units := used - ((x.cap + case verb when 3 then x.debt else 0 end) - case verb when 2 then x.unit else units end);
            return (false, greatest(x.cap - used, 0) / x.unit, dipwell_internal.plain_wait(units, ts, n, x.every, x.add, x.grid),
                dipwell_internal.plain_wait(used, ts, n, x.every, x.add, x.grid), 0::bigint, interval '0', false, null::uuid);
        elsif verb = 1 or verb = 5 and used = 0 then -- there is nothing to write
            moved := 0;
        elsif x.used is null then
            used := units;
            insert into dipwell.buckets (used, ts, limit_id, version, key) values (units, n, x.id, x.version, of) on conflict do nothing;
            continue when not found;
        else
            -- The row may have changed since it was read. If fewer tokens than
            -- requested are taken, they must still be all there are.
            units := case verb when 5 then -units else units end;
            update dipwell.buckets b
                set used = greatest(dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) + units, 0), ts = greatest(n, b.ts)
                where b.limit_id = x.id and b.key = of and b.version = x.version and b.lows is null
                    and dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) + units
                        between case when moved < cost then x.cap - x.unit + 1 else -9007199254740991 end and case when verb >= 4 then x.max_used else x.cap end
                returning b.used, b.ts into used, ts;
            continue when not found;
            moved := case verb when 5 then 0 else moved end;
        end if;
        return (true, greatest(x.cap - used, 0) / x.unit, null::interval,
            case used when 0 then interval '0' else dipwell_internal.plain_wait(used, ts, n, x.every, x.add, x.grid) end, moved, interval '0', false, null::uuid);
    end loop;
    return dipwell_internal.ask_decide(verb, limit_name, key, cost);
end $$;
comment on function dipwell_internal.ask is
    'Decides any verb for one key; the public functions call it. It reads the limit and the row in one statement, and writes, if anything, in one other, which finds out whether the row has changed meanwhile.';

create function dipwell_internal.ask_decide(verb int, limit_name text, key text, cost bigint) returns dipwell.decision language plpgsql volatile as $$
declare
    a   record;
    d   dipwell.decision;
    lim int;
    top bigint;
begin
    perform dipwell_internal.check_cost(cost, 'cost');
    key := dipwell_internal.check_key(key, 'key');
    lim := dipwell_internal.limit_id(limit_name, 'limit_name');
    if verb = 4 then
        select v.max_charge into top from dipwell.limits l join dipwell.versions v on v.limit_id = l.id and v.number = l.version where l.id = lim;
        if cost > top then
            raise exception using errcode = 'invalid_parameter_value', constraint = 'cost',
                message = format('cost: %s is more than limit %s lets a charge be, %s', cost, limit_name, top);
        end if;
    end if;
    d.reservation := gen_random_uuid();
    select * into a from dipwell_internal.decide(array[lim], array[key], array[verb], array[cost], array[null::bigint], d.reservation);
    if not found then -- just dropped
        perform dipwell_internal.limit_id(limit_name, 'limit_name');
        return dipwell_internal.ask_decide(verb, limit_name, nullif(key, ''), cost);
    end if;
    d.allowed := a.allowed;
    d.remaining := a.remaining;
    if not a.never and (a.shadow or not a.allowed) then
        d.retry_after := dipwell_internal.length(a.retry);
    end if;
    d.reset_after := dipwell_internal.length(a.reset);
    d.granted := a.granted;
    d.delay := dipwell_internal.length(a.delay);
    d.never := a.never;
    if a.granted = 0 or a.delay = 0 then
        d.reservation := null;
    end if;
    return d;
end $$;
comment on function dipwell_internal.ask_decide is
    'Decides any verb for one key by dipwell_internal.decide.';

create function dipwell_internal.ask_all(limit_names text[], keys text[], costs bigint[] default null)
returns table (limit_name text, key text, allowed boolean, remaining bigint, retry_after interval, reset_after interval,
    granted bigint, delay interval, never boolean, reservation uuid)
language plpgsql volatile as $$
declare
    k    int := cardinality(limit_names);
    ids  int[] := '{}';
    ks   text[] := '{}';
    cs   bigint[] := '{}';
    op   int[] := '{}';
    id   int;
    j    int;
    rid  uuid := gen_random_uuid();
    as_  dipwell_internal.answer[] := '{}';
    a    dipwell_internal.answer;
    row_ record;
    verdict boolean := true;
    due  boolean := false;
begin
    if k is null or k < 1 or k > 16 or array_ndims(limit_names) <> 1 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'limit_names',
            message = format('limit_names: %s; from 1 to 16', dipwell_internal.entries(k));
    elsif cardinality(keys) is distinct from k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'keys',
            message = format('keys: %s, but limit_names has %s', dipwell_internal.entries(cardinality(keys)), k);
    elsif cardinality(costs) <> k then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'costs',
            message = format('costs: %s, but limit_names has %s', dipwell_internal.entries(cardinality(costs)), k);
    end if;
    costs := coalesce(costs, array_fill(1::bigint, array[k]));
    for i in 1..k loop
        perform dipwell_internal.check_cost(costs[i], format('costs[%s]', i));
        id := dipwell_internal.limit_id(limit_names[i], format('limit_names[%s]', i));
        op[i] := null;
        for j in 1..cardinality(ids) loop
            if ids[j] = id and ks[j] = coalesce(keys[i], '') then
                op[i] := j;
                cs[j] := dipwell_internal.check_cost(cs[j] + costs[i], 'costs');
            end if;
        end loop;
        if op[i] is null then
            ids := ids || id;
            ks := ks || dipwell_internal.check_key(keys[i], format('keys[%s]', i));
            cs := cs || costs[i];
            op[i] := cardinality(ids);
        end if;
    end loop;
    for row_ in select * from dipwell_internal.decide(ids, ks, array_fill(0, array[cardinality(ids)]), cs,
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
    if cardinality(as_) = 0 then
        raise exception using errcode = 'undefined_object', constraint = 'limit_names', message = 'limit_names: a limit was dropped during the call';
    end if;
    for i in 1..k loop
        a := as_[op[i]];
        limit_name := limit_names[i];
        key := keys[i];
        allowed := a.allowed;
        remaining := a.remaining;
        retry_after := case when not a.never and (a.shadow or not a.allowed) then dipwell_internal.length(a.retry) end;
        reset_after := dipwell_internal.length(a.reset);
        granted := case when a.granted > 0 then costs[i] else 0 end;
        delay := dipwell_internal.length(a.delay);
        never := a.never;
        reservation := case when verdict and due then rid end;
        return next;
    end loop;
end $$;
comment on function dipwell_internal.ask_all is
    'take_all by dipwell_internal.decide. The costs of a limit and key named twice are added up.';

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
--  empty          a bucket was charged: the UPDATE comes first
--  r, rr, …, n    that many refusals, or a new key: the row is read first
--  refused        more refusals: first a statement that can only refuse, which
--                 costs a tenth less than the one that reads everything, and
--                 four times as much if the key is not refused
--  new            new keys: an INSERT comes first, which costs a third less
--
-- Left to ask are rows with reservations or of another version, shadow mode, limits
-- that are not plain, and invalid arguments.
create function dipwell.take(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n bigint := dipwell_internal.now_us();
    d dipwell.decision;
    x record; -- the limit, and the row if there is one
    hint text := coalesce(current_setting('dipwell.read_first', true), '');
    next text;
    refused boolean;
begin
    if hint = 'refused' then
        select false, greatest(l.cap - b.used, 0) / l.unit, dipwell_internal.plain_wait(b.used - (l.cap - b.units), b.ts, n, l.every, l.add, l.grid),
                dipwell_internal.plain_wait(b.used, b.ts, n, l.every, l.add, l.grid), 0::bigint, interval '0', false, null::uuid
            into d
            from dipwell.limits l cross join lateral ( -- offset 0, so that used is computed once
                select dipwell_internal.plain_used(y.used, y.ts, n, l.every, l.add, l.grid, l.ticks) as used, greatest(n, y.ts) as ts, take.cost * l.unit as units
                from dipwell.buckets y where y.limit_id = l.id and y.key = coalesce(take.key, '') and y.version = l.version and y.lows is null offset 0) b
            where l.name = limit_name and l.plain and take.cost between 1 and l.cap / l.unit and l.mode = 'enforce' and take.key is distinct from ''
                and b.used > l.cap - b.units;
        if found then
            return d;
        end if;
    elsif hint = 'new' then
        select l.id, l.version, take.cost * l.unit as units, row(true, l.cap / l.unit - take.cost, null,
                dipwell_internal.plain_wait(take.cost * l.unit, n, n, l.every, l.add, l.grid), take.cost, interval '0', false, null)::dipwell.decision as allowed into x
            from dipwell.limits l
            where l.name = limit_name and l.plain and take.cost between 1 and l.cap / l.unit and l.mode = 'enforce'
                and (take.key is null or octet_length(take.key) between 1 and 512);
        if found then
            insert into dipwell.buckets as b (used, ts, limit_id, version, key) values (x.units, n, x.id, x.version, coalesce(take.key, '')) on conflict do nothing;
            if found then
                return x.allowed;
            end if;
        end if;
    elsif hint = '' then
        update dipwell.buckets b
        set used = greatest(b.used - greatest(n - b.ts, 0) * l.add, 0) + (take.cost * l.unit), ts = greatest(n, b.ts)
        from dipwell.limits l
        where l.name = limit_name and l.plain and l.every = 1 and l.add <= 256 and take.cost between 1 and l.cap / l.unit
            and b.limit_id = any (array[l.id]) and b.key = case when l.plain then coalesce(take.key, '') end and take.key is distinct from ''
            and b.version = l.version and b.lows is null
            and b.used - greatest(n - b.ts, 0) * l.add <= l.cap - (take.cost * l.unit)
        returning true, (l.cap - b.used) / l.unit, null::interval,
            (b.ts - n) * interval '1 microsecond' + ((b.used + l.add - 1) / l.add) * interval '1 microsecond',
            take.cost, interval '0', false, null::uuid
        into d;
        if found then
            return d;
        end if;
    end if;
    select l.id, l.version, l.unit, l.every, l.add, l.cap, l.grid, l.ticks, take.cost * l.unit as units, b.used is null as fresh,
            dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.add, l.grid, l.ticks) as used, greatest(n, b.ts) as ts into x
        from dipwell.limits l left join lateral (
            select y.used, y.ts, y.version, y.lows from dipwell.buckets y where y.limit_id = l.id and y.key = coalesce(take.key, '') limit 1) b on true
        where l.name = limit_name and l.plain and take.cost between 1 and l.cap / l.unit and l.mode = 'enforce'
            and (take.key is null or octet_length(take.key) between 1 and 512) and coalesce(b.version = l.version and b.lows is null, true);
    refused := x.used > x.cap - x.units;
    next := case when x.fresh then case hint when 'n' then 'new' else 'n' end
        when refused then case when hint = 'rrrrrrrr' then 'refused' when left(hint, 2) in ('r', 'rr') then hint || 'r' else 'r' end
        when not x.fresh and x.every = 1 and x.add <= 256 then '' else 'r' end;
    if next <> hint then
        perform set_config('dipwell.read_first', next, false);
    end if;
    if refused then
        return (false, greatest(x.cap - x.used, 0) / x.unit, dipwell_internal.plain_wait(x.used - (x.cap - x.units), x.ts, n, x.every, x.add, x.grid),
            dipwell_internal.plain_wait(x.used, x.ts, n, x.every, x.add, x.grid), 0::bigint, interval '0', false, null::uuid);
    elsif x.fresh then
        n := dipwell_internal.now_us(); -- the row may have been swept after it was first looked for
        insert into dipwell.buckets as b (used, ts, limit_id, version, key) values (x.units, n, x.id, x.version, coalesce(take.key, '')) on conflict do nothing
            returning true, (x.cap - b.used) / x.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, x.every, x.add, x.grid),
                take.cost, interval '0', false, null::uuid
            into d;
    elsif not x.fresh then
        update dipwell.buckets b
            set used = dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) + x.units, ts = greatest(n, b.ts)
            where b.limit_id = x.id and b.key = coalesce(take.key, '') and b.version = x.version and b.lows is null
                and dipwell_internal.plain_used(b.used, b.ts, n, x.every, x.add, x.grid, x.ticks) <= x.cap - x.units
            returning true, (x.cap - b.used) / x.unit, null::interval, dipwell_internal.plain_wait(b.used, b.ts, n, x.every, x.add, x.grid),
                take.cost, interval '0', false, null::uuid
            into d;
    end if;
    if d.allowed then
        return d;
    end if;
    return dipwell_internal.ask(0, limit_name, key, cost);
end $$;
comment on function dipwell.take is
    'Takes cost tokens if there are enough, otherwise none. Without a key it uses the limit''s shared bucket.';

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
comment on column dipwell_internal.part.at is 'The place in the call, from 1.';
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

-- The rows are read in one statement, so that they are of one time. A limit and key
-- named twice are adjacent in locking order.
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
        where l.plain and l.mode = 'enforce' and q.cost between 1 and l.cap / l.unit and coalesce(b.version = l.version and b.lows is null, true);
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
    'The parts of a take_all in the order in which rows are locked, with the rows as they are now; null where one of them is not plain, is named twice, or is not in order.';

-- A missing row is inserted at once, with its charge: later, it might have to wait
-- for a concurrent insert, out of locking order.
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
    'Locks the rows of parts, or makes them with their charge. n is the time of the decision: when all locks are held, or the first row was made. plain is false where a row has become one that is left to decide.';

create function dipwell_internal.parts_fit(parts dipwell_internal.part[], n bigint) returns boolean
language plpgsql immutable as $$
declare
    p dipwell_internal.part;
begin
    foreach p in array parts loop
        if dipwell_internal.plain_used(p.used, p.ts, n, p.every, p.add, p.grid, p.ticks) > p.cap - p.units then
            return false;
        end if;
    end loop;
    return true;
end $$;
comment on function dipwell_internal.parts_fit is
    'Whether all parts fit at n.';

create function dipwell.take_all(limit_names text[], keys text[], costs bigint[] default null)
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
    if k between 1 and 16 and array_ndims(limit_names) = 1 and cardinality(keys) = k and coalesce(cardinality(costs), k) = k then
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
        return query select * from dipwell_internal.ask_all(limit_names, keys, costs);
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
        p.ts := greatest(n, p.ts);
        allowed := p.used <= p.cap - p.units;
        retry_after := case when not allowed then dipwell_internal.plain_wait(p.used - (p.cap - p.units), p.ts, n, p.every, p.add, p.grid) end;
        if verdict then
            p.used := p.used + p.units;
            if not p.fresh then
                update dipwell.buckets x set used = p.used, ts = p.ts where x.limit_id = p.limit_id and x.key = p.key;
            end if;
        end if;
        reset_after := case p.used when 0 then interval '0' else dipwell_internal.plain_wait(p.used, p.ts, n, p.every, p.add, p.grid) end;
        limit_name := limit_names[i];
        key := keys[i];
        remaining := greatest(p.cap - p.used, 0) / p.unit;
        granted := case when verdict then p.cost else 0 end;
        return next;
    end loop;
end $$;
comment on function dipwell.take_all is
    'Takes all costs (1 each by default) at one instant, or none of them; returns a row for each limit, in the order asked. The costs of a limit and key named twice are added up.';

-- The index has the keys in order; a plan that sorts, or that starts at the prefix
-- for each page, would read all rows of a limit for one page.
create function dipwell_internal.keys(lim int, prefix text, after text, shared boolean, n bigint)
returns table (key text, used bigint, ts bigint, version int)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
    return query select b.key, b.used, b.ts, b.version from dipwell.buckets b
        where b.limit_id = lim and b.key >= greatest(prefix collate "C", after collate "C") and (after = '' and not shared or b.key > after) and left(b.key, char_length(prefix)) = prefix
        order by b.key limit n;
end $$;
comment on function dipwell_internal.keys is
    'At most n rows of a limit in the order of their keys: those that begin with prefix and come after another, or with shared after the shared bucket.';
-- Roles: dipwell_app takes, dipwell_service is for the Go store and services (rows,
-- not definitions), dipwell_admin may do everything. If a role is missing and may
-- not be created, grant by hand: an upgrade keeps such grants.
do $$
declare
    app     constant text[] := array['take', 'take_all', 'check', 'take_up_to', 'reserve', 'charge', 'cancel'];
    service constant text[] := app || array['refund', 'reset', 'sweep'];
    admin   constant text[] := array['put_limit', 'drop_limit', 'bad_limit', 'compile']; -- functions of dipwell_internal
    who  text;
    f    record;
begin
    foreach who in array array['dipwell_app', 'dipwell_service', 'dipwell_admin'] loop
        begin
            if not exists (select from pg_roles where rolname = who) then
                execute format('create role %I', who);
            end if;
        exception
            when insufficient_privilege then
                raise notice 'the role % is missing and may not be created here; grant by hand', who;
            when duplicate_object or unique_violation then
                null; -- created at the same time by another database of this server
        end;
    end loop;
    revoke all on all functions in schema dipwell, dipwell_internal from public;
    for who in select rolname from pg_roles where rolname in ('dipwell_app', 'dipwell_service', 'dipwell_admin') loop
        execute format('grant usage on schema dipwell to %I', who);
        for f in select p.oid::regprocedure as signature from pg_proc p where p.pronamespace = 'dipwell'::regnamespace
            and (who = 'dipwell_admin' or p.proname = any (case who when 'dipwell_app' then app else service end)) loop
            execute format('grant execute on function %s to %I', f.signature, who);
        end loop;
        continue when who = 'dipwell_app';
        execute format('grant usage on schema dipwell_internal to %I', who);
        for f in select p.oid::regprocedure as signature from pg_proc p where p.pronamespace = 'dipwell_internal'::regnamespace
            and (who = 'dipwell_admin' or p.proname <> all (admin)) loop
            execute format('grant execute on function %s to %I', f.signature, who);
        end loop;
        execute format('grant select on all tables in schema dipwell to %I', who);
        execute format('grant insert, update, delete on dipwell.buckets, dipwell.reservations to %I', who);
    end loop;
    if exists (select from pg_roles where rolname = 'dipwell_admin') then
        grant insert, update, delete on dipwell.limits, dipwell.versions, dipwell.revision to dipwell_admin;
    end if;
    -- Restores what 0_drop.sql found. Some functions were in schema dipwell before.
    for f in select p.oid::regprocedure as signature, p.pronamespace::regnamespace as home, g.grantee::regrole as who
        from pg_temp.dipwell_grants g join pg_proc p on p.proname = g.name
        where p.pronamespace in ('dipwell'::regnamespace, 'dipwell_internal'::regnamespace) loop
        execute format('grant usage on schema %s to %s', f.home, f.who);
        execute format('grant execute on function %s to %s', f.signature, f.who);
    end loop;
end $$;
drop table pg_temp.dipwell_grants;
-- Comments of tables, views and types. Those of functions are next to the functions.
comment on schema dipwell is 'Rate limits: functions, tables and views for everybody who may use them.';
comment on schema dipwell_internal is 'Helpers of schema dipwell, which may change with any version: do not call them.';

comment on table dipwell.limits is 'The limits: what was defined, and the numbers of the present version that a take needs.';
comment on column dipwell.limits.id is 'Identifies the limit in other tables. A limit that is dropped and defined again gets a new id.';
comment on column dipwell.limits.name is 'Printable ASCII, at most 128 bytes.';
comment on column dipwell.limits.algorithm is 'token_bucket, fixed_window, interval or leaky_bucket.';
comment on column dipwell.limits.rate is 'Tokens that come back in each period per.';
comment on column dipwell.limits.per is 'The period of rate, as in 250ms, 1m, 3mo.';
comment on column dipwell.limits.burst is 'Capacity in tokens; null: the rate.';
comment on column dipwell.limits.max_debt is 'Tokens that a reserve may take beyond the burst; null: one burst, -1: unlimited.';
comment on column dipwell.limits.max_charge is 'The largest charge, in tokens; null: ten bursts.';
comment on column dipwell.limits.start is 'Where windows and intervals begin: an offset such as 0s, or a wall clock such as 06:00 Europe/Rome; null: spread by key.';
comment on column dipwell.limits.on_change is 'How used tokens are converted into the next version: keep, proportional or reset.';
comment on column dipwell.limits.mode is 'enforce or shadow.';
comment on column dipwell.limits.auth is 'Whether services answer /v1/auth for it.';
comment on column dipwell.limits.retry_jitter is 'Largest percentage by which services lengthen Retry-After.';
comment on column dipwell.limits.on_store_error is 'How services and programs answer while the database cannot: open, closed or local.';
comment on column dipwell.limits.timeout_us is 'Timeout of a call in µs; 0: that of its caller.';
comment on column dipwell.limits.list_keys is 'Whether stores that keep no key texts should keep them for this limit. PostgreSQL always has them.';
comment on column dipwell.limits.owner is 'Who defined it and may change it: code, api, sql, rls, file or file:NAME. A file''s is followed by its revision and its digest.';
comment on column dipwell.limits.version is 'Number of the current version.';
comment on column dipwell.limits.unit is 'In the current version: units in a token.';
comment on column dipwell.limits.every is 'In the current version: µs between ticks; 0: by calendar.';
comment on column dipwell.limits.add is 'In the current version: units that come back at a tick.';
comment on column dipwell.limits.cap is 'In the current version: units that takes may use.';
comment on column dipwell.limits.grid is 'A tick before any time that can occur, in µs.';
comment on column dipwell.limits.ticks is 'Ticks after which any bucket is full.';
comment on column dipwell.limits.plain is 'Whether the numbers in this row alone decide a take.';

comment on table dipwell.versions is 'The rules that buckets and reservations may still refer to, including the current one. Go twin: store.Rule.';
comment on column dipwell.versions.limit_id is 'limits.id.';
comment on column dipwell.versions.number is 'From 1.';
comment on column dipwell.versions.since is 'When it began, in µs since the Unix epoch; it ends when the next one begins.';
comment on column dipwell.versions.policy is 'How used tokens are converted into this version: keep, proportional or reset.';
comment on column dipwell.versions.unit is 'Units in a token.';
comment on column dipwell.versions.every is 'µs between ticks; 0: by calendar.';
comment on column dipwell.versions.add is 'Units that come back at a tick.';
comment on column dipwell.versions.cap is 'Units that takes may use.';
comment on column dipwell.versions.origin is 'The time of a tick, in µs; with a calendar, µs after each boundary.';
comment on column dipwell.versions.burst is 'Capacity in tokens: cap / unit.';
comment on column dipwell.versions.debt is 'Units that a reserve may use beyond cap.';
comment on column dipwell.versions.most is 'The largest reserve that could ever be granted, in tokens.';
comment on column dipwell.versions.max_charge is 'The largest charge, in tokens.';
comment on column dipwell.versions.max_used is 'Units at which a bucket''s used stops growing.';
comment on column dipwell.versions.leaky is 'Whether take means reserve.';
comment on column dipwell.versions.spread is 'Whether the origin depends on the key.';
comment on column dipwell.versions.months is 'Months in a calendar''s unit, otherwise 0.';
comment on column dipwell.versions.days is '1 or 7 if a calendar''s unit is a day or a week, otherwise 0.';
comment on column dipwell.versions.clock is 'Seconds after local midnight at which a calendar''s unit begins.';
comment on column dipwell.versions.zone is 'The calendar''s IANA time zone; empty without a calendar.';
comment on column dipwell.versions.per is 'limits.per of this version.';
comment on column dipwell.versions.start is 'limits.start of this version.';

comment on table dipwell.buckets is 'One row for each key in use. A missing row is a full bucket.';
comment on column dipwell.buckets.used is 'Units taken and not yet given back, at ts.';
comment on column dipwell.buckets.ts is 'µs since the Unix epoch, on this server''s clock.';
comment on column dipwell.buckets.limit_id is 'limits.id.';
comment on column dipwell.buckets.version is 'The version under which used and ts are counted.';
comment on column dipwell.buckets.lows is 'How much of what the row''s reservations took is left: mark, next number, and for each entry number and units; null without reservations.';
comment on column dipwell.buckets.key is 'The caller''s key; empty: the limit''s shared bucket.';

comment on table dipwell.reservations is 'Reservations that can still be cancelled, and what was withheld of cancelled ones. All rows of a call have the same id.';
comment on column dipwell.reservations.id is 'The argument of cancel.';
comment on column dipwell.reservations.limit_id is 'limits.id.';
comment on column dipwell.reservations.key is 'buckets.key.';
comment on column dipwell.reservations.units is 'Units still to be given back.';
comment on column dipwell.reservations.version is 'The version in which units are counted.';
comment on column dipwell.reservations.number is 'In the list of its row, from 1.';
comment on column dipwell.reservations.mark is 'Identifies the list: the first entry of buckets.lows. Nothing is given back to a row with another list.';
comment on column dipwell.reservations.slack is 'Units that will be used when this part falls due, itself not counted; null: it does not wait.';
comment on column dipwell.reservations.rest is 'Whether it was cancelled; units is then what was withheld.';
comment on column dipwell.reservations.parts is 'Number of keys of the reservation. It cannot be cancelled once one of them was reset.';
comment on column dipwell.reservations.part_due is 'When this part falls due, in µs since the Unix epoch.';
comment on column dipwell.reservations.due is 'When the caller may act, in µs since the Unix epoch; after that it cannot be cancelled.';

comment on table dipwell.revision is 'One row, changed with every limit, for programs without notifications.';
comment on column dipwell.revision.n is 'Number of changes.';

comment on table dipwell.sweep_state is 'The progress and the totals of sweeps. One row, locked by one sweep at a time.';
comment on column dipwell.sweep_state.page is 'The page of buckets at which the next sweep continues.';
comment on column dipwell.sweep_state.began is 'When the current pass began, in µs since the Unix epoch; 0: there is none.';
comment on column dipwell.sweep_state.found is 'Rows deleted in the current pass.';
comment on column dipwell.sweep_state.passed is 'When the last complete pass over the table ended, in µs since the Unix epoch; 0: never.';
comment on column dipwell.sweep_state.took is 'Duration of the last complete pass in µs, including pauses.';
comment on column dipwell.sweep_state.pass_swept is 'Rows deleted in the last complete pass.';
comment on column dipwell.sweep_state.passes is 'Number of complete passes.';
comment on column dipwell.sweep_state.swept is 'Rows deleted by all sweeps.';
comment on column dipwell.sweep_state.spent is 'Duration of all sweeps in µs, without pauses.';

comment on table dipwell.migrations is 'The migrations that were applied. The largest version is the version of the schema.';
comment on column dipwell.migrations.version is 'The migration''s number.';
comment on column dipwell.migrations.name is 'Name of the migration.';
comment on column dipwell.migrations.applied_at is 'When it was applied.';

comment on view dipwell.status is 'The current state of buckets, in tokens.';
comment on column dipwell.status.limit_name is 'limits.name.';
comment on column dipwell.status.key is 'The caller''s key; null: the limit''s shared bucket.';
comment on column dipwell.status.capacity is 'Tokens of a full bucket.';
comment on column dipwell.status.remaining is 'Whole tokens left.';
comment on column dipwell.status.full_at is 'When the bucket will be full without further calls.';

comment on type dipwell.decision is 'The result of a call of one key.';
comment on column dipwell.decision.allowed is 'Whether the call is allowed; a refusal has changed nothing.';
comment on column dipwell.decision.remaining is 'Whole tokens left after the call.';
comment on column dipwell.decision.retry_after is 'Time until the same call would be allowed without further calls; null if allowed or never.';
comment on column dipwell.decision.reset_after is 'Time until the bucket is full.';
comment on column dipwell.decision.granted is 'Tokens taken.';
comment on column dipwell.decision.delay is 'Time to wait before acting.';
comment on column dipwell.decision.never is 'Whether the cost is more than the limit ever allows.';
comment on column dipwell.decision.reservation is 'The argument of cancel, if delay is above 0.';
-- Sweeps every minute if pg_cron is installed.
do $$
begin
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute $cron$ select cron.schedule('dipwell-sweep', '* * * * *', 'select dipwell.sweep(10000)') $cron$;
    end if;
exception when others then
    raise notice 'pg_cron is installed but the sweep could not be scheduled: %', sqlerrm;
end $$;
