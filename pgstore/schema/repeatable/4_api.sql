-- What people call. Everything here runs as its owner with a fixed search_path,
-- and in the caller's transaction: a rollback gives the tokens back.
-- enable_seqscan: a plan made while the table is empty would read it from end to
-- end, and be kept while a long transaction fills it.

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

-- What a call of one key answers. A type of its own, because PostgreSQL makes the
-- description of a row of OUT parameters anew in each call.
create function dipwell_internal.entries(n int) returns text language sql immutable as
$$ select case n when 1 then '1 entry' else coalesce(n, 0) || ' entries' end $$;
comment on function dipwell_internal.entries is
    'A number of entries in words.';

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

create function dipwell_internal.ask(verb int, limit_name text, key text, cost bigint) returns dipwell.decision language plpgsql volatile as $$
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
    if not found then -- dropped a moment ago
        perform dipwell_internal.limit_id(limit_name, 'limit_name');
        return dipwell_internal.ask(verb, limit_name, nullif(key, ''), cost);
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
comment on function dipwell_internal.ask is
    'Decides any verb of one key. The public functions are its spellings.';

-- Takes cost tokens if all of them are there. The common case is one UPDATE of
-- one row, with as few expressions as will do, for starting each of them costs
-- more than the row, and with its answer whole: a bucket counted in µs first,
-- where nothing can overflow (two instants are less than 2^54 µs apart), then
-- other even ticks. The two parts of reset_after are each below 2^53, as an exact
-- product with an interval needs; their sum may not be. A refusal, a first call,
-- a change of the limit, a calendar, a row with reservations and bad input fall
-- through to ask.
create function dipwell.take(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    n bigint := dipwell_internal.now_us();
    d dipwell.decision;
begin
    update dipwell.buckets b
    set used = greatest(b.used - greatest(n - b.ts, 0) * l.add, 0) + take.cost * l.unit, ts = greatest(n, b.ts)
    from dipwell.limits l
    where l.name = limit_name and l.plain and l.every = 1 and l.add <= 256 and take.cost between 1 and l.cap / l.unit
        and b.limit_id = l.id and b.key = coalesce(take.key, '') and take.key is distinct from '' and b.version = l.version and b.lows is null
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
        and b.limit_id = l.id and b.key = coalesce(take.key, '') and take.key is distinct from '' and b.version = l.version and b.lows is null
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
    return dipwell_internal.ask(0, limit_name, key, cost);
end $$;
comment on function dipwell.take is
    'Takes cost tokens if all of them are there. Without a key: from the limit''s one shared bucket.';

create function dipwell.check(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(1, limit_name, key, cost);
end $$;
comment on function dipwell.check is
    'Answers as take would, and changes nothing.';

create function dipwell.take_up_to(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(2, limit_name, key, cost);
end $$;
comment on function dipwell.take_up_to is
    'Takes as many whole tokens as there are, up to cost, and at least one: see granted.';

create function dipwell.reserve(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(3, limit_name, key, cost);
end $$;
comment on function dipwell.reserve is
    'Takes tokens ahead of time, into debt as far as max_debt: act after delay, or cancel(reservation) before.';

create function dipwell.charge(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(4, limit_name, key, cost);
end $$;
comment on function dipwell.charge is
    'Takes tokens whatever is left: settles a cost that is known only afterwards.';

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
comment on function dipwell.take_all is
    'Takes all costs (1 each by default) at one instant, or none of them; returns a row for each limit, in the order asked. A limit and key that are named twice add up.';

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
    'Gives back what a reservation took, as far as it is still there, once, before it is due.';

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
    'Ends a limit that SQL defined.';

create function dipwell.sweep(max_rows int default 10000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if max_rows is null or max_rows < 1 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'max_rows',
            message = format('max_rows: %s is not at least 1', coalesce(max_rows::text, 'null'));
    end if;
    return dipwell_internal.sweep_at(max_rows, dipwell_internal.settled());
end $$;
comment on function dipwell.sweep is
    'Deletes at most max_rows full rows and returns how many. Call it again while it returns max_rows, each time in a transaction of its own.';

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
    remaining := greatest(0, (r.cap - held) / r.unit);
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
