-- Adaptive limits, whose rates change. Go twins: store/adaptive.go, internal/adaptive.

create function dipwell_internal.adaptive_of(adaptive text, out floor bigint, out ceiling bigint, out latency bigint,
    out quantile numeric, out errors numeric, out length bigint) language plpgsql immutable as $$
declare
    s jsonb := (select jsonb_object_agg(split_part(x, '=', 1), split_part(x, '=', 2)) from unnest(string_to_array(adaptive, ';')) x);
begin
    if adaptive is not null then
        floor := s->>'floor';
        ceiling := s->>'ceiling';
        latency := dipwell_internal.parse_per(s->>'latency');
        quantile := s->>'quantile';
        errors := s->>'errors';
        length := coalesce(dipwell_internal.parse_per(s->>'window'), 1000000);
    end if;
end $$;
comment on function dipwell_internal.adaptive_of is
    'The settings in limits.adaptive. latency, and length, which is that of a window, are in µs.';

create function dipwell_internal.adaptive_text(limit_name text, adaptive jsonb) returns text language plpgsql immutable as $$
declare
    parts text[] := '{}';
    x     record;
    v     text;
    n     numeric;
begin
    if adaptive is null or adaptive = 'null' then
        return null;
    elsif jsonb_typeof(adaptive) <> 'object' then
        perform dipwell_internal.bad_limit(limit_name, 'adaptive', 'is not an object such as {"floor": 50, "ceiling": 500, "latency": "200ms"}');
    end if;
    for x in select o.key, o.value from jsonb_each_text(adaptive) o
            order by array_position(array['floor', 'ceiling', 'latency', 'quantile', 'errors', 'window'], o.key) loop
        v := x.value;
        continue when v is null;
        case when x.key in ('floor', 'ceiling') then
            if v !~ '^[1-9][0-9]{0,15}$' then
                perform dipwell_internal.bad_limit(limit_name, 'adaptive', format('%s: "%s" is not a whole number from 1 to 2^53-1', x.key, v));
            end if;
        when x.key in ('latency', 'window') then
            n := dipwell_internal.parse_offset(v);
            if n is null or n < 1 then
                perform dipwell_internal.bad_limit(limit_name, 'adaptive', format('%s: "%s" is not a length of time such as 200ms', x.key, v));
            end if;
            v := dipwell_internal.format_per(n::bigint);
        when x.key in ('quantile', 'errors') then
            if v !~ '^[0-9]{1,3}(\.[0-9]{1,9})?%?$' then
                n := 0;
            else
                n := rtrim(v, '%')::numeric / case when right(v, 1) = '%' then 100 else 1 end;
            end if;
            if n <= 0 or n >= 1 or n <> round(n, 6) then
                perform dipwell_internal.bad_limit(limit_name, 'adaptive', format('%s: "%s" is not a share between 0 and 1 with at most six decimals, such as 0.95 or 2%%', x.key, v));
            end if;
            v := trim_scale(n);
        else
            perform dipwell_internal.bad_limit(limit_name, 'adaptive', format('%s: unknown setting; it is one of floor, ceiling, latency, quantile, errors, window', x.key));
        end case;
        parts := parts || (x.key || '=' || v);
    end loop;
    return nullif(array_to_string(parts, ';'), '');
end $$;
comment on function dipwell_internal.adaptive_text is
    'The settings of an adaptive limit as text, as in limits.adaptive. Go twins: Adaptive.Set, Adaptive.String.';

create function dipwell_internal.check_adaptive(d dipwell.limits, period bigint) returns void language plpgsql stable as $$
declare
    a      record := dipwell_internal.adaptive_of(d.adaptive);
    reason text;
begin
    reason := case
        when d.algorithm <> 'token_bucket' then format('is for token buckets, not for algorithm %s', d.algorithm)
        when d.lease_us <> 0 then 'is not for a limit with a lease'
        when d.shards > 1 then 'is not for a limit with shards'
        when coalesce(a.floor, 0) not between 1 and d.rate then format('floor: %s is not between 1 and the rate, %s', coalesce(a.floor, 0), d.rate)
        when coalesce(a.ceiling, 0) not between d.rate and 9007199254740991 then format('ceiling: %s is not between the rate, %s, and 2^53-1', coalesce(a.ceiling, 0), d.rate)
        when (a.ceiling - 1) / 1000 >= a.floor then format('ceiling: %s is more than 1000 times the floor, %s', a.ceiling, a.floor)
        when a.latency is null and a.errors is null then 'latency: a target is missing: give latency, errors, or both'
        when a.latency not between 1 and 3600000000 then format('latency: %s is not a whole number of microseconds from 1us to 1h', dipwell_internal.format_per(a.latency))
        when a.quantile is not null and a.latency is null then 'quantile: needs a latency'
        when a.quantile not between 0.5 and 0.999999 then format('quantile: %s is not between 0.5 and 0.999999, in whole millionths', a.quantile)
        when a.errors not between 0.000001 and 0.5 then format('errors: %s is not between 0.000001 and 0.5, in whole millionths', a.errors)
        when a.length not between 100000 and 3600000000 then format('window: %s is not a whole number of microseconds from 100ms to 1h', dipwell_internal.format_per(a.length))
        end;
    if reason is not null then
        perform dipwell_internal.bad_limit(d.name, 'adaptive', reason);
    elsif period > 9007199254740991 / 1024 then
        perform dipwell_internal.bad_limit(d.name, 'per', format('%s is too long for an adaptive limit', dipwell_internal.format_per(period)));
    end if;
end $$;
comment on function dipwell_internal.check_adaptive is
    'Checks the settings of an adaptive limit whose other numbers are valid. Go twin: compiler.checkAdaptive.';

create function dipwell_internal.target_of(d dipwell.limits, out ceiling bigint, out floor_level bigint, out base_level bigint,
    out length bigint, out slow bigint, out failed bigint, out keep bigint, out unit bigint, out add bigint) language plpgsql stable as $$
declare
    a record := dipwell_internal.adaptive_of(d.adaptive);
    r dipwell.versions;
begin
    ceiling := a.ceiling;
    floor_level := dipwell_internal.mul_div(a.floor, 1024, a.ceiling, true);
    base_level := greatest(dipwell_internal.mul_div(d.rate, 1024, a.ceiling, false), floor_level);
    length := a.length;
    slow := case when a.latency is null then -1 else round((1 - coalesce(a.quantile, 0.95)) * 1000000) end;
    failed := coalesce(round(a.errors * 1000000), -1);
    select * into r from dipwell.versions v where v.limit_id = d.id and v.number = d.version;
    unit := r.unit;
    add := r.add;
    keep := dipwell_internal.mul_div(r.cap + r.debt, 1, floor_level * r.add, true);
end $$;
comment on function dipwell_internal.target_of is
    'The target of an adaptive limit and the bounds of its level; keep, unit and add are null before the limit is stored. Go twin: adaptive.Config.';

create function dipwell_internal.first_levels(d dipwell.limits) returns bigint[] language plpgsql stable as $$
begin
    return (select array[t.floor_level, 0, t.base_level, 0] from dipwell_internal.target_of(d) t);
end $$;
comment on function dipwell_internal.first_levels is
    'versions.levels of a new version of an adaptive limit. Go twin: Config.Begin.';

create function dipwell_internal.begin_pace(d dipwell.limits) returns void language plpgsql volatile as $$
begin
    delete from dipwell.samples x where x.limit_id = d.id;
    delete from dipwell.paces x where x.limit_id = d.id;
    if d.adaptive is not null then
        insert into dipwell.paces (limit_id, begun, count, slow, failed, cut, reason, changed, drifts)
            values (d.id, 0, 0, 0, 0, false, 'defined', 0, 0);
    end if;
end $$;
comment on function dipwell_internal.begin_pace is
    'Resets the state of an adaptive limit, for a new version.';

create function dipwell_internal.level_index(levels bigint[], col int, x bigint) returns int language plpgsql immutable as $$
declare
    low    int := 0;
    high   int := cardinality(levels) / 3;
    middle int;
begin
    while low < high loop
        middle := (low + high + 1) / 2;
        if levels[3 * middle + col] <= x then
            low := middle;
        else
            high := middle - 1;
        end if;
    end loop;
    return low;
end $$;
comment on function dipwell_internal.level_index is
    'The index, from 1, of the last change of which a column is at most x; 0 if there is none. Columns: -1 time, 0 level, 1 ticks.';

create function dipwell_internal.level_at(levels bigint[], x bigint) returns bigint language plpgsql immutable as $$
declare
    i int := dipwell_internal.level_index(levels, -1, x);
begin
    return case i when 0 then levels[1] else levels[3 * i] end;
end $$;
comment on function dipwell_internal.level_at is
    'The level at x. Go twin: History.LevelAt.';

create function dipwell_internal.level_tick(levels bigint[], x bigint) returns bigint language plpgsql immutable as $$
declare
    i int := dipwell_internal.level_index(levels, -1, x);
begin
    if i = 0 then
        return levels[4] - levels[1] * (levels[2] - x);
    end if;
    return levels[3 * i + 1] + levels[3 * i] * (x - levels[3 * i - 1]);
end $$;
comment on function dipwell_internal.level_tick is
    'The number of the last tick at or before x. Go twin: History.Tick.';

create function dipwell_internal.level_boundary(levels bigint[], k bigint) returns bigint language plpgsql immutable as $$
declare
    i int := dipwell_internal.level_index(levels, 1, k - 1);
begin
    if i = 0 then
        return levels[2] - (levels[4] - k) / levels[1];
    end if;
    return levels[3 * i - 1] + (k - levels[3 * i + 1] + levels[3 * i] - 1) / levels[3 * i];
end $$;
comment on function dipwell_internal.level_boundary is
    'The first time at which the number of the last tick is at least k. Go twin: History.Boundary.';

create function dipwell_internal.set_level(levels bigint[], n bigint, level bigint, keep bigint) returns bigint[] language plpgsql immutable as $$
declare
    i    int := dipwell_internal.level_index(levels, -1, n);
    kept bigint[];
    k    int;
begin
    if i = 0 then -- the clock is back before the first change, which stays the bound of the floor
        i := 1;
        n := levels[2];
    end if;
    kept := levels[1:3 * i + 1];
    if kept[3 * i] = level then
        null;
    elsif kept[3 * i - 1] = n then
        kept[3 * i] := level;
    else
        kept := kept || array[n, level, dipwell_internal.level_tick(levels, n)];
        i := i + 1;
    end if;
    k := greatest(0, i - 256);
    while k + 1 < i and kept[3 * k + 5] <= n - keep loop
        k := k + 1;
    end loop;
    return kept[1:1] || kept[3 * k + 2:];
end $$;
comment on function dipwell_internal.set_level is
    'The levels with a new one from n on. Drops changes older than keep, which only full rows would need, and all but the last 256. Go twin: History.set.';

create function dipwell_internal.drift_level(levels bigint[], since bigint, length bigint, base bigint) returns bigint[] language plpgsql immutable as $$
declare
    level bigint := levels[cardinality(levels) - 1];
begin
    while level <> base loop
        level := case when level > base then greatest(level - 20, base) else least(level + 20, base) end;
        levels := levels || array[since, level, dipwell_internal.level_tick(levels, since)];
        since := since + length;
    end loop;
    return levels;
end $$;
comment on function dipwell_internal.drift_level is
    'The levels, extended so that the level moves to base by 2 % of the ceiling per window. Go twin: History.drift.';

create function dipwell_internal.log_factorial(n bigint) returns float8 language plpgsql immutable as $$
declare
    x   float8 := n + 1;
    sum float8 := 0;
begin
    if n < 32 then
        for i in 2..n loop
            sum := sum + ln(i::float8);
        end loop;
        return sum;
    end if;
    return (x - 0.5) * ln(x) - x + 0.91893853320467274178 + 1 / (12 * x) - 1 / (360 * x * x * x) + 1 / (1260 * x * x * x * x * x);
end $$;
comment on function dipwell_internal.log_factorial is
    'The natural logarithm of n!, by the first terms of Stirling''s series. The error is below 10^-13.';

create function dipwell_internal.unlikely_many(k bigint, n bigint, millionths bigint) returns boolean language plpgsql immutable as $$
declare
    p    float8 := millionths::float8 / 1000000;
    term float8;
    sum  float8;
begin
    if k <= p * n then
        return false; -- about half of the distribution lies beyond
    elsif p = 0 then
        return true;
    end if;
    term := dipwell_internal.log_factorial(n) - dipwell_internal.log_factorial(k) - dipwell_internal.log_factorial(n - k) + k * ln(p) + (n - k) * ln(1 - p);
    if term < -600 then
        return true; -- exp would report an underflow
    end if;
    term := exp(term);
    sum := term;
    while k < n and sum < 0.01 and term > sum * 1e-9 loop -- beyond its mean each term is less than the one before
        term := term * ((n - k)::float8 / (k + 1) * p / (1 - p));
        sum := sum + term;
        k := k + 1;
    end loop;
    return sum < 0.01;
end $$;
comment on function dipwell_internal.unlikely_many is
    'Whether it is unlikely, with a probability below 1 %, that at least k of n calls have a property that each has with a probability of millionths. Go twin: unlikelyMany.';

create function dipwell_internal.end_window(d dipwell.limits, p dipwell.paces, seen dipwell.samples, n bigint) returns dipwell.paces language plpgsql volatile as $$
declare
    c      record := dipwell_internal.target_of(d);
    list   bigint[] := (select v.levels from dipwell.versions v where v.limit_id = d.id and v.number = d.version);
    level  bigint := dipwell_internal.level_at(list, n);
    new_level   bigint := level;
    cut    boolean := false;
    why    text := case when c.failed >= 0 and dipwell_internal.unlikely_many(seen.failed, seen.count, c.failed) then 'errors'
        when c.slow >= 0 and dipwell_internal.unlikely_many(seen.slow, seen.count, c.slow) then 'latency' end;
    bad    bigint := case why when 'errors' then seen.failed else seen.slow end;
    was    bigint := case why when 'errors' then p.failed else p.slow end;
begin
    if seen.count < 20 then
        null;
    elsif why is not null then
        -- The rate is not lowered while fewer calls miss the target than before: the
        -- calls that waited since the last cut are then being served.
        cut := not p.cut and not (was > 0 and dipwell_internal.unlikely_many(seen.count - bad, seen.count, 1000000 - trunc(was::float8 / p.count * 1000000)::bigint));
        if cut then
            new_level := greatest(c.floor_level, level * 4 / 5);
        end if;
    elsif greatest(seen.taken, seen.count)::float8 * c.unit >= 0.7::float8 * (level::float8 * least(n - p.begun, 2 * c.length)) * c.add then
        new_level := least(1024, level + 20);
        why := 'used';
    end if;
    select x.reason, x.changed into p.reason, p.changed from dipwell_internal.last_change(p, list, n) x;
    if new_level <> level then
        p.reason := why;
        p.changed := n;
    end if;
    p.cut := cut;
    p.drifts := n + 10 * c.length;
    list := dipwell_internal.drift_level(dipwell_internal.set_level(list, n, new_level, c.keep), p.drifts, c.length, c.base_level);
    update dipwell.versions v set levels = list where v.limit_id = d.id and v.number = d.version;
    return p;
end $$;
comment on function dipwell_internal.end_window is
    'Sets the level at the end of a window that has samples. Go twin: Config.end.';

create function dipwell_internal.last_change(p dipwell.paces, levels bigint[], n bigint, out reason text, out changed bigint) language plpgsql immutable as $$
declare
    i int;
begin
    reason := p.reason;
    changed := p.changed;
    if p.drifts <> 0 and p.drifts <= n then
        i := dipwell_internal.level_index(levels, -1, n);
        if i > 0 and levels[3 * i - 1] >= p.drifts then
            reason := 'unobserved';
            changed := levels[3 * i - 1];
        end if;
    end if;
end $$;
comment on function dipwell_internal.last_change is
    'Why and when the level last changed before n. Go twin: State.Last.';

-- Samples are inserted, so that a transaction that observes does not block others. The
-- first sample after the end of a window adds all of them up and computes the new rate.
-- Until its transaction ends, others keep inserting, and the rate does not change.
create function dipwell_internal.add_samples(limit_name text, count bigint, slow bigint, failed bigint, taken bigint, at bigint default null)
returns table (version int, levels bigint[], reason text, changed bigint, drifts bigint, begun bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    most   constant bigint := 1099511627776;
    l      dipwell.limits;
    p      dipwell.paces;
    own    dipwell.samples;
    seen   dipwell.samples;
    length bigint;
    n      bigint := coalesce(at, dipwell_internal.now_us());
begin
    select * into l from dipwell.limits x where x.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', message = format('limit_name: unknown limit "%s"', limit_name);
    elsif l.adaptive is null then
        return;
    end if;
    length := (dipwell_internal.adaptive_of(l.adaptive)).length;
    own.limit_id := l.id;
    own.count := least(greatest(add_samples.count, 0), most);
    own.slow := least(greatest(add_samples.slow, 0), own.count);
    own.failed := least(greatest(add_samples.failed, 0), own.count);
    own.taken := least(greatest(add_samples.taken, 0), most);
    select * into p from dipwell.paces x where x.limit_id = l.id;
    if p.begun = 0 or n < p.begun or n - p.begun >= length then
        begin
            select * into p from dipwell.paces x where x.limit_id = l.id for update skip locked;
        exception when serialization_failure then
            p := null; -- another transaction has stepped since the snapshot of this one
        end;
        if p.begun = 0 or n < p.begun or n - p.begun >= length then
            with gone as (delete from dipwell.samples x where x.limit_id = l.id returning x.*)
                select l.id, least(coalesce(sum(g.count), 0), most), least(coalesce(sum(g.slow), 0), most), least(coalesce(sum(g.failed), 0), most), least(coalesce(sum(g.taken), 0), most)
                into seen from gone g;
            if p.begun = 0 or n < p.begun or seen.count = 0 and n - p.begun >= 2 * length then
                if n >= p.begun then -- a window without samples has passed
                    p.cut := false;
                    p.count := 0;
                    p.slow := 0;
                    p.failed := 0;
                end if;
                p.begun := n;
            else
                seen.count := least(seen.count + own.count, most);
                seen.slow := least(seen.slow + own.slow, seen.count);
                seen.failed := least(seen.failed + own.failed, seen.count);
                seen.taken := least(seen.taken + own.taken, most);
                own := null;
                if seen.count > 0 then
                    p := dipwell_internal.end_window(l, p, seen, n);
                else
                    p.cut := false;
                end if;
                p.begun := n;
                p.count := seen.count;
                p.slow := seen.slow;
                p.failed := seen.failed;
            end if;
            update dipwell.paces x set (begun, count, slow, failed, cut, reason, changed, drifts)
                = (p.begun, p.count, p.slow, p.failed, p.cut, p.reason, p.changed, p.drifts) where x.limit_id = l.id;
        end if;
    end if;
    if own.count > 0 or own.taken > 0 then
        insert into dipwell.samples select own.*;
    end if;
    return query select v.number, v.levels, x.reason, x.changed, x.drifts, x.begun from dipwell.versions v join dipwell.paces x on x.limit_id = v.limit_id
        where v.limit_id = l.id and v.number = l.version;
end $$;
comment on function dipwell_internal.add_samples is
    'Adds an observation of the calls behind an adaptive limit, and sets the rate if a window is over. Returns the state of the limit, or nothing if the limit is not adaptive. Go twin: Config.Add.';

create function dipwell.observe(limit_name text, latency_us bigint, ok boolean default true, count bigint default 1) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    l dipwell.limits;
    a record;
    s record;
begin
    perform dipwell_internal.limit_id(limit_name, 'limit_name');
    select * into l from dipwell.limits x where x.name = limit_name;
    if l.adaptive is null then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'limit_name', message = format('limit_name: %s is not adaptive', limit_name);
    elsif latency_us is null or latency_us < 0 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'latency_us', message = format('latency_us: %s is negative or null', coalesce(latency_us::text, 'null'));
    elsif ok is null then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'ok', message = 'ok: is null';
    elsif count is null or count not between 1 and 1099511627776 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'count', message = format('count: %s is not between 1 and 2^40', coalesce(count::text, 'null'));
    end if;
    a := dipwell_internal.adaptive_of(l.adaptive);
    select * into s from dipwell_internal.add_samples(limit_name, count, case when latency_us > a.latency then count else 0 end, case when ok then 0 else count end, 0);
    return dipwell_internal.mul_div(dipwell_internal.level_at(s.levels, dipwell_internal.now_us()), a.ceiling, 1024, false);
end $$;
comment on function dipwell.observe is
    'Reports how long calls behind an adaptive limit took, in µs, and whether they succeeded. count is the number of such calls. Returns the present rate, in tokens per period. Each call inserts a row, so add calls up and observe a few times per window.';
