
-- == Arithmetic: what a rate gives back, by ticks and by calendars

-- The planner inlines this function. The operator has exactly these argument types, so
-- that views that call the function find no other operator in the search path.
create function dipwell_internal.now_us() returns bigint language sql volatile as
$$ select (date_part('epoch', clock_timestamp()) * 1000000::float8)::bigint $$;

-- Whether the login is a member of the owner's role, and so may pass a time of its own.
create function dipwell_internal.may_set_clock() returns boolean language sql stable as
$$ select pg_has_role(session_user, n.nspowner, 'member') from pg_namespace n where n.nspname = 'dipwell_internal' $$;

-- The time at, but not later than the clock unless the login may set the time.
create function dipwell_internal.past(at bigint) returns bigint language sql volatile as
$$ select case when dipwell_internal.may_set_clock() then at else least(at, dipwell_internal.now_us()) end $$;

create function dipwell_internal.floor_div(a bigint, b bigint) returns bigint language sql immutable as
$$ select case when a >= 0 then a / b else -((b - 1 - a) / b) end $$;

create function dipwell_internal.mul_div(a bigint, b bigint, c bigint, up boolean) returns bigint language sql immutable as
$$ select least(case when up then div(a::numeric * b + c - 1, c) else div(a::numeric * b, c) end, 9007199254740991)::bigint $$;

-- An interval of exactly x µs. interval × number is computed in float8, which holds every
-- integer up to 2^53, and every multiple of 2^20 that fits in a bigint.
create function dipwell_internal.length(x bigint) returns interval language sql immutable as
$$ select x / 1048576 * interval '1048576 microseconds' + x % 1048576 * interval '1 microsecond' $$;

-- The units that a row of a plain limit uses at n. These two are expressions for a limit with
-- ticks of equal length. They are functions in the language SQL so that the planner inlines
-- them, which it does if every argument used twice is a plain variable.
create function dipwell_internal.plain_used(used bigint, ts bigint, n bigint, every bigint, add bigint, grid bigint, ticks bigint)
returns bigint language sql immutable as
$$ select greatest(used - least((greatest(n, ts) - grid) / every - (ts - grid) / every, ticks) * add, 0) $$;

-- The time from n until the given units have come back to a row of a plain limit that was
-- stepped to t. The result is computed in two parts, each below 2^53 µs, because an exact
-- product with an interval needs that.
create function dipwell_internal.plain_wait(units bigint, t bigint, n bigint, every bigint, add bigint, grid bigint)
returns interval language sql immutable as
$$ select ((t - grid) / every * every + grid - n) * interval '1 microsecond' + ((units + add - 1) / add * every) * interval '1 microsecond' $$;

create function dipwell_internal.plain_reset(units bigint, t bigint, n bigint, every bigint, add bigint, grid bigint)
returns bigint language sql immutable as
$$ select (t - grid) / every * every + grid - n + (units + add - 1) / add * every $$;

-- CET, MET, EET and WET are also abbreviations without summer time, which AT TIME ZONE
-- prefers, so they are replaced by a city with the same clock.
create function dipwell_internal.zone_offset(zone text, x bigint) returns bigint language sql stable as
$$ select date_part('epoch', (timestamptz 'epoch' + x * interval '1 second') at time zone
    case zone when 'CET' then 'Europe/Brussels' when 'MET' then 'Europe/Brussels'
        when 'EET' then 'Europe/Athens' when 'WET' then 'Europe/Lisbon' else zone end)::bigint - x $$;

-- The first Unix second at which the clock of a zone shows wall or later. wall is in seconds,
-- as if the clock were UTC. AT TIME ZONE would return the later such second if there are two,
-- and a time after the gap if the clock skips wall.
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

-- When unit k of a calendar begins, in µs.
create function dipwell_internal.calendar_boundary(r dipwell.versions, k bigint) returns bigint language plpgsql stable as $$
declare
    month timestamp;
begin
    if r.months > 0 then -- or on the last day of a shorter month
        month := timestamp 'epoch' + (k * r.months + r.clock / 86400 / 31) * interval '1 month';
        return dipwell_internal.first_at(r.zone, date_part('epoch', month)::bigint
            + least(r.clock / 86400 % 31, date_part('day', month + interval '1 month' - interval '1 day')::bigint - 1) * 86400 + r.clock % 86400) * 1000000;
    end if;
    return dipwell_internal.first_at(r.zone, r.clock
        + (k * r.days + case r.days % 7 when 0 then 4 else 0 end) * 86400) * 1000000; -- weeks start on Monday
end $$;

-- The number of the last tick at or before x.
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

-- The ts of a row that was stepped from ts to t and has used units: t, or the beginning of
-- its window if windows begin with a call.
create function dipwell_internal.written_at(r dipwell.versions, used bigint, ts bigint, t bigint) returns bigint language sql immutable as
$$ select case when r.origin < 0 and used > 0 then t - (t - ts) % r.every else t end $$;

-- How many of the units in use at t count against the limit. The units of a sliding
-- window are the tokens of the present window, and 2^26 times those of the window before.
create function dipwell_internal.counted(r dipwell.versions, used bigint, t bigint, up boolean) returns bigint language sql immutable as
$$ select case when r.sliding then (used & 67108863) + ((used >> 26) * (1000 - 1000 * (t - r.origin - dipwell_internal.floor_div(t - r.origin, r.every) * r.every) / r.every)
    + case when up then 999 else 0 end) / 1000 else used end $$;

-- The µs from the beginning of a sliding window to the first time, in it or in one of the
-- next two, at which at most the given number of tokens counts.
create function dipwell_internal.slide_to(used bigint, most bigint, every bigint) returns bigint language sql immutable as $$
    select coalesce(min(w.at), 2 * every) from (values (0::bigint, used >> 26, used & 67108863), (every, used & 67108863, 0::bigint)) h (start, prev, cur)
    cross join lateral (select h.start + ((1000 - least(1000, ((most - h.cur + 1) * 1000 - 1) / nullif(h.prev, 0))) * every + 999) / 1000 as at) w
    where h.cur <= most and w.at < h.start + every
$$;

create function dipwell_internal.slide(r dipwell.versions, used bigint, t bigint, n bigint, verb int, cost bigint, held bigint,
    out allowed boolean, out never boolean, out granted bigint, out after bigint, out retry bigint) language plpgsql stable as $$
declare
    cur  bigint := used & 67108863;
    need bigint := case verb when 2 then least(cost, 1) else cost end;
    free bigint := r.cap - dipwell_internal.counted(r, used, t, false);
begin
    never := case when verb = 4 then cost > r.max_charge and cost > coalesce(held, 0) and cost > dipwell_internal.most_charge(r) else verb < 4 and need > r.cap end;
    allowed := not never and (verb >= 4 or need <= free);
    granted := case when allowed and verb in (0, 2) then least(cost, free) when allowed and verb = 4 then cost else 0 end;
    after := case verb when 6 then 0 when 5 then used - least(cost, cur) when 4 then used + least(granted, r.max_used - cur) else used + granted end;
    retry := case when allowed or never then 0
        else dipwell_internal.floor_div(t - r.origin, r.every) * r.every + r.origin + dipwell_internal.slide_to(used, r.cap - need, r.every) - n end;
end $$;

-- The µs from n to the tick at which the given units have come back, for a row that was
-- stepped to t.
create function dipwell_internal.wait(r dipwell.versions, units bigint, t bigint, n bigint) returns bigint language plpgsql stable as $$
begin
    if r.sliding then -- until nothing counts, whatever units is
        return (dipwell_internal.floor_div(t - r.origin, r.every) + case when units & 67108863 > 0 then 2 else 1 end) * r.every + r.origin - n;
    elsif r.every > 0 then
        return case when r.every = 1 or r.origin < 0 then t - n + (units + r.add - 1) / r.add * r.every else dipwell_internal.floor_div(t - r.origin, r.every) * r.every + r.origin - n + (units + r.add - 1) / r.add * r.every end;
    end if;
    return dipwell_internal.calendar_boundary(r, dipwell_internal.tick(r, t) + (units + r.add - 1) / r.add) + r.origin - n;
end $$;

-- The units used at t, which is not before ts.
create function dipwell_internal.used_at(r dipwell.versions, used bigint, ts bigint, t bigint) returns bigint language plpgsql stable as $$
begin
    if used = 0 or t = ts then
        return used;
    elsif r.sliding then
        return case dipwell_internal.floor_div(greatest(t, ts) - r.origin, r.every) - dipwell_internal.floor_div(ts - r.origin, r.every)
            when 0 then used when 1 then (used & 67108863) << 26 else 0 end;
    elsif r.every > 0 then
        return greatest(used - least(case when r.every = 1 or r.origin < 0 then greatest(t - ts, 0) / r.every else dipwell_internal.floor_div(greatest(t, ts) - r.origin, r.every) - dipwell_internal.floor_div(ts - r.origin, r.every) end, (r.max_used + r.add - 1) / r.add) * r.add, 0);
    end if;
    return greatest(used - least(dipwell_internal.tick(r, t) - dipwell_internal.tick(r, ts), (r.max_used + r.add - 1) / r.add) * r.add, 0);
end $$;

-- A lower bound of the length of a window, which is exact for days of UTC. Zones move their
-- clocks by at most two hours, except on a few days such as the one that Apia left out in 2011.
create function dipwell_internal.shortest(r dipwell.versions) returns bigint language sql immutable as
$$ select case when r.every > 0 then r.every
    when r.months = 0 then r.days * 86400000000 - case r.zone when 'UTC' then 0 else 7200000000 end
    when r.months % 12 = 0 then r.months / 12 * 365 * 86400000000
    else r.months * 28 * 86400000000 end $$;

-- When the windows of a key begin. The first 48 bits of SHA-256(uint32be(length of name) ‖
-- name ‖ key), modulo the period.
create function dipwell_internal.key_offset(name text, key text, every bigint) returns bigint language sql stable as
$$ select ('x' || substr(encode(sha256(int4send(octet_length(convert_to(name, 'UTF8')))
    || convert_to(name, 'UTF8') || convert_to(key, 'UTF8')), 'hex'), 1, 12))::bit(48)::bigint % every $$;

create function dipwell_internal.spread(r dipwell.versions, name text, key text) returns dipwell.versions language plpgsql stable as $$
begin
    if r.spread then
        r.origin := dipwell_internal.key_offset(name, key, dipwell_internal.shortest(r));
    end if;
    return r;
end $$;

-- The window of a key at n, of a limit with a calendar.
create function dipwell_internal.window_at(lim int, number int, limit_name text, key text, n bigint) returns table (since bigint, till bigint) language sql stable as $$
    select dipwell_internal.calendar_boundary(v, k) + v.origin, dipwell_internal.calendar_boundary(v, k + 1) + v.origin
    from dipwell.versions r cross join lateral dipwell_internal.spread(r, limit_name, window_at.key) v cross join lateral dipwell_internal.tick(v, n) k
    where r.limit_id = lim and r.number = window_at.number & 1048575
$$;

create function dipwell_internal.convert_used(used bigint, was dipwell.versions, r dipwell.versions) returns bigint language plpgsql stable as $$
begin
    return case when used = 0 or r.policy = 'reset' then 0
        when r.policy = 'proportional' and was.cap > 0 then least(dipwell_internal.mul_div(used, r.cap, was.cap, true), r.max_used)
        else least(dipwell_internal.mul_div(used, r.unit, was.unit, true), r.max_used) end;
end $$;

-- Units used at t under the rule of a key in units of the next version, rounded up. If both
-- are sliding windows with the same boundaries, each window's count is converted by itself.
create function dipwell_internal.convert_row(used bigint, t bigint, was dipwell.versions, r dipwell.versions) returns bigint language sql stable as
$$ select case when was.sliding and r.sliding and was.every = r.every and was.spread = r.spread and (r.spread or was.origin = r.origin)
    then (dipwell_internal.convert_used(used >> 26, was, r) << 26) + dipwell_internal.convert_used(used & 67108863, was, r)
    else dipwell_internal.convert_used(dipwell_internal.counted(was, used, t, true), was, r) end $$;

-- The largest charge of a key that the rule decides, in tokens: that of the rule, of the
-- limit or of one of its plans. A charge does not name a plan.
create function dipwell_internal.most_charge(r dipwell.versions) returns bigint language sql stable as
$$ select greatest(r.max_charge, (select max((p.rule).max_charge) from dipwell.limits l join dipwell.plans p on p.limit_id = l.id and p.version = l.version where l.id = r.limit_id),
    (select v.max_charge from dipwell.limits l join dipwell.versions v on v.limit_id = l.id and v.number = l.version where l.id = r.limit_id)) $$;

-- parts is definition.fraction; for a charge, max_delay is how many tokens it may cost even
-- above max_charge; short is the units that must come back before the call would be allowed.
-- Verbs: 0 take, 1 check, 2 take_up_to, 3 reserve, 4 charge, 5 refund, 6 reset.
create function dipwell_internal.step(r dipwell.versions, used bigint, ts bigint, n bigint, verb int, cost bigint, max_delay bigint, parts bigint,
    out allowed boolean, out never boolean, out granted bigint, out before bigint, out after bigint, out t bigint,
    out retry bigint, out delay bigint, out short bigint) language plpgsql stable as $$
declare
    units bigint := case when cost > 9007199254740992 / r.unit then 9007199254740992 else cost * r.unit end;
    most  bigint := r.cap; -- units that may be used after the call
    ahead bigint := 0; -- units that must come back before the caller may act
    whole bigint; -- the shortest window
begin
    t := greatest(n, ts);
    before := dipwell_internal.used_at(r, used, ts, t);
    t := dipwell_internal.written_at(r, before, ts, t);
    never := false;
    granted := 0;
    after := before;
    delay := 0;
    short := 0;
    if r.sliding then
        select x.* into allowed, never, granted, after, retry from dipwell_internal.slide(r, before, t, n, verb, cost, max_delay) x;
        return;
    elsif verb = 6 then
        after := 0;
    elsif verb = 5 then
        after := greatest(before - units, 0);
    elsif verb = 4 then
        never := cost > r.max_charge and cost > coalesce(max_delay, 0) and cost > dipwell_internal.most_charge(r);
        if not never then
            granted := cost;
            after := least(before + units, greatest(r.max_used, before));
        end if;
    elsif verb = 2 and cost > 0 then
        never := r.unit > r.cap;
        short := greatest(before - (r.cap - r.unit), 0);
        if not never and short = 0 then
            granted := least(cost, (r.cap - before) / r.unit);
            after := before + granted * r.unit;
        end if;
    else
        if r.leaky and verb <> 2 or verb = 3 and cost > 0 then
            most := r.cap + r.debt;
        end if;
        never := units > most;
        if parts > 0 then
            units := least(dipwell_internal.mul_div(units, 1024, parts, true), most);
        end if;
        short := greatest(before - (most - units), 0);
        if not never and short = 0 then
            ahead := greatest(before - (r.cap - units), 0);
            if verb <> 1 then
                granted := cost;
                after := before + units;
            end if;
        end if;
    end if;
    allowed := not never and short = 0;
    if ahead > 0 then
        delay := dipwell_internal.wait(r, ahead, t, n);
    end if;
    if verb = 3 and not never and (delay > max_delay or max_delay is not null and not allowed) then
        whole := dipwell_internal.shortest(r);
        never := case when units <= r.cap then 0 else (units - r.cap + r.add - 1) / r.add * whole - whole + 1 end > max_delay;
        short := greatest(short, before - (r.cap - units) - least((max_delay + whole - 1) / whole, (r.max_used + r.add - 1) / r.add) * r.add);
        allowed := false;
        granted := 0;
        after := before;
        delay := 0;
    end if;
    retry := case when short > 0 and not never then dipwell_internal.wait(r, short, t, n) else 0 end;
end $$;

-- Raises the error for an invalid argument or setting, if reason, which begins with its field
-- and a colon, is not null.
create function dipwell_internal.wrong(reason text, limit_name text default null) returns void language plpgsql volatile as $$
begin
    if reason is not null then
        raise exception using errcode = 'invalid_parameter_value', constraint = split_part(reason, ': ', 1), message = coalesce('limit ' || limit_name || ': ', '') || reason;
    end if;
end $$;
