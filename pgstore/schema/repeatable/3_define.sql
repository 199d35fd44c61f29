
-- == Definitions of limits

-- Keeps others from changing a limit until this transaction ends; with shared, only from
-- changing its parent and name. Changes of different limits do not wait for each other,
-- however long their transactions stay open. The number is "dipw" in ASCII.
create function dipwell_internal.lock_limit(limit_name text, shared boolean default false) returns void language plpgsql volatile as $$
begin
    if shared then
        perform pg_advisory_xact_lock_shared(1684631671, hashtext(limit_name));
    else
        perform pg_advisory_xact_lock(1684631671, hashtext(limit_name));
    end if;
end $$;

-- Tells programs that limits have changed; returns by how much the revision has changed.
create function dipwell_internal.note_change(out change bigint) language plpgsql volatile as $$
begin
    change := 1 + (random() * 2147483646)::bigint;
    insert into dipwell.revision (n) values (change);
    notify dipwell;
end $$;

-- Stores a compiled definition, in a new version if its rule has changed; returns the change
-- of the revision. The owner "call site" defines a limit that does not exist, and changes
-- none.
create function dipwell_internal.put_limit(d dipwell.limits, r dipwell.versions, at bigint default null) returns bigint language plpgsql volatile as $$
declare
    old  dipwell.limits;
    was  dipwell.versions;
    n    bigint;
    same boolean := false;
begin
    perform dipwell_internal.lock_limit(d.name);
    d.rate := coalesce(d.rate, 0); -- a concurrency limit has none
    d.per := coalesce(d.per, '');
    r.per := coalesce(r.per, '');
    n := coalesce(at, dipwell_internal.now_us());
    select * into old from dipwell.limits x where x.name = d.name;
    if found and d.owner = 'call site' then
        return 0;
    end if;
    perform dipwell_internal.check_parents(d, old);
    if old.id is not null then
        d.id := old.id;
        d.overridden := old.overridden;
        perform dipwell_internal.check_owner(d.name, old.owner, d.owner);
        if (old.algorithm = 'concurrency') <> (d.algorithm = 'concurrency') then
            perform dipwell_internal.wrong(format('algorithm: %s cannot become %s, because what is used means something else; drop the limit first', old.algorithm, d.algorithm), d.name);
        end if;
        select * into was from dipwell.versions v where v.limit_id = old.id and v.number = old.version;
        r.limit_id := old.id;
        r.number := old.version;
        r.since := was.since;
        same := dipwell_internal.same_rule(was, r) and (was.per, coalesce(was.start, '')) = (r.per, coalesce(r.start, ''))
            and old.plans is not distinct from d.plans
            and old.shared = d.shared -- programs must not use the keys of the version before
            and coalesce(old.block_us, 0) = coalesce(d.block_us, 0)
            and greatest(old.shards, 1) = greatest(d.shards, 1); -- rows of a version have as many shards
        -- Plans and overrides depend on the settings as written, not on the rule compiled from
        -- them.
        if same and row(old.rate, old.burst, old.max_debt, coalesce(old.lease_us, 0)) is distinct from row(d.rate, d.burst, d.max_debt, coalesce(d.lease_us, 0)) then
            select x.overridden into d.overridden from dipwell.limits x where x.id = old.id for no key update; -- after who sets the first override
            same := d.plans is null and d.overridden is null;
        end if;
        if not same then
            if old.version = 1048575 then
                raise exception using errcode = 'program_limit_exceeded', constraint = 'version',
                    message = format('limit %s: version: was changed 1048575 times; drop it and define it again', d.name);
            end if;
            r.number := old.version + 1;
            r.since := greatest(n, was.since);
            if greatest(old.shards, 1) <> greatest(d.shards, 1) then
                perform dipwell_internal.wrong(format('shards: cannot change while keys have overrides, such as "%s"; end them first', dipwell_internal.key_of(old.shards, x.key)), d.name)
                    from (select min(o.key) as key from dipwell.key_overrides o where o.limit_id = old.id and (o.until > n) is not false) x where x.key is not null;
                r.policy := 'reset'; -- the keys of rows name other shards now
            end if;
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
    d.ttl_us := coalesce(d.ttl_us, 0);
    d.on_expire := coalesce(d.on_expire, 'give_back');
    d.lease_us := nullif(d.lease_us, 0);
    d.adaptive := nullif(d.adaptive, '');
    d.block_us := nullif(d.block_us, 0);
    d.overridden := case when d.block_us > 0 then true else d.overridden end;
    perform dipwell_internal.wrong(format('block: is not for a limit with plans that callers may name; plan %s needs callable: false', p.name), d.name)
        from dipwell_internal.plans_of(d.plans) p where d.block_us > 0 and p.callable <> 'false';
    d.parts := coalesce(nullif(d.parts, 0), case when d.parent is null and exists (select from dipwell.limits x where x.parent = d.name) then 0 end);
    d.plain := r.every > 0 and not r.leaky and not r.sliding and d.algorithm <> 'concurrency' and num_nonnulls(d.adaptive, d.block_us) = 0 and greatest(d.shards, 1) = 1;
    d.spread := d.plain and r.spread;
    d.plain := d.plain and not r.spread and r.origin >= 0;
    d.grid := case when r.every > 0 then r.origin - r.every * (9007199254740992 / r.every + 1) else 0 end;
    d.ticks := (r.max_used + r.add - 1) / r.add;
    if d.id is null then
        insert into dipwell.limits overriding user value select d.* returning id into d.id;
        r.limit_id := d.id;
    elsif old = d then
        return 0;
    else
        update dipwell.limits x set (algorithm, rate, per, burst, max_debt, max_charge, start, on_change, mode, auth, retry_jitter,
                on_store_error, timeout_us, list_keys, usage, plans, parent, parts, ttl_us, on_expire, lease_us, shards, adaptive, block_us, overridden, owner, version, unit, every, add, cap, grid, ticks, plain, spread, shared)
            = (d.algorithm, d.rate, d.per, d.burst, d.max_debt, d.max_charge, d.start, d.on_change, d.mode, d.auth, d.retry_jitter,
                d.on_store_error, d.timeout_us, d.list_keys, d.usage, d.plans, d.parent, d.parts, d.ttl_us, d.on_expire, d.lease_us, d.shards, d.adaptive, d.block_us, d.overridden, d.owner, d.version, d.unit, d.every, d.add, d.cap, d.grid, d.ticks, d.plain, d.spread, d.shared)
            where x.id = d.id;
    end if;
    if not same then
        r.settings := coalesce(r.settings, dipwell_internal.settings_of(d));
        insert into dipwell.versions select r.*;
        perform dipwell_internal.put_plans(d, r);
        if old.id is not null then
            perform dipwell_internal.check_fit(d, r, n);
        end if;
    end if;
    perform dipwell_internal.mark_parent(x) from unnest(array[old.parent, d.parent]) x where old.parent is distinct from d.parent;
    return dipwell_internal.note_change();
end $$;

-- Raises an error that names the first key whose override does not fit a new version of its
-- limit. Overrides with the same settings are compiled once. Whoever sets an override keeps
-- others from this check until the transaction ends.
create function dipwell_internal.check_fit(d dipwell.limits, r dipwell.versions, n bigint) returns void language plpgsql volatile as $$
declare
    x      record;
    o      dipwell.key_overrides;
    reason text;
begin
    perform dipwell_internal.lock_limit(d.name || chr(1));
    for x in select min(k.key) as key, k.o as settings from (
            select y.key, jsonb_strip_nulls(jsonb_build_object('plan', y.plan, 'rate', y.rate, 'per', y.per, 'burst', y.burst, 'start', y.start,
                    'under', case when y.under is not null then jsonb_build_object('plan', y.under->'plan', 'rate', y.under->'rate', 'per', y.under->'per', 'burst', y.under->'burst', 'start', y.under->'start') end)) as o
                from dipwell.key_overrides y where y.limit_id = d.id and (y.until is null or y.until > n)
            union all select y.key, jsonb_strip_nulls(jsonb_build_object('plan', y.under->'plan', 'rate', y.under->'rate', 'per', y.under->'per', 'burst', y.under->'burst', 'start', y.under->'start'))
                from dipwell.key_overrides y where y.limit_id = d.id and y.under is not null) k
            group by 2 order by 1 loop
        o := jsonb_populate_record(null::dipwell.key_overrides, x.settings);
        o.limit_id := d.id;
        begin
            perform dipwell_internal.compile_override(d, o, r);
        exception when invalid_parameter_value or undefined_object then
            get stacked diagnostics reason = message_text;
            reason := case when sqlstate = '42704' then format('plans: plan %s is missing, and an override gives it', o.plan)
                else replace(reason, 'limit ' || d.name || ': plans: plan override: ', '') end;
            perform dipwell_internal.wrong(format('%s (the override of key "%s", which must be changed or ended before)', reason, dipwell_internal.key_of(d.shards, x.key)), d.name);
        end;
    end loop;
end $$;

-- Raises an error if a limit may not have its parent, algorithm or shards in the tree it is
-- in. A limit is locked while it is changed. Whoever gives it a parent also locks the limits
-- above it, so that two programs cannot make a circle together, and a parent is not dropped
-- meanwhile. Whoever takes it from its parent waits for others who give that parent a child.
create function dipwell_internal.check_parents(d dipwell.limits, old dipwell.limits) returns void language plpgsql volatile as $$
declare
    child  dipwell.limits := d;
    parent dipwell.limits;
    linked boolean := old.id is null or old.parent is distinct from d.parent or old.algorithm <> d.algorithm or d.shards > 1 or d.block_us > 0;
    levels int := 1;
    x      record;
begin
    if old.parent is distinct from d.parent then
        perform dipwell_internal.lock_limit(old.parent);
    end if;
    while child.parent is not null loop
        if linked then
            perform dipwell_internal.lock_limit(child.parent, shared => true);
        end if;
        select * into parent from dipwell.limits l where l.name = child.parent;
        perform dipwell_internal.wrong(format('block: limit %s has one, so it cannot be a parent: it would block the keys of others', parent.name), d.name) where parent.block_us > 0;
        perform dipwell_internal.wrong('parent: ' || case
            when child.parent = d.name then format('limit %s has this limit above it, so it cannot be its parent', d.parent)
            when parent.id is null and levels = 1 then format('there is no limit %s', d.parent)
            when parent.id is null then format('limit %s, above it, has a parent that does not exist, %s', child.name, child.parent)
            when levels = 4 then 'has more than 4 levels with it'
            when parent.adaptive is not null then format('limit %s is adaptive, so it cannot be a parent', parent.name)
            when parent.algorithm = 'sliding_window' then format('limit %s is a sliding window, so it cannot be a parent', parent.name)
            when parent.shards > 1 then format('limit %s has shards, so it cannot be a parent', parent.name)
            when (parent.algorithm = 'concurrency') <> (child.algorithm = 'concurrency') then
                format('a concurrency limit and its parent both are one; %s is a %s, %s a %s', child.name, child.algorithm, parent.name, parent.algorithm)
            end, d.name);
        child := parent;
        levels := levels + 1;
    end loop;
    if old.id is null or not linked and d.adaptive is null then
        return;
    end if;
    for x in with recursive below as (
            select l.name, l.algorithm, 1 as n from dipwell.limits l where l.parent = d.name
            union all select l.name, l.algorithm, b.n + 1 from below b join dipwell.limits l on l.parent = b.name where b.n < 4)
        select * from below order by name loop
        perform dipwell_internal.wrong(case
            when x.n + levels > 4 then format('parent: limit %s would be the lowest of %s levels; at most 4', x.name, x.n + levels)
            when x.n > 1 then null
            when d.adaptive is not null then format('adaptive: it is the parent of limit %s, and an adaptive limit cannot be one', x.name)
            when (x.algorithm = 'concurrency') <> (d.algorithm = 'concurrency') then
                format('algorithm: it is the parent of limit %s; a concurrency limit and its parent both are one', x.name)
            when d.algorithm = 'sliding_window' then format('algorithm: it is the parent of limit %s, and a sliding window cannot be one', x.name)
            when d.block_us > 0 then format('block: is not for the parent of limit %s: it would block the keys of others', x.name)
            when d.shards > 1 then format('shards: is not for the parent of limit %s', x.name)
            end, d.name);
    end loop;
end $$;

-- Sets limits.parts of a topmost parent that got its first child or lost its last.
create function dipwell_internal.mark_parent(limit_name text) returns void language sql volatile as $$
    update dipwell.limits l set parts = case when p.is_parent then 0 end
        from (select exists (select from dipwell.limits x where x.parent = limit_name) as is_parent) p
        where l.name = limit_name and l.parent is null and l.parts is not distinct from case when not p.is_parent then 0 end
$$;

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

create function dipwell_internal.other_owner(limit_name text, owner text) returns void language plpgsql immutable as $$
begin
    raise exception using errcode = 'insufficient_privilege', constraint = 'owner', detail = owner,
        message = format('limit %s belongs to %s and can only be changed there', limit_name, case split_part(split_part(owner, ' ', 1), ':', 1)
            when 'code' then 'a program''s code or flags'
            when 'file' then 'the configuration file' || coalesce(' of owner ' || nullif(split_part(split_part(owner, ' ', 1), ':', 2), ''), '')
            when 'rls' then 'the descriptors of the RateLimitService' when 'api' then 'the API' when 'sql' then 'SQL' else owner end);
end $$;

create function dipwell_internal.drop_limit(limit_name text, by_owner text, at bigint default null) returns void language plpgsql volatile as $$
declare
    old   dipwell.limits;
    child text;
begin
    perform dipwell_internal.wrong(case when limit_name is null then 'name: is missing' end);
    perform dipwell_internal.lock_limit(limit_name);
    select * into old from dipwell.limits x where x.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', constraint = 'name', message = format('name: unknown limit "%s"', limit_name);
    end if;
    if split_part(old.owner, ' ', 1) <> split_part(by_owner, ' ', 1) then
        perform dipwell_internal.other_owner(limit_name, old.owner);
    end if;
    perform dipwell_internal.lock_limit(old.parent);
    select min(x.name) into child from dipwell.limits x where x.parent = limit_name;
    perform dipwell_internal.wrong(format('parent: it is the parent of limit %s, which must be dropped or changed first', child), limit_name) where child is not null;
    -- Parts for other limits stay until they are due. If this part is missing, nobody can
    -- cancel them. A hold that has expired is settled to the limit that has the name then.
    delete from dipwell.reservations x where x.limit_id = old.id;
    update dipwell.hold_parts x set live = false, reset = x.reset or x.live and x.till > coalesce(at, dipwell_internal.now_us()), due = dipwell_internal.hold_gone(x),
        dropped = limit_name where x.limit_id = old.id;
    delete from dipwell.limits x where x.id = old.id;
    perform dipwell_internal.mark_parent(old.parent);
    perform dipwell_internal.note_change();
end $$;

create function dipwell_internal.name_error(field text, name text) returns text language sql stable as $$
    select field || ': ' || case when name = '' then 'is missing'
        when octet_length(name) > 128 then format('has %s bytes; at most 128', octet_length(name))
        when name ~ '[^ -~]' or name ~ '^ | $' then format('"%s" is not printable ASCII without spaces at its ends', name) end
$$;

-- The largest number of units that is counted exactly and comes back within 2^53-1 µs.
create function dipwell_internal.most_units(every bigint, add bigint) returns bigint language sql immutable as
$$ select case when 9007199254740991 / every - 1 < 1 then 0
    else dipwell_internal.mul_div(9007199254740991 / every - 1, add, 1, false) end $$;

-- Formats a period in µs, or -months, as 250ms, 1d, 3mo.
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

-- The µs in a sum of whole numbers with units, such as 1d12h; null if the text is not one.
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

-- The µs of an interval, or -months; 0 if it is both or too long.
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

-- The µs of a period as format_per writes it, or -months.
create function dipwell_internal.parse_per(s text) returns bigint language sql immutable as
$$ select case when s is null then null when s ~ '^[0-9]{1,4}mo$' then -left(s, -2)::bigint when s ~ '^[0-9]{1,3}y$' then -12 * left(s, -1)::bigint else dipwell_internal.parse_offset(s) end $$;

create function dipwell_internal.settings_of(d dipwell.limits) returns text language sql stable as
$$ select jsonb_strip_nulls(jsonb_build_object('name', d.name, 'algorithm', d.algorithm, 'rate', nullif(d.rate, 0)::text, 'per', nullif(nullif(d.per, '0s'), ''), 'burst', d.burst::text,
    'max_debt', case d.max_debt when -1 then 'unlimited' else d.max_debt::text end, 'max_charge', d.max_charge::text, 'start', nullif(d.start, ''), 'plans', d.plans,
    'lease', dipwell_internal.format_per(nullif(d.lease_us, 0)), 'shards', nullif(d.shards, 0)::text, 'adaptive', d.adaptive))::text $$;

-- All settings of a limit that define can set, for audit.
create function dipwell_internal.defined(d dipwell.limits) returns text language sql stable as
$$ select (dipwell_internal.settings_of(d)::jsonb || jsonb_strip_nulls(jsonb_build_object('mode', nullif(d.mode, 'enforce'), 'on_change', nullif(d.on_change, 'keep'),
    'parent', nullif(d.parent, ''), 'parts', nullif(d.parts, 0)::text, 'shared', case when d.shared then 'true' end, 'usage', case when d.usage then 'true' end, 'ttl', dipwell_internal.format_per(nullif(d.ttl_us, 0)), 'block', dipwell_internal.format_per(d.block_us), 'on_expire', nullif(d.on_expire, 'give_back'))))::text $$;

create function dipwell_internal.limit_of(s jsonb) returns dipwell.limits language sql stable as $$
    select jsonb_populate_record(null::dipwell.limits, s || jsonb_build_object('algorithm', coalesce(s->>'algorithm', 'token_bucket'),
        'max_debt', case s->>'max_debt' when 'unlimited' then '-1' else s->>'max_debt' end, 'lease_us', dipwell_internal.parse_offset(s->>'lease'),
        'on_change', 'keep', 'mode', 'enforce'))
$$;

-- The rule of a plan or an override, with the given number, for the version base of a limit.
-- A setting that is null is the limit's.
create function dipwell_internal.compile_variant(d dipwell.limits, base dipwell.versions, number int, plan text, rate bigint, per bigint, burst bigint, max_debt bigint)
returns dipwell.versions language plpgsql stable as $$
declare
    r      dipwell.versions;
    reason text;
    prefix text := 'limit ' || d.name || ': ';
    period bigint := dipwell_internal.parse_per(d.per);
begin
    if per <> period and d.algorithm in ('fixed_window', 'interval', 'concurrency', 'sliding_window') then
        perform dipwell_internal.wrong('per: a plan of a window or an interval keeps the period of the limit', d.name);
    end if;
    d.rate := coalesce(rate, d.rate);
    d.burst := coalesce(burst, d.burst);
    d.max_debt := coalesce(max_debt, d.max_debt);
    r := dipwell_internal.compile(d, coalesce(per, period), nullif(base.every, 0));
    r.limit_id := base.limit_id;
    r.number := number;
    return r;
exception when invalid_parameter_value then
    get stacked diagnostics reason = message_text;
    perform dipwell_internal.wrong(format('plans: plan %s: %s', plan, case when starts_with(reason, prefix) then substr(reason, length(prefix) + 1) else reason end), d.name);
end $$;

create function dipwell_internal.plans_of(plans text)
returns table (i int, name text, rate bigint, per text, burst bigint, max_debt bigint, mode text, callable text) language sql immutable as $$
    select p.at::int, split_part(p.plan, ':', 1), (s->>'rate')::bigint, s->>'per', (s->>'burst')::bigint,
        case s->>'max_debt' when 'unlimited' then -1 else (s->>'max_debt')::bigint end, s->>'mode', coalesce(s->>'callable', 'true')
    from unnest(string_to_array(plans, '|')) with ordinality p (plan, at)
    cross join lateral (select coalesce(jsonb_object_agg(split_part(x, '=', 1), split_part(x, '=', 2)), '{}') as s
        from unnest(string_to_array(nullif(substr(p.plan, length(split_part(p.plan, ':', 1)) + 2), ''), ';')) x) v
$$;

create function dipwell_internal.put_plans(d dipwell.limits, r dipwell.versions) returns void language plpgsql volatile as $$
declare
    p      record;
    number int;
begin
    for p in select * from dipwell_internal.plans_of(d.plans) loop
        perform dipwell_internal.wrong('plans: ' || case
            when p.i > 100 then 'there are more than 100'
            when d.shards > 1 and p.callable <> 'false' then format('plan %s: callable: is false in a limit with shards', p.name)
            when p.mode in ('unlimited', 'blocked') and num_nonnulls(p.rate, p.per, p.burst, p.max_debt) > 0 then
                format('plan %s: mode: %s leaves the key to the base limit; leave out rate, per, burst and max_debt', p.name, p.mode)
            when p.callable = 'children' and d.algorithm <> 'leaky_bucket' then format('plan %s: callable: children is not for ', p.name) || dipwell_internal.holdless(d) || ', which is no parent'
            end, d.name);
        number := (p.i << 20) + r.number;
        insert into dipwell.plans (limit_id, number, version, name, mode, callable, rule) values (r.limit_id, number, r.number, p.name, p.mode, p.callable,
            dipwell_internal.compile_variant(d, r, number, p.name, p.rate, dipwell_internal.parse_per(p.per), p.burst, p.max_debt));
    end loop;
end $$;

-- By how many tokens the bucket of a leased limit is smaller than its burst.
create function dipwell_internal.carve(d dipwell.limits, burst bigint, period bigint) returns bigint language plpgsql immutable as $$
declare
    most bigint := case when burst > 1 then least(dipwell_internal.mul_div(burst, period, 2 * d.rate, false),
        case when burst = 2 then dipwell_internal.mul_div(period, 1000, 1002 * d.rate, false) end) else 0 end;
begin
    perform dipwell_internal.wrong(format('lease: %s is too long for a burst of %s at %s per %s',
            dipwell_internal.format_per(d.lease_us), burst, d.rate, dipwell_internal.format_per(period))
        || case when most < 10000 then ', and so is any other; at most half of the burst may come back in it' else '; at most ' || dipwell_internal.format_per(most) end,
        d.name) where d.lease_us > most;
    return dipwell_internal.mul_div(d.lease_us * 1002, d.rate, period * 1000, true);
end $$;

create function dipwell_internal.larger_than(d dipwell.limits, burst bigint, per text, room bigint) returns void language sql immutable as $$
    select dipwell_internal.wrong(case when room < 1 then format('rate: %s per %s is too slow, or max_debt and max_charge too large, to count exactly with any burst', d.rate, per)
        else format('burst: %s at %s per %s is too large to count exactly; at most %s', burst, d.rate, per, room) end, d.name)
$$;

-- The clock and zone of windows of some months that begin at a wall-clock time.
create function dipwell_internal.parse_start(d dipwell.limits, months bigint) returns text[] language plpgsql stable as $$
declare
    rest text := d.start;
    day  text := ''; -- of the month, or a date
    wall text[];
    days bigint := 0;
begin
    if rest ~ '^[^: ]* [^ ]* ' then
        day := split_part(rest, ' ', 1);
        rest := substr(rest, length(day) + 2);
    end if;
    wall := regexp_match(rest, '^([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? +([^ ].*?) *$');
    perform dipwell_internal.wrong('start: ' || case
        when d.start ~ '^[0-9.]+ *(us|ms|s|m|h|d|w|mo|y|sec|second|min|minute|hr|hour|day|wk|week|mon|month|yr|year)s?$' then
            format('"%s" is a length of time; start is when windows begin, such as 0s or ''00:00 UTC'', and per how long they are', d.start)
        when position(' ' in d.start) = 0 then format('"%s" is none of an offset such as 0s, a wall clock with a zone such as ''06:00 Europe/Rome'', and first_call', d.start)
        when wall is null or wall[1]::int > 23 or wall[2]::int > 59 or coalesce(wall[3], '0')::int > 59 then
            format('"%s" is not a time of day such as 06:00', split_part(rest, ' ', 1))
        when wall[4] <> 'UTC' and not exists (select from pg_timezone_names z where z.name = wall[4]) then
            format('"%s" is not an IANA time zone such as Europe/Rome', wall[4])
        when day = '' then null
        when months = 0 then format('"%s": a day stands before the time of day only if per is 1mo, and a date only if it is of more months', day)
        when months = 1 then case when day !~ '^[0-9]{1,9}$' or day::int not between 1 and 31 then format('"%s" is not a day of the month such as 17', day) end
        when day !~ '^([1-9]|0[1-9]|1[0-2])-([1-9]|0[1-9]|[12][0-9]|3[01])$' -- in a leap year
                or split_part(day, '-', 2)::int > date_part('day', make_date(2024, split_part(day, '-', 1)::int, 1) + interval '1 month' - interval '1 day') then
            format('"%s" is not a date such as 05-17', day)
        when 12 % months <> 0 and months % 12 <> 0 then format('"%s": windows of %smo do not begin on the same dates each year', day, months)
        end, d.name);
    if day <> '' then
        days := case months when 1 then day::int - 1 else (split_part(day, '-', 1)::int - 1) % months * 31 + split_part(day, '-', 2)::int - 1 end;
    end if;
    return array[(days * 86400 + wall[1]::int * 3600 + wall[2]::int * 60 + coalesce(wall[3], '0')::int)::text, wall[4]];
end $$;

-- Why no call can hold tokens of a limit: what the limit is; null if calls can.
create function dipwell_internal.holdless(d dipwell.limits) returns text language sql immutable as $$
    select case when d.algorithm = 'leaky_bucket' then 'a leaky bucket' when d.algorithm = 'sliding_window' then 'a sliding window'
        when d.shards > 1 then 'a limit with shards' end
$$;

-- The ticks that a bucket may have, with the units of each and how many of them are counted
-- exactly.
create function dipwell_internal.ticks(d dipwell.limits, period bigint, of_tick bigint) returns table (tick bigint, unit bigint, add bigint, most bigint) language sql stable as $$
    select t.tick, g.unit * s.scale, g.add * s.scale, dipwell_internal.most_units(t.tick, g.add * s.scale)
    from unnest(array[1, 1000, 1000000, 60000000]::bigint[]) t (tick)
    cross join lateral (select period / t.tick / gcd(d.rate, period / t.tick) as unit, d.rate / gcd(d.rate, period / t.tick) as add) g
    cross join lateral (select case when d.adaptive is not null then (1023 + g.unit) / g.unit else 1 end as scale) s -- units for 1024 fractions
    where period % t.tick = 0 and t.tick = coalesce(of_tick, t.tick)
$$;

-- Checks a definition and computes its rule, with the tick of_tick if that is given. Programs
-- have checked lease and adaptive, which no definition in SQL has.
create function dipwell_internal.compile(d dipwell.limits, period bigint, of_tick bigint default null) returns dipwell.versions language plpgsql stable as $$
declare
    m        constant bigint := 9007199254740991;
    algorithms constant text[] := '{token_bucket,fixed_window,interval,leaky_bucket,concurrency,sliding_window}';
    meant    text := translate(lower(d.algorithm), '- ', '__');
    windowed boolean := d.algorithm in ('fixed_window', 'interval', 'sliding_window');
    rows     bigint := greatest(d.shards, 1); -- of a key
    per      text := dipwell_internal.format_per(period);
    r        dipwell.versions;
    x        record;
    burst    bigint;
    debt     bigint;
    charge   bigint;
    want_debt   bigint;
    want_charge bigint;
    most     bigint;
    room     bigint;
    offset_  bigint;
    wall     text[];
    carved   bigint := 0;
    holdless text := dipwell_internal.holdless(d);
    problem  text; -- a variable, because the error's context has the text of the statement that raises it
begin
    perform dipwell_internal.wrong(dipwell_internal.name_error('name', coalesce(d.name, '')));
    problem := coalesce(case
        when d.algorithm = any (algorithms) is not true then format('algorithm: "%s" is not one of %s', d.algorithm, array_to_string(algorithms, ', '))
            || case when meant = any (algorithms) then format('; did you mean %s?', meant) else '' end
        when d.shards not between 0 and 64 then format('shards: %s is not between 1 and 64', d.shards)
        when d.ttl_us <> 0 then 'ttl: is not for ' || holdless || ', which has no holds'
        when d.on_expire = 'keep' then 'on_expire: is not for ' || holdless || ', which has no holds'
        end, case
        when d.block_us <> 0 and d.block_us not between 1000 and 31622400000000 then format('block: %s is not between 1ms and 366d', dipwell_internal.format_per(d.block_us)) end,
        case when d.block_us <> 0 then 'block: is not for ' || case when d.shared then 'a shared limit, whose bucket is everybody''s' when d.algorithm = 'concurrency' then 'a concurrency limit'
            when d.algorithm = 'sliding_window' then 'a sliding window' when d.shards > 1 then 'a limit with shards' end end, case
        when d.shards > 1 and d.algorithm <> 'token_bucket' then 'shards: is for token buckets'
        when d.shards > 1 and d.parent is not null then 'shards: is not for a limit with a parent'
        when d.shards > 1 and d.parts <> 0 then 'shards: is not for a limit whose keys are paths'
        end, case when d.algorithm = 'concurrency' then case
            when d.rate <> 0 then 'rate: is not for a concurrency limit; its tokens come back when holds end'
            when period <> 0 then 'per: is not for a concurrency limit; its tokens come back when holds end'
            when d.burst is null or d.burst not between 1 and m then format('burst: %s is not between 1 and 2^53-1', greatest(coalesce(d.burst, 0), 0))
            when d.max_debt <> 0 then 'max_debt: is not for a concurrency limit'
            when d.max_charge is not null then 'max_charge: is not for a concurrency limit'
            when d.start <> '' then 'start: is for windows and intervals'
            when d.on_change <> 'keep' then 'on_change: is keep for a concurrency limit'
            when d.on_expire = 'keep' then 'on_expire: is give_back for a concurrency limit'
            end else case
            when d.algorithm = 'sliding_window' and d.rate not between 1 and 67108863 then format('rate: %s is not between 1 and 2^26-1, the most of a sliding window', d.rate)
            when d.rate is null or d.rate not between 1 and m then format('rate: %s is not between 1 and 2^53-1', coalesce(d.rate::text, 'null'))
            when period < 0 and not windowed then 'per: months and years are for windows and intervals; a bucket needs a fixed length such as 30d'
            when period is null then 'per: is missing; it is a length of time such as interval ''1 minute'''
            when period = 0 or period < -1200 then 'per: is not a length of time'
            when d.burst not between 0 and m then format('burst: %s is not between 0 and 2^53-1', d.burst)
            when d.max_debt not between -1 and m then format('max_debt: %s is not between 0 and 2^53-1, or unlimited (-1)', d.max_debt)
            when d.max_charge not between 1 and m then format('max_charge: %s is not between 1 and 2^53-1', d.max_charge)
            when d.start <> '' and not windowed then 'start: is for windows and intervals; a bucket refills all the time'
            when d.algorithm = 'leaky_bucket' and d.burst <> 1 then 'burst: a leaky bucket lets out one at a time; its queue is max_debt'
            when d.on_change is null or d.on_change not in ('keep', 'proportional', 'reset') then 'on_change: unknown; it is one of keep, proportional, reset'
            end end, case when d.algorithm = 'sliding_window' then case
            when period < 0 or period > 8640000000000 then format('per: %s is longer than 100d, the longest sliding window', per)
            when d.burst is not null then 'burst: is not for a sliding window, which has its rate'
            when d.max_debt <> 0 then 'max_debt: is 0 for a sliding window'
            when d.start <> '' and dipwell_internal.parse_offset(d.start) is null then 'start: of a sliding window is an offset such as 0s'
            when d.parent is not null then 'parent: is not for a sliding window'
            when d.parts <> 0 then 'parts: is not for a sliding window, which is no parent'
            end end,
        case when d.mode is null or d.mode not in ('enforce', 'shadow') then 'mode: unknown; it is one of enforce, shadow' end);
    perform dipwell_internal.wrong(problem, d.name);
    if d.algorithm = 'concurrency' then
        return row(null, null, null, 'keep', 1, m, m, d.burst, 0, d.burst, 0, d.burst, d.burst, m, false, false, false, 0, 0, 0, '', '', null, null)::dipwell.versions;
    end if;

    burst := case when d.algorithm = 'leaky_bucket' then 1 else coalesce(d.burst, d.rate) end;
    perform dipwell_internal.wrong(case
        when rows > 1 and d.max_debt <> 0 then 'max_debt: is 0 for a limit with shards'
        when burst < rows and rows > 1 then format('burst: %s is too small for %s shards; at least %s', burst, rows, rows)
        when burst % rows <> 0 and of_tick is null then format('burst: %s is not a multiple of %s shards; %s is', burst, rows, burst - burst % rows)
        end, d.name);
    burst := burst / rows;
    if rows > 1 or d.adaptive is not null or d.algorithm = 'sliding_window' then
        d.max_debt := 0;
    end if;
    debt := case when d.max_debt is null then burst when d.max_debt = -1 then 0 else d.max_debt end;
    perform dipwell_internal.wrong('burst: 0 grants nothing unless max_debt lets work be scheduled ahead', d.name)
        where burst = 0 and debt = 0 and d.max_debt is distinct from -1;
    charge := coalesce(d.max_charge, dipwell_internal.mul_div(10, greatest(burst, 1), 1, false));
    want_debt := case when d.max_debt is null then 0 else debt end;
    want_charge := coalesce(d.max_charge, 0);
    if d.lease_us <> 0 then
        carved := dipwell_internal.carve(d, burst, period);
    end if;

    r := row(null, null, null, d.on_change, 1, greatest(period, 0), d.rate, 0, 0, 0, 0, 0, 0, 0, d.algorithm = 'leaky_bucket', false, d.algorithm = 'sliding_window',
        greatest(-period, 0), 0, 0, case when period < 0 then 'UTC' else '' end, per, d.start, null);
    if not windowed then
        -- The finest tick with which everything fits. Defaults that fit with no tick are
        -- lowered.
        select t.* into x from unnest(array[burst + debt + charge, burst + debt + want_charge, burst + want_debt + want_charge]) with ordinality n (need, i)
            join dipwell_internal.ticks(d, period * rows, of_tick) t on t.most / t.unit >= n.need order by n.i, t.tick limit 1;
        if not found then
            perform dipwell_internal.larger_than(d, burst * rows, per, greatest((select max(t.most / t.unit) - want_debt - want_charge
                from dipwell_internal.ticks(d, period * rows, of_tick) t), 0) * rows);
        end if;
        r.every := x.tick;
        r.unit := x.unit;
        r.add := x.add;
        most := x.most;
    else
        offset_ := dipwell_internal.parse_offset(d.start);
        if coalesce(d.start, '') = '' then
            r.spread := true;
        elsif d.start = 'first_call' then
            perform dipwell_internal.wrong(format('start: first_call needs a per of a fixed length such as 30d, not %s', per), d.name) where period < 0;
            r.origin := -1;
        elsif offset_ is not null then
            perform dipwell_internal.wrong(format('start: %s is not shorter than the period; start is when windows begin, such as 0s or ''00:00 UTC'', and per how long they are', d.start), d.name) where offset_ >= dipwell_internal.shortest(r);
            r.origin := offset_;
        else
            wall := dipwell_internal.parse_start(d, r.months);
            r.clock := wall[1]::bigint;
            r.zone := wall[2];
            r.every := 0;
            r.days := greatest(period, 0) / 86400000000;
            perform dipwell_internal.wrong(format('start: a wall clock needs per to be 1d, 1w, 2w, 1mo, 3mo, 6mo or 1y, not %s', per), d.name)
                where period > 0 and period not in (86400000000, 604800000000, 1209600000000);
        end if;
        most := dipwell_internal.most_units(case when r.every > 0 then r.every when r.months > 0 then (r.months * 31 + 1) * 86400000000
            else r.days * 86400000000 + 86400000000 end, r.add);
        if r.sliding then
            most := 67108863;
            d.max_charge := charge; -- a charge of any size fits, because used stops at most
        elsif most < burst + want_debt + want_charge then
            perform dipwell_internal.larger_than(d, burst, per, most - want_debt - want_charge);
        end if;
    end if;

    room := most / r.unit - burst;
    if d.max_debt is null then
        debt := least(debt, room - want_charge);
    end if;
    if d.max_charge is null then
        charge := greatest(1, least(charge, room - debt));
    end if;
    burst := burst - carved;
    r.burst := burst;
    r.max_charge := charge;
    r.max_used := most;
    r.cap := burst * r.unit;
    r.debt := case when d.max_debt = -1 then most - r.cap else debt * r.unit end;
    r.most := (r.cap + r.debt) / r.unit;
    return r;
end $$;
