
-- == The public functions: check, charge, define, override and others

-- enable_seqscan is off because a plan made while the table is empty would use a sequential
-- scan, and a long transaction would keep that plan while it fills the table.

create function dipwell_internal.check_key(l dipwell.limits, key text, field text) returns text language plpgsql stable as $$
declare
    reason text := case when key = '' then 'is empty'
        when octet_length(key) > 512 then format('has %s bytes; at most 512', octet_length(key))
        when l.shared and key is not null then format('limit %s is shared: its calls have no key', l.name)
        when key is null and not l.shared then format('is null; limit %s has a bucket for each key (shared => true would make it one for everybody)', l.name) end;
begin
    perform dipwell_internal.wrong(field || ': ' || reason);
    return coalesce(key, '');
end $$;

create function dipwell_internal.check_cost(cost bigint, field text) returns bigint language plpgsql stable as $$
begin
    if (cost between 0 and 9007199254740991) is not true then
        perform dipwell_internal.wrong(format('%s: %s is not between 0 and 2^53-1', field, coalesce(cost::text, 'null')));
    end if;
    return cost;
end $$;

create function dipwell_internal.limit_id(limit_name text, field text) returns int language plpgsql stable as $$
declare
    id int;
begin
    perform dipwell_internal.wrong(field || ': is null') where limit_name is null;
    select l.id into id from dipwell.limits l where l.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', constraint = field,
            message = format('%s: unknown limit "%s"', field, limit_name);
    end if;
    return id;
end $$;

create function dipwell_internal.entries(n int) returns text language sql immutable as
$$ select case n when 1 then '1 entry' else coalesce(n, 0) || ' entries' end $$;

-- This is a type because, with OUT parameters, PostgreSQL would build the descriptor of
-- the row in every call.
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

create function dipwell.check(limit_name text, key text default null, cost bigint default 1, plan text default null, floor bigint default null) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as
$$ begin return dipwell_internal.ask(1, limit_name, key, cost, plan, floor); end $$;
comment on function dipwell.check is 'Returns the result that take would return, and changes nothing.';

create function dipwell.take_up_to(limit_name text, key text default null, cost bigint default 1, plan text default null) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as
$$ begin return dipwell_internal.ask(2, limit_name, key, cost, plan); end $$;
comment on function dipwell.take_up_to is
    'Takes as many whole tokens as are free, at most cost. Refused if none is free. The result has their number in granted.';

create function dipwell.reserve(limit_name text, key text default null, cost bigint default 1, plan text default null, within interval default null) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform dipwell_internal.wrong(format('within: %s is negative', within)) where within < interval '0';
    return dipwell_internal.ask(case when within is not null and (select l.algorithm from dipwell.limits l where l.name = limit_name) = 'sliding_window' then 0 else 3 end,
        limit_name, key, cost, plan, max_delay => case when within is not null then least(dipwell_internal.micros(within), 9007199254740991) end);
end $$;
comment on function dipwell.reserve is
    'Takes tokens in advance, with a debt of at most max_debt. Act after the delay in the result, or call cancel(reservation) before it has passed. With within, for callers that wait: refused if the delay would be longer; a refusal with a delay says when to call again, because the limit has no debt.';

create function dipwell.charge(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as
$$ begin return dipwell_internal.ask(4, limit_name, key, cost); end $$;
comment on function dipwell.charge is
    'Takes tokens even if fewer are free, for a cost that is known only afterwards. Later calls are refused until the debt has come back.';

create function dipwell.refund(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as
$$ begin return dipwell_internal.ask(5, limit_name, key, cost); end $$;
comment on function dipwell.refund is 'Gives tokens back, up to a full bucket.';

create function dipwell.reset(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as
$$ begin return dipwell_internal.ask(6, limit_name, key, 0); end $$;
comment on function dipwell.reset is 'Makes a bucket full and ends its reservations and holds. cost is ignored.';

create function dipwell.cancel(reservation uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    perform dipwell_internal.wrong('reservation: is null') where reservation is null;
    if dipwell_internal.give_back(reservation) is not true then
        raise exception using errcode = 'no_data_found', constraint = 'reservation',
            message = 'reservation: is unknown, spent, due or reset';
    end if;
end $$;
comment on function dipwell.cancel is
    'Gives back what a reservation took and time has not returned yet. It works once, and only before the reservation is due.';

-- The warning about a burst so small that fractions of tokens are lost.
create function dipwell_internal.too_small(d dipwell.limits, r dipwell.versions, period bigint) returns text language plpgsql immutable as $$
declare
    rows  bigint := greatest(d.shards, 1);
    reach numeric := least(r.burst::numeric, r.add::numeric / r.unit); -- tokens at a tick
begin
    if r.burst = 1 then
        reach := 1::numeric / ((r.unit + r.add - 1) / r.add);
    end if;
    if d.algorithm not in ('fixed_window', 'interval', 'sliding_window') then
        reach := reach * period / r.every;
    end if;
    return format('limit %s: a burst of %s is too small for %s per %s: at most %s can be reached',
        d.name, r.burst * rows, d.rate, d.per, trim_scale(round(reach * rows, 5 - floor(log(reach * rows))::int)));
end $$;

create function dipwell.define(name text, rate bigint default null, per interval default null, burst bigint default null, algorithm text default null,
    max_debt bigint default null, start text default null, on_change text default null, mode text default null,
    plans jsonb default null, parent text default null, parts bigint default null, ttl interval default null, on_expire text default null, shards bigint default null,
    shared boolean default null, usage boolean default null, block interval default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    d dipwell.limits;
    period bigint := case when per is not null then dipwell_internal.period_of(per) end;
    r dipwell.versions;
    was text;
    is_now text;
    before bigint; -- shards
    problem text; -- a variable, because the error's context has the text of the statement that raises it
begin
    perform dipwell_internal.wrong('plans: is not an object such as {"pro": {"rate": 600}}', name) where jsonb_typeof(plans) <> 'object';
    perform dipwell_internal.lock_limit(name); -- before the plans are read, which it keeps
    d := jsonb_populate_record(d, jsonb_build_object('name', name, 'algorithm', coalesce(algorithm, 'token_bucket'), 'rate', rate, 'per', dipwell_internal.format_per(nullif(period, 0)),
        'burst', burst, 'max_debt', max_debt, 'start', start, 'on_change', coalesce(on_change, 'keep'), 'mode', coalesce(mode, 'enforce'), 'auth', false,
        'retry_jitter', 0, 'on_store_error', 'closed', 'timeout_us', 0, 'list_keys', false, 'usage', coalesce(usage, false), 'parent', nullif(parent, ''), 'parts', parts, 'shared', coalesce(shared, false),
        'ttl_us', dipwell_internal.period_of(ttl), 'on_expire', on_expire, 'block_us', dipwell_internal.period_of(block), 'shards', shards,
        'owner', 'sql', 'plans', case when plans is null then (select l.plans from dipwell.limits l where l.name = define.name)
            else (select string_agg(dipwell_internal.read_plan(name, p.key, p.value), '|' order by p.key collate "C") from jsonb_each(plans) p) end));
    problem := coalesce(dipwell_internal.name_error('parent', d.parent), case
        when start = '' then 'start: is empty; leave it out, and the windows of each key begin at a time of their own'
        when d.parent = name then 'parent: a limit cannot be its own parent'
        when parts not between 1 and 16 then format('parts: %s is not between 1 and 16', parts) || case parts when 0 then '; a limit with one bucket for everybody is shared => true' else '' end
        when d.parent is not null and parts is not null then format('parts: is for a limit without a parent; the keys of this one have one part more than those of %s', d.parent)
        when d.shared and d.parent is not null then 'shared: is for a limit without a parent'
        when d.shared and parts is not null then 'shared: is for a limit without parts: its calls have no key'
        when ttl is not null and d.ttl_us not between 1000 and 2678400000000 then format('ttl: %s is not between 1ms and 31d', ttl)
        when on_expire not in ('give_back', 'keep') then 'on_expire: unknown; it is one of give_back, keep'
        when block is not null and d.block_us < 1000 then format('block: %s is not between 1ms and 366d', block)
        end);
    perform dipwell_internal.wrong(problem, name);
    r := dipwell_internal.compile(d, period);
    select dipwell_internal.defined(l), greatest(l.shards, 1) into was, before from dipwell.limits l where l.name = define.name;
    perform dipwell_internal.put_limit(d, r);
    if before <> greatest(d.shards, 1) then
        raise warning 'limit %: has other shards than before, so that all keys begin with full buckets', name;
    end if;
    if r.cap > 0 and r.cap < r.unit + r.add - 1 and d.algorithm <> 'concurrency' then
        raise warning '%', dipwell_internal.too_small(d, r, period);
    end if;
    is_now := (select dipwell_internal.defined(l) from dipwell.limits l where l.name = define.name);
    if was is distinct from is_now then
        perform dipwell_internal.changed('define', name, what => is_now || coalesce('; was ' || was, ''));
    end if;
end $$;
comment on function dipwell.define is
    'Adds a limit, or changes it while it is in use. null means the default, and 0 means 0; a max_debt of -1 is unlimited. per may be months or years for windows and intervals. plans is an object such as {"pro": {"rate": 600}, "banned": "blocked"}; null keeps those that there are. shards is the number of rows of each key, at most 64; null: one. shared gives the limit one bucket for everybody: its calls have no key. block is for how long a key is refused after a call of it was refused for want of tokens. usage makes services count what each key uses, and count_usage possible.';

create function dipwell.define_plan(limit_name text, plan text, rate bigint default null, per interval default null, burst bigint default null,
    max_debt bigint default null, mode text default null, callable text default 'yes')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    period bigint := case when per is not null then dipwell_internal.period_of(per) end;
    is_now text;
    was    text;
begin
    perform dipwell_internal.wrong(case
        when plan is null or plan !~ '^[A-Za-z0-9_.-]{1,64}$' then format('plan: %s is not 1 to 64 letters, digits and characters _ . -', coalesce('"' || plan || '"', 'null'))
        when period = 0 then 'per: is not a length of time'
        when callable not in ('yes', 'no', 'children') then format('callable: "%s" is not one of yes, no, children', callable) end);
    is_now := dipwell_internal.read_plan(limit_name, plan, jsonb_build_object('rate', rate, 'per', dipwell_internal.format_per(period), 'burst', burst, 'max_debt', max_debt, 'mode', mode,
        'callable', case callable when 'no' then 'false' when 'yes' then 'true' else callable end));
    was := dipwell_internal.change_plans(limit_name, plan, is_now);
    if was is distinct from is_now then
        perform dipwell_internal.changed('define', limit_name, what => 'plan ' || is_now || coalesce('; was ' || was, ''));
    end if;
end $$;
comment on function dipwell.define_plan is
    'Adds a plan to a limit, or changes it. A plan is a named variant of the limit: a caller names it, or the key has it by an override. null means the limit''s setting. mode may also be unlimited or blocked. With callable no only an override can give the plan; with children, calls of the limit''s children that name it choose it.';

create function dipwell.drop_plan(limit_name text, plan text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    was text;
begin
    perform dipwell_internal.wrong('plan: is null') where plan is null;
    was := dipwell_internal.change_plans(limit_name, plan, null);
    perform dipwell_internal.changed('define', limit_name, what => 'without plan ' || plan || '; was ' || was);
end $$;
comment on function dipwell.drop_plan is 'Removes a plan. The calls of keys that have it by an override are then decided by the limit itself.';

create function dipwell_internal.time_of(us bigint) returns timestamptz language sql stable as
$$ select timestamptz 'epoch' + us / 1048576 * interval '1048576 microseconds' + us % 1048576 * interval '1 microsecond' $$;

create function dipwell_internal.describe(o dipwell.key_overrides) returns text language sql stable as
$$ select nullif(concat_ws(' ', case when dipwell_internal.automatic(o) then 'block' end, 'plan ' || o.plan, 'rate ' || o.rate, 'per ' || o.per, 'burst ' || o.burst, 'start ' || o.start,
    'until ' || rtrim(rtrim(to_char(dipwell_internal.time_of(o.until) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z'), '') $$;

create function dipwell.override(limit_name text, key text default null, plan text default null, rate bigint default null, per interval default null,
    burst bigint default null, until timestamptz default null, note text default null, start text default null)
returns table (replaced_plan text, replaced_rate bigint, replaced_per text, replaced_burst bigint, replaced_until timestamptz, replaced_note text, replaced_start text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    lim    int;
    was    dipwell.key_overrides;
    c      record;
    period bigint := case when per is not null then dipwell_internal.period_of(per) end;
begin
    lim := dipwell_internal.limit_id(limit_name, 'limit_name');
    key := dipwell_internal.check_key(lim, key);
    select (array_agg(s.set_))[1] as made, (array_agg(s.replaced))[1] as replaced into c from unnest(dipwell_internal.row_keys((select l.shards from dipwell.limits l where l.id = lim), override.key)) r (key)
        cross join lateral dipwell_internal.set_override(lim, r.key, plan, rate, period, burst,
        case when until < 'infinity' then (extract(epoch from least(greatest(until, 'epoch'), '3000-01-01')) * 1000000)::bigint end, note, start => start) s;
    was := c.replaced;
    perform dipwell_internal.changed('override', limit_name, key,
        concat_ws(', ', dipwell_internal.describe(c.made), 'in place of ' || dipwell_internal.describe(was), 'over ' || dipwell_internal.describe(dipwell_internal.under_of(c.made))), note);
    return query select was.plan, was.rate, was.per, was.burst, dipwell_internal.time_of(was.until), was.note, was.start where was.id is not null;
end $$;
comment on function dipwell.override is
    'Sets an override of a key: a plan, or a rate, per and burst of its own, decide the calls of the key. Without until it stands until it is ended. One with until lies over it: its numbers change those under it. start, without until and also beside a plan, is when the windows of the key begin: for example a billing day, 17 00:00 Europe/Rome. Each replaces the one of its kind, which is returned. null means the setting below.';

create function dipwell.end_override(limit_name text, key text default null, kind text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    lim    int := dipwell_internal.limit_id(limit_name, 'limit_name');
    of_key text := coalesce(key, '');
    was    dipwell.key_overrides;
begin
    perform dipwell_internal.wrong('key: is empty') where key = '';
    perform dipwell_internal.wrong(format('kind: "%s" is not one of standing, temporary, automatic', kind)) where kind not in ('standing', 'temporary', 'automatic');
    was := (select (array_agg(e) filter (where e.id is not null))[1] from dipwell.limits l
        cross join lateral unnest(dipwell_internal.row_keys(l.shards, of_key)) r (key)
        cross join lateral dipwell_internal.end_override(lim, r.key, end_override.kind) e where l.id = lim);
    if was.id is not null then
        perform dipwell_internal.changed('end-override', limit_name, key, dipwell_internal.describe(was));
    else -- checked now, because an override may be older than what keys the limit has
        perform dipwell_internal.check_key(lim, key);
    end if;
    return was.id is not null;
end $$;
comment on function dipwell.end_override is 'Ends an override of a key: the one of a kind, standing, temporary or automatic, or by default the one that decides. Returns false if the key has none.';

create view dipwell.overrides as
    select l.name as limit_name, nullif(k.key, '') as key, o.plan, o.rate, o.per, o.burst,
        timestamptz 'epoch' + o.until / 1048576 * interval '1048576 microseconds' + o.until % 1048576 * interval '1 microsecond' as until, o.note, case when o.until is null then 'standing' else 'temporary' end as kind, o.start
    from dipwell.key_overrides top cross join lateral (select top.* union all select u.* from jsonb_populate_record(null::dipwell.key_overrides, top.under) u where u.id is not null) o
    join dipwell.limits l on l.id = o.limit_id
    cross join lateral (select dipwell_internal.key_of(l.shards, o.key) as key) k
    where ((l.shards > 1) is not true or o.key = k.key || chr(1) || '00') and (o.until is null or o.until > dipwell_internal.now_us() and num_nonnulls(o.plan, o.rate, o.per, o.burst) > 0);

create view dipwell.blocks as
    select l.name as limit_name, o.key, timestamptz 'epoch' + o.until / 1048576 * interval '1048576 microseconds' + o.until % 1048576 * interval '1 microsecond' as until
    from dipwell.key_overrides o join dipwell.limits l on l.id = o.limit_id
    where o.until > dipwell_internal.now_us() and num_nonnulls(o.plan, o.rate, o.per, o.burst) = 0;

create function dipwell.drop(name text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform dipwell_internal.drop_limit(name, 'sql');
    perform dipwell_internal.changed('drop', name);
end $$;
comment on function dipwell.drop is
    'Deletes a limit that was defined in SQL. Its buckets no longer count; a limit of the same name starts with full ones.';

create function dipwell.sweep(max_rows int default 10000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    n     bigint := dipwell_internal.settled();
    s     record;
    times int := 0;
begin
    perform dipwell_internal.wrong(format('max_rows: %s is not at least 1', coalesce(max_rows::text, 'null'))) where coalesce(max_rows, 0) < 1;
    select * into s from dipwell_internal.sweep_at(max_rows, n, null);
    while s.more and times < 15 loop -- a hold may be made and end each ms
        times := times + 1;
        s.more := dipwell_internal.forget_holds(max_rows, n) = max_rows;
    end loop;
    if s.swept < max_rows then
        perform dipwell_internal.retire_rows();
        perform dipwell_internal.retire();
    end if;
    return s.swept;
end $$;
comment on function dipwell.sweep is
    'Deletes at most max_rows full rows and returns their number. It is lower at the end of the table, or while another sweep is running. Call it again while it returns max_rows, each time in a transaction of its own. It also deletes the records of holds that ended long ago, at most 16 times max_rows, and at the end of the table old versions of limits.';

-- The capacity of a bucket, the tokens left at n, and when it is full.
create function dipwell_internal.level(b dipwell.buckets, n bigint,
    out capacity bigint, out remaining bigint, out full_at timestamptz) language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    l dipwell.limits;
    o dipwell.key_overrides;
    k dipwell_internal.books;
    r dipwell.versions;
begin
    select * into l from dipwell.limits x where x.id = b.limit_id;
    if b.version < 0 then
        o := dipwell_internal.override_of(b.limit_id, b.key);
    end if;
    k := dipwell_internal.books_at(dipwell_internal.brought(l, o, b, n), n);
    r := k.rule;
    capacity := r.burst;
    remaining := greatest(r.cap - dipwell_internal.counted(r, k.used, k.ts, false), 0) / r.unit;
    full_at := timestamptz 'epoch' + n * interval '1 microsecond'
        + dipwell_internal.length(case when k.used = 0 then 0
            when l.algorithm = 'concurrency' then coalesce(dipwell_internal.hold_reset(l.id, b.key, n), 0) -- time returns nothing
            else dipwell_internal.wait(r, k.used, k.ts, n) end);
end $$;

-- The functions that a view calls run with the search path of whoever reads the view.
create view dipwell.status as
    select l.name as limit_name, nullif(b.key, '') as key, s.capacity, s.remaining, s.full_at
    from dipwell.buckets b
    join dipwell.limits l on l.id = b.limit_id
    cross join lateral dipwell_internal.level(b, dipwell_internal.now_us()) s
    where coalesce(l.shards, 1) < 2
    union all select l.name, nullif(k.key, ''), max(s.capacity) * l.shards,
        (sum(s.remaining) + (l.shards - count(*)) * max(s.capacity))::bigint, max(s.full_at)
    from dipwell.limits l
    join dipwell.buckets b on b.limit_id = l.id
    cross join lateral (select dipwell_internal.key_of(l.shards, b.key) as key) k
    cross join lateral dipwell_internal.level(b, dipwell_internal.now_us()) s
    where l.shards > 1 and k.key is not null
    group by l.id, l.name, l.shards, k.key;
