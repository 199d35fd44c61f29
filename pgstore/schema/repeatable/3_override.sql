
-- == Plans, and overrides of keys

-- A plan as limits.plans has it, from its settings in JSON; a string is its mode.
create function dipwell_internal.read_plan(limit_name text, plan text, settings jsonb) returns text language plpgsql immutable as $$
declare
    s jsonb := jsonb_strip_nulls(case jsonb_typeof(settings) when 'string' then jsonb_build_object('mode', settings) else settings end);
begin
    perform dipwell_internal.wrong('plans: ' || case
        when plan !~ '^[A-Za-z0-9_.-]{1,64}$' then format('the name of plan "%s" is not 1 to 64 letters, digits and characters _ . -', plan)
        when jsonb_typeof(s) <> 'object' then format('plan %s is not an object such as {"rate": 600}', plan) end, limit_name);
    perform dipwell_internal.wrong(format('plans: plan %s: %s: ', plan, x.key) || case
            when x.key = 'max_debt' and x.value = 'unlimited' then null
            when x.key in ('rate', 'burst', 'max_debt') then case when x.value !~ '^-?[0-9]{1,16}$' then format('"%s" is not a whole number from 0 to 2^53-1', x.value) end
            when x.key = 'per' then case when coalesce(dipwell_internal.parse_per(x.value), 0) = 0 then format('"%s" is not a length of time such as 250ms, 1s, 1m, 1h, 1d or 1w', x.value) end
            when x.key = 'mode' then case when x.value not in ('shadow', 'unlimited', 'blocked', 'enforce') then format('"%s" is not one of shadow, unlimited, blocked, enforce', x.value) end
            when x.key = 'callable' then case when x.value not in ('true', 'false', 'children') then format('"%s" is not one of true, false, children', x.value) end
            else 'unknown setting' end, limit_name)
        from jsonb_each_text(s) x;
    return plan || coalesce(':' || nullif(concat_ws(';', 'rate=' || (s->>'rate')::bigint, 'per=' || dipwell_internal.format_per(dipwell_internal.parse_per(s->>'per')),
        'burst=' || (s->>'burst')::bigint, 'max_debt=' || case when s->>'max_debt' in ('unlimited', '-1') then 'unlimited' else ((s->>'max_debt')::bigint)::text end,
        'mode=' || (s->>'mode'), 'callable=' || nullif(s->>'callable', 'true')), ''), '');
end $$;

-- Adds, replaces or removes a plan, and returns the former one.
create function dipwell_internal.change_plans(limit_name text, plan text, changed text) returns text language plpgsql volatile as $$
declare
    d   dipwell.limits;
    r   dipwell.versions;
    was text;
begin
    perform dipwell_internal.limit_id(limit_name, 'limit_name');
    perform dipwell_internal.lock_limit(limit_name);
    select * into d from dipwell.limits x where x.name = limit_name;
    was := (select x from unnest(string_to_array(d.plans, '|')) x where split_part(x, ':', 1) = plan);
    if split_part(d.owner, ' ', 1) <> 'sql' then
        perform dipwell_internal.other_owner(limit_name, d.owner);
    elsif changed is null and was is null then
        raise exception using errcode = 'undefined_object', constraint = 'plan', message = format('plan: limit %s has no plan "%s"', limit_name, plan);
    end if;
    d.plans := (select string_agg(p.x, '|' order by split_part(p.x, ':', 1) collate "C") from (
        select x from unnest(string_to_array(d.plans, '|')) x where split_part(x, ':', 1) <> plan
        union all select changed where changed is not null) p (x));
    select * into r from dipwell.versions v where v.limit_id = d.id and v.number = d.version;
    r.settings := null;
    r.policy := d.on_change;
    perform dipwell_internal.put_limit(d, r);
    return was;
end $$;

create function dipwell_internal.check_override(l dipwell.limits, o dipwell.key_overrides, n bigint) returns dipwell.key_overrides language plpgsql stable as $$
declare
    reason text;
begin
    perform dipwell_internal.wrong(case
        when o.until <= n then 'until: is not in the future'
        when o.until > 9007199254740991 then 'until: is not between now and the year 2255'
        when octet_length(o.note) > 1024 then format('note: has %s bytes; at most 1024', octet_length(o.note))
        when o.plan is not null and num_nonnulls(o.rate, o.per, o.burst) > 0 then 'plan: stands beside rate, per or burst; an override has either a plan or numbers'
        when o.start is not null and o.until is not null then 'start: stands only in an override without an end'
        when o.start = '' then 'start: is empty'
        when num_nonnulls(o.plan, o.rate, o.per, o.burst, o.start) = 0 and o.id <> 0 then 'plan: is missing; an override has a plan, or rate, per, burst or start'
        end);
    return dipwell_internal.compile_override(l, o, (dipwell_internal.base_definition(l)).rule);
exception when invalid_parameter_value then
    get stacked diagnostics reason = message_text;
    perform dipwell_internal.wrong(replace(reason, 'limit ' || l.name || ': plans: plan override: ', ''));
end $$;

-- An id for an override that is set at n, which differs from the ids that are taken.
create function dipwell_internal.override_id(n bigint, taken int[]) returns int language sql immutable as
$$ select x.id::int from generate_series(n, n + 4) i cross join lateral (select i & 2147483647 as id) x where x.id <> 0 and x.id <> all (array_remove(taken, null)) order by i limit 1 $$;

-- Sets an override of a key, or ends one if o is null, and converts the row. Returns what was
-- set, and what was replaced or ended. o is the override to set; if it is null, the one of a
-- kind is ended. The row is locked before the overrides are read, as everywhere else.
create function dipwell_internal.change_override(lim int, of_key text, o dipwell.key_overrides, kind text, at bigint,
    out set_ dipwell.key_overrides, out ended dipwell.key_overrides) language plpgsql volatile as $$
declare
    l   dipwell.limits;
    was dipwell.key_overrides; -- the one on top
    live dipwell.key_overrides; -- the same, if it has not ended, or the one under it
    top dipwell.key_overrides;
    taken int[]; -- ids that the overrides of the key had
    r   dipwell.versions; -- from now on
    k   dipwell_internal.books;
    n   bigint := coalesce(at, dipwell_internal.now_us());
begin
    perform dipwell_internal.wrong('key: has a *, but an override is for one key: there are no patterns; a plan is for many') where strpos(of_key, '*') > 0;
    if o.id is not null then -- an overridden key has a row
        select * into l from dipwell.limits x where x.id = lim;
        insert into dipwell.buckets (used, ts, limit_id, version, key) values (0, n, lim, l.version, of_key) on conflict do nothing;
    end if;
    perform from dipwell.buckets y where y.limit_id = lim and y.key = of_key for update;
    select * into l from dipwell.limits x where x.id = lim;
    if l.id is null then
        raise exception using errcode = 'undefined_object', constraint = 'limit_name', message = 'limit_name: the limit was dropped';
    end if;
    was := dipwell_internal.override_of(lim, of_key);
    n := coalesce(at, dipwell_internal.now_us());
    if o.id is null and was.id is null then
        return;
    end if;
    k := dipwell_internal.bring(lim, of_key, n); -- which may end the last override
    was := coalesce(dipwell_internal.override_of(lim, of_key), was);
    live := dipwell_internal.renewed(l, dipwell_internal.live_override(was, n));
    taken := array_remove(array[live.id, (live.under->>'id')::int], null);
    ended := case when kind is null or case kind when 'automatic' then dipwell_internal.automatic(live) else (kind = 'temporary') = (live.until is not null) end then live
        when kind = 'standing' then dipwell_internal.under_of(live) end;
    if o.id is not null then
        o.limit_id := lim;
        o.key := of_key;
        if o.until is not null then
            o.under := case when live.until is null and live.id is not null then to_jsonb(live) else live.under end;
        end if;
        o := dipwell_internal.check_override(l, o, n);
        o.id := dipwell_internal.override_id(n, taken);
        set_ := o;
    end if;
    if kind = 'standing' and live.until is not null then -- what lies over it may change with it
        top := live;
        top.under := case when o.id is not null then to_jsonb(o) end;
        top.id := dipwell_internal.override_id(n, taken || o.id);
        if o.id is not null and (top.plan is null or o.start is not null) and not dipwell_internal.automatic(top) then
            top := dipwell_internal.check_override(l, top, n);
        else
            top.version := 0;
            top := dipwell_internal.override_at(l, top, (dipwell_internal.base_definition(l)).rule);
        end if;
        o := top;
    elsif o.id is null then
        o := case when ended.id is null then live else dipwell_internal.under_of(ended) end;
    end if;
    if k.version is not null then
        r := (case when o.id is not null then dipwell_internal.override_definition(l, o) else dipwell_internal.base_definition(l) end).rule;
        r.policy := 'keep';
        k := dipwell_internal.books_at(k, n);
        k := dipwell_internal.books_convert(k, k.rule, r, greatest(n, k.ts));
        k.version := r.number;
        perform dipwell_internal.store_books(lim, of_key, k, n);
    end if;
    delete from dipwell.key_overrides x where x.limit_id = lim and x.key = of_key;
    if o.id is not null then
        if pg_relation_size('dipwell.key_overrides') < 65536 then -- new, or rewritten by VACUUM FULL
            insert into dipwell.key_overrides (limit_id, key, id, version, rule) -- as make_room
                select lim, lpad(i::text, 500, '0'), 0, 0, o.rule from generate_series(1, 200) i on conflict do nothing;
            delete from dipwell.key_overrides x where x.limit_id = lim and x.id = 0;
            if (select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = 'dipwell.key_overrides'::regclass) then
                analyze dipwell.key_overrides;
            end if;
        end if;
        insert into dipwell.key_overrides select o.*;
    end if;
end $$;

-- Begins or ends the block of a key whose row is locked. The function has the rights of the
-- owner, because a service may decide calls, and so begins and ends blocks; but it may not
-- change overrides that people have set, and the function changes none.
create function dipwell_internal.set_block(lim int, of_key text, n bigint, begins boolean) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    o      dipwell.key_overrides;
    length bigint;
begin
    n := dipwell_internal.past(n);
    if begins then
        select l.block_us into length from dipwell.limits l where l.id = lim;
        if length is null or exists (select from dipwell.key_overrides x where x.limit_id = lim and x.key = of_key and x.until > n) then
            return;
        end if;
        o.id := 0;
        o.until := n + length;
        o.note := 'automatic';
    end if;
    perform dipwell_internal.change_override(lim, of_key, o, case when begins then 'temporary' else 'automatic' end, n);
exception when foreign_key_violation then
    raise exception using errcode = 'undefined_object', constraint = 'limit_name', message = 'limit_name: the limit was dropped';
end $$;

-- Records in the limit that it has overrides, and notifies programs.
create function dipwell_internal.mark_overridden(lim int) returns void language plpgsql volatile as $$
begin
    update dipwell.limits x set overridden = true where x.id = lim;
    perform dipwell_internal.note_change();
end $$;

-- While another transaction changes the limit, or sets its first override, the limit is not
-- marked here, but by a sweep. Until then the row of the key shows that it has an override.
create function dipwell_internal.set_override(lim int, of_key text, plan text, rate bigint, per bigint, burst bigint, until bigint, note text, at bigint default null, start text default null,
    out set_ dipwell.key_overrides, out replaced dipwell.key_overrides) language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    o dipwell.key_overrides;
    c record;
begin
    perform dipwell_internal.wrong('per: is not a length of time') where per = 0;
    o.plan := plan;
    o.rate := rate;
    o.per := dipwell_internal.format_per(per);
    o.burst := burst;
    o.start := start;
    o.until := until;
    o.note := nullif(note, '');
    o.id := 1;
    perform dipwell_internal.lock_limit(x.name || chr(1), shared => true) from dipwell.limits x where x.id = lim; -- see check_fit
    perform from dipwell.limits x where x.id = lim and x.overridden is not true for no key update skip locked;
    if found then
        perform dipwell_internal.mark_overridden(lim);
    end if;
    select * into c from dipwell_internal.change_override(lim, of_key, o, case when until is null then 'standing' else 'temporary' end, at);
    set_ := c.set_;
    replaced := c.ended;
end $$;

create function dipwell_internal.end_override(lim int, of_key text, kind text, at bigint default null) returns dipwell.key_overrides
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return (dipwell_internal.change_override(lim, of_key, null, kind, at)).ended;
end $$;
