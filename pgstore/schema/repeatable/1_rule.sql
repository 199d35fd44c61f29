-- The arithmetic of rules, from step.go. Its Go twin for calendars is calendar.go.

-- Inlined by the planner. The operator has exactly these types, so that views that call it
-- find no other one in the search path.
create function dipwell_internal.now_us() returns bigint language sql volatile as
$$ select (date_part('epoch', clock_timestamp()) * 1000000::float8)::bigint $$;
comment on function dipwell_internal.now_us is 'The clock, in µs since the Unix epoch.';

create function dipwell_internal.may_set_clock() returns boolean language sql stable as
$$ select pg_has_role(session_user, n.nspowner, 'member') from pg_namespace n where n.nspname = 'dipwell_internal' $$;
comment on function dipwell_internal.may_set_clock is 'Whether the login, a member of the owner''s role, may pass another time than the clock''s.';

create function dipwell_internal.past(at bigint) returns bigint language sql volatile as
$$ select case when dipwell_internal.may_set_clock() then at else least(at, dipwell_internal.now_us()) end $$;
comment on function dipwell_internal.past is 'The time at, but not later than the clock unless the login may set it.';

create function dipwell_internal.floor_div(a bigint, b bigint) returns bigint language sql immutable as
$$ select case when a >= 0 then a / b else -((b - 1 - a) / b) end $$;
comment on function dipwell_internal.floor_div is 'a / b, rounded down.';

create function dipwell_internal.mul_div(a bigint, b bigint, c bigint, up boolean) returns bigint language sql immutable as
$$ select least(case when up then div(a::numeric * b + c - 1, c) else div(a::numeric * b, c) end, 9007199254740991)::bigint $$;
comment on function dipwell_internal.mul_div is 'a × b / c, rounded up or down; at most 2^53-1.';

-- interval × number is computed in float8, which holds every integer up to 2^53, and every
-- multiple of 2^20 that fits in a bigint.
create function dipwell_internal.length(x bigint) returns interval language sql immutable as
$$ select x / 1048576 * interval '1048576 microseconds' + x % 1048576 * interval '1 microsecond' $$;
comment on function dipwell_internal.length is 'An interval of exactly x µs.';

-- These two are expressions for a limit with ticks of equal length. They are
-- functions in the language SQL so that the planner inlines them, which it does if
-- every argument used twice is a plain variable.
create function dipwell_internal.plain_used(used bigint, ts bigint, n bigint, every bigint, add bigint, grid bigint, ticks bigint)
returns bigint language sql immutable as
$$ select greatest(used - least((greatest(n, ts) - grid) / every - (ts - grid) / every, ticks) * add, 0) $$;
comment on function dipwell_internal.plain_used is 'The units that a row of a plain limit uses at n.';

-- In two parts that are each below 2^53 µs, because an exact product with an interval needs
-- that.
create function dipwell_internal.plain_wait(units bigint, t bigint, n bigint, every bigint, add bigint, grid bigint)
returns interval language sql immutable as
$$ select ((t - grid) / every * every + grid - n) * interval '1 microsecond' + ((units + add - 1) / add * every) * interval '1 microsecond' $$;
comment on function dipwell_internal.plain_wait is 'The time from n until units have come back to a row of a plain limit that was stepped to t.';

create function dipwell_internal.plain_reset(units bigint, t bigint, n bigint, every bigint, add bigint, grid bigint)
returns bigint language sql immutable as
$$ select (t - grid) / every * every + grid - n + (units + add - 1) / add * every $$;
comment on function dipwell_internal.plain_reset is 'plain_wait in µs.';

-- CET, MET, EET and WET are also abbreviations without summer time, which AT TIME ZONE
-- prefers, so they are replaced by a city with the same clock.
create function dipwell_internal.zone_offset(zone text, x bigint) returns bigint language sql stable as
$$ select date_part('epoch', (timestamptz 'epoch' + x * interval '1 second') at time zone
    case zone when 'CET' then 'Europe/Brussels' when 'MET' then 'Europe/Brussels'
        when 'EET' then 'Europe/Athens' when 'WET' then 'Europe/Lisbon' else zone end)::bigint - x $$;
comment on function dipwell_internal.zone_offset is 'How many seconds the clock of a zone is ahead of UTC at x, in Unix seconds.';

-- wall is in seconds, as if the clock were UTC. AT TIME ZONE would return the later one if
-- there are two, and a time after the gap if the clock skips wall.
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
    -- The clock skipped over wall, or changed just before showing it.
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
comment on function dipwell_internal.first_at is 'The first Unix second at which the clock of a zone shows wall or later.';

create function dipwell_internal.calendar_boundary(r dipwell.versions, k bigint) returns bigint language plpgsql stable as $$
declare
    month timestamp;
begin
    if r.months > 0 then -- on the last day of a month that has not so many
        month := timestamp 'epoch' + (k * r.months + r.clock / 86400 / 31) * interval '1 month';
        return dipwell_internal.first_at(r.zone, date_part('epoch', month)::bigint
            + least(r.clock / 86400 % 31, date_part('day', month + interval '1 month' - interval '1 day')::bigint - 1) * 86400 + r.clock % 86400) * 1000000;
    end if;
    return dipwell_internal.first_at(r.zone, r.clock
        + (k * r.days + case r.days % 7 when 0 then 4 else 0 end) * 86400) * 1000000; -- weeks start on Monday
end $$;
comment on function dipwell_internal.calendar_boundary is 'When unit k of a calendar begins, in µs.';

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
        k := dipwell_internal.floor_div(((date_part('year', at) - 1970) * 12 + date_part('month', at) - 1)::bigint - r.clock / 86400 / 31, r.months);
    else
        k := dipwell_internal.floor_div((at::date - date '1970-01-01') - case r.days % 7 when 0 then 4 else 0 end, r.days);
    end if;
    while dipwell_internal.calendar_boundary(r, k) > y loop
        k := k - 1;
    end loop;
    while dipwell_internal.calendar_boundary(r, k + 1) <= y loop
        k := k + 1;
    end loop;
    return k;
end $$;
comment on function dipwell_internal.tick is 'The number of the last tick at or before x.';

create function dipwell_internal.wait(r dipwell.versions, units bigint, t bigint, n bigint) returns bigint language plpgsql stable as $$
begin
    if r.every > 0 then
        return case when r.every = 1 then t - n + (units + r.add - 1) / r.add else dipwell_internal.floor_div(t - r.origin, r.every) * r.every + r.origin - n + (units + r.add - 1) / r.add * r.every end;
    end if;
    return dipwell_internal.calendar_boundary(r, dipwell_internal.tick(r, t) + (units + r.add - 1) / r.add) + r.origin - n;
end $$;
comment on function dipwell_internal.wait is 'The µs from n to the tick at which units have come back, for a row that was stepped to t.';

create function dipwell_internal.used_at(r dipwell.versions, used bigint, ts bigint, t bigint) returns bigint language plpgsql stable as $$
begin
    if used = 0 or t = ts then
        return used;
    elsif r.every > 0 then
        return greatest(used - least(case when r.every = 1 then greatest(t - ts, 0) else dipwell_internal.floor_div(greatest(t, ts) - r.origin, r.every) - dipwell_internal.floor_div(ts - r.origin, r.every) end, (r.max_used + r.add - 1) / r.add) * r.add, 0);
    end if;
    return greatest(used - least(dipwell_internal.tick(r, t) - dipwell_internal.tick(r, ts), (r.max_used + r.add - 1) / r.add) * r.add, 0);
end $$;
comment on function dipwell_internal.used_at is 'The units used at t, which is not before ts.';

create function dipwell_internal.shortest(r dipwell.versions) returns bigint language sql immutable as
$$ select case when r.every > 0 then r.every
    when r.months = 0 then r.days * 86400000000 - 7200000000
    when r.months % 12 = 0 then r.months / 12 * 365 * 86400000000
    else r.months * 28 * 86400000000 end $$;
comment on function dipwell_internal.shortest is 'The length of the shortest window, in µs.';

-- The first 48 bits of SHA-256(uint32be(length of name) ‖ name ‖ key), modulo the period.
create function dipwell_internal.key_offset(name text, key text, every bigint) returns bigint language sql stable as
$$ select ('x' || substr(encode(sha256(int4send(octet_length(convert_to(name, 'UTF8')))
    || convert_to(name, 'UTF8') || convert_to(key, 'UTF8')), 'hex'), 1, 12))::bit(48)::bigint % every $$;
comment on function dipwell_internal.key_offset is 'When the windows of a key begin.';

create function dipwell_internal.spread(r dipwell.versions, name text, key text) returns dipwell.versions language plpgsql stable as $$
begin
    if r.spread then
        r.origin := dipwell_internal.key_offset(name, key, dipwell_internal.shortest(r));
    end if;
    return r;
end $$;
comment on function dipwell_internal.spread is 'The rule with the origin of a key.';

create function dipwell_internal.convert_used(used bigint, was dipwell.versions, r dipwell.versions, up boolean) returns bigint language plpgsql stable as $$
begin
    return case when used = 0 or (r.policy = 'reset') then 0 when (r.policy = 'proportional') and was.cap > 0 then least(dipwell_internal.mul_div(used, r.cap, was.cap, up), r.max_used) else least(dipwell_internal.mul_div(used, r.unit, was.unit, up), r.max_used) end;
end $$;
comment on function dipwell_internal.convert_used is 'Units used under one version in units of the next, by the policy of the next.';

create function dipwell_internal.convert_back(units bigint, was dipwell.versions, r dipwell.versions) returns bigint language plpgsql stable as $$
begin
    return least(case when units = 0 then 0 else least(dipwell_internal.mul_div(units, r.unit, was.unit, false), r.max_used) end, case when units = 0 or (r.policy = 'reset') then 0 when (r.policy = 'proportional') and was.cap > 0 then least(dipwell_internal.mul_div(units, r.cap, was.cap, false), r.max_used) else least(dipwell_internal.mul_div(units, r.unit, was.unit, false), r.max_used) end);
end $$;
comment on function dipwell_internal.convert_back is 'Units that can be given back under one version in units of the next, rounded down.';

-- parts is definition.fraction; short, the units that must come back before the call would
-- be allowed. Verbs: 0 take, 1 check, 2 take_up_to, 3 reserve, 4 charge, 5 refund, 6 reset.
create function dipwell_internal.step(r dipwell.versions, used bigint, ts bigint, n bigint, verb int, cost bigint, max_delay bigint, parts bigint,
    out allowed boolean, out never boolean, out granted bigint, out before bigint, out after bigint, out t bigint,
    out retry bigint, out delay bigint, out short bigint) language plpgsql stable as $$
declare
    ahead bigint; -- units that must come back before the caller may act
    most  bigint; -- ticks in max_delay
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
            else
                if parts > 0 then
                    units2 := least(dipwell_internal.mul_div(units2, 1024, parts, true), most);
                end if;
                if before > most - units2 then
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
        end if;
    end;
    delay := case when ahead > 0 then dipwell_internal.wait(r, ahead, t, n) else 0 end;
    if verb = 3 and not never and (delay > max_delay or max_delay is not null and not allowed) then
        never := case when (cost * r.unit) <= r.cap then 0 else ((cost * r.unit) - r.cap + r.add - 1) / r.add * dipwell_internal.shortest(r) - dipwell_internal.shortest(r) + 1 end > max_delay;
        most := (max_delay + dipwell_internal.shortest(r) - 1) / dipwell_internal.shortest(r);
        short := greatest(short, before - (r.cap - (cost * r.unit))
            - least(most, (r.max_used + r.add - 1) / r.add) * r.add);
        allowed := false;
        granted := 0;
        after := before;
        delay := 0;
    end if;
    retry := case when short > 0 and not never then dipwell_internal.wait(r, short, t, n) else 0 end;
end $$;
comment on function dipwell_internal.step is 'Decides one call by one rule.';

create function dipwell_internal.wrong(reason text, limit_name text default null) returns void language plpgsql volatile as $$
begin
    if reason is not null then
        raise exception using errcode = 'invalid_parameter_value', constraint = split_part(reason, ': ', 1), message = coalesce('limit ' || limit_name || ': ', '') || reason;
    end if;
end $$;
comment on function dipwell_internal.wrong is 'Raises the error for an invalid argument or setting, if reason, which begins with its field and a colon, is not null.';
