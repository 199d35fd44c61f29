
-- == From one definition of a limit to the next

-- The definition that decides a call. fraction is how much of the rate the call may use, in
-- 1024ths; null or 0: all of it.
create type dipwell_internal.definition as (
    rule dipwell.versions,
    mode text,
    plan text,
    fraction bigint
);

create function dipwell_internal.same_rule(a dipwell.versions, b dipwell.versions) returns boolean language sql immutable as
$$ select (a.unit, a.every, a.add, a.cap, a.origin, a.burst, a.debt, a.most, a.max_charge, a.max_used, a.leaky, a.spread, a.sliding, a.months, a.days, a.clock, a.zone)
    = (b.unit, b.every, b.add, b.cap, b.origin, b.burst, b.debt, b.most, b.max_charge, b.max_used, b.leaky, b.spread, b.sliding, b.months, b.days, b.clock, b.zone) $$;

-- The version in a number that is not an override's.
create function dipwell_internal.version_of(number int) returns int language sql immutable as
$$ select number & 1048575 $$;

-- The value of buckets.version for a row that a rule has decided. Plans of a sliding
-- window count in the same way, so its rows stay under the limit.
create function dipwell_internal.row_number(r dipwell.versions) returns int language sql immutable as
$$ select case when r.sliding and r.number > 0 then r.number & 1048575 else r.number end $$;

-- The value of buckets.version for rows that an override decides.
create function dipwell_internal.override_number(id int) returns int language sql immutable as
$$ select (id::bigint - 2147483648)::int $$;

create function dipwell_internal.base_definition(l dipwell.limits) returns dipwell_internal.definition language plpgsql stable as $$
begin
    return (select (v, l.mode, null, null)::dipwell_internal.definition from dipwell.versions v where v.limit_id = l.id and v.number = l.version);
end $$;

create function dipwell_internal.unknown_plan(l dipwell.limits, plan_name text, field text) returns void language plpgsql immutable as $$
begin
    raise exception using errcode = 'undefined_object', constraint = field,
        message = format('%s: limit %s has no plan "%s"', field, l.name, plan_name);
end $$;

-- The plan that a call names, which must exist, or if it names none, the limit itself.
create function dipwell_internal.asked_definition(l dipwell.limits, plan_name text, field text) returns dipwell_internal.definition language plpgsql stable as $$
declare
    d dipwell_internal.definition := dipwell_internal.base_definition(l);
    p dipwell.plans;
begin
    if plan_name is not null then
        select * into p from dipwell.plans x where x.limit_id = l.id and x.name = plan_name and x.version = l.version;
        if not found then
            perform dipwell_internal.unknown_plan(l, plan_name, field);
        end if;
        d.rule := p.rule;
        d.mode := coalesce(p.mode, l.mode);
        d.plan := p.name;
    end if;
    return d;
end $$;

create function dipwell_internal.check_callable(l dipwell.limits, plan_name text, field text) returns void language plpgsql stable as $$
declare
    callable text := (select p.callable from dipwell.plans p where p.limit_id = l.id and p.version = l.version and p.name = plan_name);
begin
    if callable is null then
        perform dipwell_internal.unknown_plan(l, plan_name, field);
    end if;
    perform dipwell_internal.wrong(case callable
        when 'false' then format('%s: callers may not name plan %s of limit %s; keys have it by an override alone', field, plan_name, l.name)
        when 'children' then format('%s: calls of the children of limit %s choose its plan %s; those of its own may not name it', field, l.name, plan_name) end);
end $$;

-- The standing override under a temporary one, or null.
create function dipwell_internal.under_of(o dipwell.key_overrides) returns dipwell.key_overrides language sql stable as
$$ select u.* from jsonb_populate_record(null::dipwell.key_overrides, o.under) u where o.under is not null $$;

-- Which of the overrides of a key decides calls at t, or null. o: the one on top.
create function dipwell_internal.live_override(o dipwell.key_overrides, t bigint) returns dipwell.key_overrides language plpgsql stable as $$
begin
    return case when o.until <= t then dipwell_internal.under_of(o) else o end;
end $$;

-- The override of a key under which rows with a given number are, or null.
create function dipwell_internal.named_override(o dipwell.key_overrides, number int) returns dipwell.key_overrides language plpgsql stable as $$
begin
    if dipwell_internal.override_number(o.id) <> number then
        o := dipwell_internal.under_of(o);
    end if;
    return case when dipwell_internal.override_number(o.id) = number then o end;
end $$;

-- Whether an override is a block that a refusal began. The result is false for null.
create function dipwell_internal.automatic(o dipwell.key_overrides) returns boolean language sql immutable as
$$ select o.until is not null and num_nonnulls(o.plan, o.rate, o.per, o.burst) = 0 $$;

-- An override with its rule at a version; an error if it does not compile there.
create function dipwell_internal.compile_override(l dipwell.limits, o dipwell.key_overrides, base dipwell.versions) returns dipwell.key_overrides language plpgsql stable as $$
declare
    p dipwell.plans;
    u dipwell.key_overrides := dipwell_internal.under_of(o);
    start text := coalesce(o.start, u.start);
    below record; -- the plan that the override gives or lies over
begin
    o.version := base.number;
    if o.plan is not null then
        u := null;
        select * into p from dipwell.plans x where x.limit_id = o.limit_id and x.name = o.plan and x.version = base.number;
        if not found then
            perform dipwell_internal.unknown_plan(l, o.plan, 'plan');
        end if;
        o.mode := p.mode;
        o.rule := p.rule;
    end if;
    if o.plan is null or start is not null then
        if base.number <> l.version then
            l := dipwell_internal.limit_of(base.settings::jsonb);
        end if;
        select q.rate, q.per, q.burst, q.max_debt, q.mode into below from dipwell_internal.plans_of(l.plans) q where q.name = coalesce(o.plan, u.plan);
        l.start := coalesce(start, l.start);
        o.rule := dipwell_internal.compile_variant(l, base, base.number, 'override', coalesce(o.rate, u.rate, below.rate), dipwell_internal.parse_per(coalesce(o.per, u.per, below.per)),
            coalesce(o.burst, u.burst, below.burst), below.max_debt);
        o.mode := case when dipwell_internal.automatic(o) then 'blocked' else below.mode end;
    end if;
    return o;
end $$;

-- An override with its rule at a version, or the limit's rule if it does not compile there.
create function dipwell_internal.override_at(l dipwell.limits, o dipwell.key_overrides, base dipwell.versions) returns dipwell.key_overrides language plpgsql stable as $$
begin
    if o.version <> base.number then
        begin
            o := dipwell_internal.compile_override(l, o, base);
        exception when invalid_parameter_value or undefined_object then
            o.version := base.number;
            o.mode := case when dipwell_internal.automatic(o) then 'blocked' end;
            base.settings := null;
            o.rule := base;
        end;
    end if;
    return o;
end $$;

-- An override at a version of its limit, by default the present one, with an id that is 2
-- higher if it was of another one (1 higher could be the old id of the other layer). The
-- override under it is treated in the same way.
create function dipwell_internal.renewed(l dipwell.limits, o dipwell.key_overrides, number int default null) returns dipwell.key_overrides language plpgsql stable as $$
begin
    if o.id is not null and o.version <> coalesce(renewed.number, l.version) then
        o := dipwell_internal.override_at(l, o, (select v from dipwell.versions v where v.limit_id = l.id and v.number = coalesce(renewed.number, l.version)));
        o.id := case when o.id < 2147483646 then o.id + 2 else o.id - 2147483645 end;
        if o.under is not null then
            o.under := to_jsonb(dipwell_internal.renewed(l, dipwell_internal.under_of(o), renewed.number));
        end if;
    end if;
    return o;
end $$;

-- The definition that an override makes of the present version of its limit.
create function dipwell_internal.override_definition(l dipwell.limits, o dipwell.key_overrides) returns dipwell_internal.definition language plpgsql stable as $$
declare
    r dipwell.versions;
begin
    o := dipwell_internal.renewed(l, o);
    r := o.rule;
    r.number := dipwell_internal.override_number(o.id);
    return (r, coalesce(o.mode, l.mode), o.plan, null::bigint);
end $$;

-- The definition that decides a call after the end of the override o.
create function dipwell_internal.next_definition(l dipwell.limits, o dipwell.key_overrides, asked dipwell_internal.definition) returns dipwell_internal.definition language plpgsql stable as $$
begin
    return case when o.under is null then asked else dipwell_internal.override_definition(l, dipwell_internal.under_of(o)) end;
end $$;

-- The definition that a row with a number is under at n, at the present version. A plan has
-- ended if a version since had none of its name.
create function dipwell_internal.own_definition(l dipwell.limits, o dipwell.key_overrides, number int, n bigint) returns dipwell_internal.definition language plpgsql stable as $$
begin
    if number < 0 then
        o := dipwell_internal.live_override(dipwell_internal.named_override(o, number), n);
        if o.id is not null then
            return dipwell_internal.override_definition(l, o);
        end if;
    elsif number > 1048575 then
        return dipwell_internal.asked_definition(l, (select p.name from dipwell.plans p where p.limit_id = l.id and p.number = own_definition.number
            and not exists (select from dipwell.versions v where v.limit_id = l.id and v.number > dipwell_internal.version_of(own_definition.number) and v.number <= l.version
                and not exists (select from dipwell.plans q where q.limit_id = l.id and q.name = p.name and q.version = v.number))), null);
    end if;
    return dipwell_internal.base_definition(l);
end $$;

-- The rule of a limit, a plan or an override at version v; null if there is no such plan.
create function dipwell_internal.rule_at(l dipwell.limits, o dipwell.key_overrides, v int, plan text, over boolean) returns dipwell.versions language plpgsql stable as $$
declare
    r dipwell.versions;
begin
    if plan is not null and not over then
        return (select x.rule from dipwell.plans x where x.limit_id = l.id and x.name = plan and x.version = v);
    end if;
    select * into r from dipwell.versions x where x.limit_id = l.id and x.number = v;
    if over then
        o := dipwell_internal.override_at(l, o, r);
        r := o.rule;
    end if;
    return r;
end $$;

-- The conversions of a row up to the present version and the definition target: two rules and
-- the time of each. target is a number at the present version. If it is null, the row stays
-- in its plan or override; if that has ended, it goes to the one under it or to the limit
-- itself.
create function dipwell_internal.walk(l dipwell.limits, o dipwell.key_overrides, number int, ts bigint, n bigint, target int)
returns table (known boolean, was dipwell.versions, r dipwell.versions, at bigint) language plpgsql stable as $$
declare
    v        int;
    plan     text;
    over     boolean := number < 0;
    to_plan  text;
    to_over  boolean := target < 0;
    into_    dipwell.versions;
    t        bigint := greatest(n, ts);
    e        record;
    new_plan text;
    new_over boolean;
begin
    if (case when number < 0 then coalesce(o.version, l.version) else number & 1048575 end) < l.version then -- the clock may have stepped back
        t := greatest(t, (select x.since from dipwell.versions x where x.limit_id = l.id and x.number = l.version));
    end if;
    known := false;
    if over then
        o := dipwell_internal.named_override(o, number);
        v := o.version;
    else
        o := dipwell_internal.live_override(o, n);
        v := (select x.number from dipwell.versions x where x.limit_id = l.id and x.number = dipwell_internal.version_of(walk.number));
        if number > 1048575 then
            select p.name into plan from dipwell.plans p where p.limit_id = l.id and p.number = walk.number;
            v := case when found then v end;
        end if;
    end if;
    if v is null then
        return next;
        return;
    end if;
    if target > 1048575 then
        select p.name into to_plan from dipwell.plans p where p.limit_id = l.id and p.number = target;
    end if;
    known := true;
    was := dipwell_internal.rule_at(l, o, v, plan, over);
    -- An override that ends when a version begins ends first. x is null for its end, and
    -- for the conversion to target.
    for e in select x, x.since as at, x.policy, 1 as kind from dipwell.versions x where x.limit_id = l.id and x.number > v and x.number <= l.version
        union all select null, o.until, 'keep', 0 where over and o.until <= n
        union all select null, null, 'keep', 2 where target is not null
        order by at, kind, 1 loop
        new_plan := case e.kind when 1 then plan when 2 then to_plan end;
        new_over := case e.kind when 0 then o.under is not null when 1 then over else to_over end;
        if e.kind = 0 then
            o := dipwell_internal.under_of(o);
        elsif e.kind = 1 then
            v := (e.x).number;
        end if;
        into_ := e.x;
        if e.kind <> 1 or new_over or new_plan is not null then
            into_ := dipwell_internal.rule_at(l, o, v, new_plan, new_over);
        end if;
        if into_.number is null then -- the version has no such plan
            new_plan := null;
            e.policy := 'keep';
            into_ := dipwell_internal.rule_at(l, o, v, null, new_over);
        end if;
        if not dipwell_internal.same_rule(was, into_) then
            ts := greatest(ts, coalesce(e.at, t));
            r := into_;
            r.policy := e.policy;
            at := ts;
            return next;
        end if;
        was := into_;
        plan := new_plan;
        over := new_over;
    end loop;
    if at is null then -- no conversion
        r := null;
        return next;
    end if;
end $$;

-- The ts of a row that has the given used units when it is converted at a time. A window
-- that began with a call goes on.
create function dipwell_internal.carried_at(was dipwell.versions, r dipwell.versions, used bigint, ts bigint, at bigint) returns bigint language sql immutable as
$$ select case when r.origin < 0 and was.every = r.every then dipwell_internal.written_at(was, used, ts, at) else at end $$;

-- Converts a row to the present version and the definition target. It steps the row under
-- each definition up to its end. If the definition of a row is gone, the row becomes
-- full. The row must not be of a later version than l, and has no records: see brought.
create function dipwell_internal.carry(l dipwell.limits, o dipwell.key_overrides, key text, number int, target int, n bigint,
    inout used bigint, inout ts bigint) language plpgsql stable as $$
declare
    w   record;
    was dipwell.versions; -- for the key
begin
    if number = target and (number >= 0 or o.version = l.version) then
        return;
    end if;
    for w in select * from dipwell_internal.walk(l, o, number, ts, n, target) loop
        if not w.known then
            used := 0;
            return;
        end if;
        continue when w.r is null;
        was := dipwell_internal.spread(w.was, l.name, key);
        used := dipwell_internal.used_at(was, used, ts, w.at);
        ts := dipwell_internal.carried_at(was, w.r, used, ts, w.at);
        used := dipwell_internal.convert_row(used, w.at, was, w.r);
    end loop;
end $$;

create function dipwell_internal.override_of(lim int, of_key text) returns dipwell.key_overrides language plpgsql stable as $$
begin
    return (select x from dipwell.key_overrides x where x.limit_id = lim and x.key = of_key);
end $$;

-- Deletes the override of a key that has ended, and compiles the one that is left for version
-- number. The function has the rights of the owner: a service may decide under overrides, but
-- not change them.
create function dipwell_internal.keep_override(lim int, of_key text, number int, n bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    o    dipwell.key_overrides := dipwell_internal.override_of(lim, of_key);
    live dipwell.key_overrides := dipwell_internal.live_override(o, dipwell_internal.past(n));
begin
    if number > live.version then
        live := dipwell_internal.renewed((select x from dipwell.limits x where x.id = lim), live, number);
    end if;
    if live.id is distinct from o.id then
        delete from dipwell.key_overrides x where x.limit_id = lim and x.key = of_key;
        insert into dipwell.key_overrides select live.* where live.id is not null;
    end if;
end $$;

-- Stores the override of a key after a call: renewed, or deleted if it is null.
create function dipwell_internal.store_override(was dipwell.key_overrides, o dipwell.key_overrides, n bigint) returns void language plpgsql volatile as $$
begin
    if was.id <> o.id or o.id is null and was.id is not null then
        perform dipwell_internal.keep_override(was.limit_id, was.key, o.version, n);
    end if;
end $$;

-- Whether a row is full at n, so that it may be deleted.
create function dipwell_internal.is_full(lim int, key text, used bigint, ts bigint, version int, n bigint) returns boolean language plpgsql stable as $$
declare
    l dipwell.limits;
begin
    select * into l from dipwell.limits where id = lim;
    if not found then
        return true; -- the limit was dropped
    elsif version < 0 then
        return not exists (select from dipwell.key_overrides x where x.limit_id = lim and x.key = is_full.key); -- sweep_overrides converts the row
    elsif dipwell_internal.version_of(version) > l.version then
        return false; -- the row was read after the limit
    end if;
    return (dipwell_internal.books_at(dipwell_internal.brought(l, null, (used, ts, lim, version, key, null, null, null)::dipwell.buckets, n), n)).used = 0;
end $$;
